"""`holdfast usage`: the table, and CSV that no spreadsheet runs."""

import asyncio
from pathlib import Path

import pytest

from holdfast import open_store
from holdfast.types import Batch
from holdfast.usage import Usage
from tests.cli.test_help import invoke

FORMULA = '=HYPERLINK("x")\x1b[31m'


@pytest.fixture
def url(tmp_path: Path) -> str:
    async def fill() -> None:
        async with open_store(place) as store:
            await store.create_session(id="s", agent="a", owner="you")
            holder = await store.join("worker", ttl=60)
            lease = await store.acquire("s", holder)
            tiny = Usage(agent="a", model=FORMULA, requests=1, cost_nanos=3, working_us=119_700_000)
            await store.write(lease, Batch(usage=[tiny]))
            await store.leave(holder)

    place = f"sqlite:///{tmp_path}/store.db"
    asyncio.run(fill())
    return place


def test_csv_has_no_formulas_and_no_control_characters(url: str):
    shown = invoke("usage", "--store", url, "--by", "model", "--csv").stdout
    header, row = shown.splitlines()
    assert header.startswith("model,requests,unpriced,")
    assert row.startswith('"\'=HYPERLINK(""x"")')
    assert "\x1b" not in shown
    assert ",0.000000003," in row


def test_csv_has_the_same_header_without_rows(url: str):
    shown = invoke("usage", "--store", url, "--by", "model", "--agent", "none", "--csv").stdout
    assert shown == invoke("usage", "--store", url, "--by", "model", "--csv").stdout.splitlines()[0] + "\n"


def test_the_table_rounds_times(url: str):
    row = invoke("usage", "--store", url, "--by", "agent").stdout.splitlines()[1]
    assert row.split()[0] == "a"
    assert row.endswith("2 min 0 s")
