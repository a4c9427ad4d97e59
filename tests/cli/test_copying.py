"""`holdfast copy`, as a person and as a program runs it."""

import asyncio
import json
import sys
from pathlib import Path

from holdfast.media import open_media
from holdfast.store import open_store
from tests import forking
from tests.promises.sessions import fill
from tests.retention.test_copying import waiting_session


async def filled(url: str) -> str:
    async with open_store(url) as store:
        await fill(store, open_media(store=store), ["hello"])
        return (await waiting_session(store))[0]


def test_a_copy_says_what_it_did(tmp_path: Path):
    source, target = f"sqlite:///{tmp_path}/a.db", f"sqlite:///{tmp_path}/b.db"
    waiting = asyncio.run(filled(source))
    command = [sys.executable, "-m", "holdfast", "copy", source, target]
    done = forking.run([*command, "--json"], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["copied"], result["moved"], result["failed"]) == (2, [waiting], [])
    again = forking.run(command, cwd=tmp_path)
    assert (again.returncode, again.stdout.splitlines()[0]) == (
        0,
        "Copied 0 sessions, 0 of them cleaned. 2 were already present.",
    )
    undone = forking.run([*command, "--undo"], cwd=tmp_path)
    assert undone.stdout == "Reopened 0 sessions in the source.\n"
