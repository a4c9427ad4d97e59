import asyncio
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from holdfast import connect
from holdfast.cli import app
from holdfast.errors import ApprovalNeeded
from tests.client.agents import AGENTS


def test_a_session_that_waits_for_a_decision_is_listed(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/store.db"

    async def ask() -> None:
        async with connect(url, agents=AGENTS) as hf:
            session = await hf.session("payment", agent="payer")
            with pytest.raises(ApprovalNeeded):
                await (await session.send("pay"))

    asyncio.run(ask())
    listed = CliRunner().invoke(app, ["inbox", "--store", url])
    assert "payment" in listed.stdout
    assert "pay, pay" in listed.stdout
    (item,) = json.loads(CliRunner().invoke(app, ["inbox", "--store", url, "--json"]).stdout)["items"]
    assert (item["id"], len(item["approvals"])) == ("payment", 2)
