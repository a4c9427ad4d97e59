"""The `--json` output and exit code of every command about sessions, on a store and through a server.

`python -m tests.cli.test_golden` records them. Ids, times and places are replaced by their kind.
"""

import asyncio
import io
import json
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import pytest

from holdfast import Store, open_store
from holdfast.cli import main
from holdfast.config import load_settings
from holdfast.server import create_app
from holdfast.types import Batch, Effect, Run
from tests.client.agents import broken, echo, payer
from tests.server.serving import serving, working

RECORDED = Path(__file__).with_name("golden.json")
TOKEN = "hf_the_golden_one"
SERVED = """
send s hello --agent echo --wait
send s again --wait --key once
send s again --key once
send s hi --agent payer
send s nothing --when-busy never
send broken hello --agent broken --wait
send asks pay --agent payer --wait
compact s --wait
undo s --wait
rewind s nowhere --wait
fork s --to copy --wait
undo-effects broken --wait
retry broken --wait
retry s
"""
"""Commands while a worker runs."""
ALONE = """
approve asks
approve asks first
approve asks second --deny --feedback no
send s later
send s soon --wait --timeout 0.1
send none hello
send foreign hello
interrupt s
interrupt none
interrupt foreign
cancel s none
cancel none none
cancel foreign none
undo s
undo foreign
undo-effects s none
undo-effects none
undo-effects foreign
compact foreign
rewind s nowhere
fork s
fork foreign
retry s
retry s none
retry none
retry foreign
retry broken
retry broken
approve s
approve none
approve s call --arguments {
tool-result s call --result {
tool-result s call
tool-result s none --error broken
dismiss broken
dismiss none
inbox
sessions list
sessions list --status failed --agent broken --limit 1
sessions list --limit 2
sessions list --status odd
sessions list --cursor odd
sessions show s
sessions show broken
sessions show cut
sessions show none
sessions conversation s
sessions conversation foreign
tail s --no-follow
tail s --no-follow --after 12
tail s --no-follow --after 999
tail none --no-follow
runs list
runs list cut
runs list none
runs list --unresolved
runs show cut-run
runs show none
runs tree cut-run
runs events cut-run
runs effects cut-run
runs effects cut-run --unresolved
runs effects none
settle cut-run call --result 5
settle cut-run call --result 5
settle cut-run none --error no
settle none call --error no
settle cut-run call
credentials set s key
credentials set none key
credentials list s
credentials delete s key
credentials delete none key
credentials list none
sessions hold broken
sessions clean broken --yes
sessions hold broken --off
sessions hold none
sessions clean copy --yes
sessions clean copy --idle-days 0 --dry-run
sessions clean copy --force --archive
tail copy --no-follow
send copy hello
sessions rehydrate copy
sessions rehydrate copy
sessions clean copy --idle-days 0 --force
sessions clean copy --idle-days 0 --force --yes
sessions rehydrate copy --from none.ndjson
sessions rehydrate none
sessions retention broken
sessions retention none
sessions erase broken --yes
sessions erase broken --yes
sessions show broken
audit --session broken
schedule create --id daily --agent echo --cron '0 9 * * MON-FRI' --timezone Europe/Berlin --text report
schedule create --id daily --agent echo --cron '0 9 * * *' --text again
schedule create --id odd --agent echo --cron '* * * * * *' --text often
schedule create --id odd --agent echo --cron '0 9 * * *' --timezone Europe/Berlim --text where
schedule create --id odd --agent echo --cron '0 9 * * *' --text what --catch-up some
schedule create --id odd --agent echo --cron '0 9 * * *' --text what --catch-up all --catch-up-limit 500
schedule create --id odd --session foreign --cron '0 9 * * *' --text no
schedule create --id odd --session nowhere --cron '0 9 * * *' --text no
schedule create --id named --session planned --agent echo --cron '0 0 29 2 *' --text leap --overlap queue
schedule change daily --cron '0 8 * * *' --title Report
schedule change none --title Report
schedule pause daily
schedule run daily
schedule run daily
schedule resume daily
schedule show daily
schedule list
schedule times none
schedule delete named
schedule delete named
audit --limit 1
usage --by agent,model
usage --by owner --agent none
usage --by month
usage --by day --from tomorrow
usage --by day --from 2026-02-01 --to 2026-01-01
budget list
budget set owner ada --daily --cost 5.50 --requests 10
budget set store --tokens 1000
budget set session nothing --seconds 90
budget set planet mars --cost 1
budget set owner --cost 1
budget set store earth --cost 1
budget set owner ada
budget set owner ada --cost much
budget set owner ada --cost=-1
budget list
budget list --kind owner
budget remove store
budget list --name nothing
subscription list
subscription create https://example.com/hook --kind waiting --kind failed --agent echo --session s --content
subscription create https://example.com/ops --kind worker_lost --everyone --owner ops
subscription create https://example.com --kind finished
subscription create https://example.com --kind worker_lost
subscription create http://example.com --kind waiting
subscription create https://127.0.0.1 --kind waiting
subscription create https://example.com --kind waiting --session 'no id'
subscription list
subscription list --owner ops
subscription show none
subscription change none --kind done
subscription pause none
subscription resume none
subscription rotate none
subscription test none
subscription delete none
subscription deliveries none
subscription deliveries none --state lost
subscription repeat none none
workers
sweep
"""
_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")
_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[.\d]*(Z|\+00:00)?")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_SECRET = re.compile(r"whsec_[\w+/=]+")
_AGO = re.compile(r"active \d+ seconds? ago")
_CHANGING = {
    **dict.fromkeys(("checkpoints", "messages", "segments"), "<number>"),
    "first_seq": "<number>",
    "next_cursor": "<cursor>",
    "idle_seconds": "<seconds>",
    "seconds": "<seconds>",
}


def plain(value: Any) -> Any:
    """Return JSON in which ids, times and places are the same each time."""
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        return {
            name: _CHANGING.get(name) if fields[name] and name in _CHANGING else plain(fields[name])
            for name in sorted(fields)
        }
    if isinstance(value, list):
        return [plain(each) for each in cast("list[Any]", value)]
    if not isinstance(value, str):
        return value
    kinds = {_ID: "<id>", _TIME: "<time>", _DIGEST: "<digest>", _AGO: "<time>", _SECRET: "<secret>"}
    for pattern, kind in kinds.items():
        value = pattern.sub(kind, value)
    return re.sub(
        r"cli:\w+|worker-[\w.:-]+|http://127[\w.:]+|/[\w./-]+/(?=[\w-]+\.(db|ndjson))", "<name>", value
    )


@contextmanager
def _terminal(arguments: list[str]) -> Generator[io.TextIOWrapper, None, None]:
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    with (
        patch.object(sys, "argv", ["holdfast", *arguments]),
        patch.object(sys, "stdin", io.StringIO("secret\n")),
        redirect_stdout(out),
        redirect_stderr(io.StringIO()),
    ):
        yield out


def run(line: str, door: list[str]) -> dict[str, Any]:
    """Run a command, and return its exit code and the lines that it prints."""
    with _terminal([*shlex.split(line), *door, "--json"]) as out:
        with pytest.raises(SystemExit) as ended:
            main()
        out.seek(0)
        return {"code": int(ended.value.code or 0), "out": [plain(json.loads(each)) for each in out]}


async def outputs(folder: Path, door: str) -> dict[str, Any]:
    """Return the output of every command, in order."""
    url = f"sqlite:///{folder}/store.db"
    settings = load_settings(token=TOKEN)
    results: dict[str, Any] = {}

    async def run_all(lines: str, options: list[str]) -> None:
        for line in lines.strip().splitlines():
            name = line if line not in results else f"{line} (again)"
            results[name] = await asyncio.to_thread(run, line, options)

    async with open_store(url) as store, serving(create_app(settings, store)) as address:
        options = ["--store", url] if door == "store" else ["--url", address]
        async with working(store, [echo, payer, broken]):
            await run_all(SERVED, options)
        await _prepare(store)
        await run_all(ALONE, options)
    return results


async def _prepare(store: Store) -> None:
    await store.create_session(agent="clerk", owner="local", id="cut")
    lease = await store.acquire("cut", holder := await store.join("gone"))
    effect = Effect(run_id="cut-run", call_id="call", tool="pay", arguments_digest="a", idempotency_key="k")
    await store.write(
        lease, Batch(runs=[Run(id="cut-run", agent="clerk")], effects=[effect], status="running")
    )
    await store.leave(holder)
    await store.create_session(agent="adk", owner="local", id="foreign", metadata='{"framework": "adk"}')


def recorded(folder: Path, door: str) -> dict[str, Any]:
    environment = {"HOLDFAST_TOKEN": TOKEN, "HOLDFAST_CREDENTIAL_KEY": f"{'a' * 43}="}
    with patch.dict(os.environ, environment):
        return asyncio.run(outputs(folder, door))


@pytest.mark.timeout(120)
@pytest.mark.parametrize("door", ["store", "server"])
def test_the_output_is_as_recorded(door: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    expected = {
        name: each.get("both") or each[door] for name, each in json.loads(RECORDED.read_text()).items()
    }
    results = recorded(tmp_path, door)
    assert results.keys() == expected.keys()
    for name, result in results.items():
        assert result == expected[name], name


def record() -> None:
    """Write the file."""
    found: list[dict[str, Any]] = []
    for door in ("store", "server"):
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            found.append(recorded(Path(folder), door))
    store, server = found
    both = {
        name: {"both": store[name]}
        if store[name] == server[name]
        else {"store": store[name], "server": server[name]}
        for name in store
    }
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(each)}" for name, each in both.items())
    RECORDED.write_text(f"{{\n{lines}\n}}\n")


if __name__ == "__main__":
    record()
