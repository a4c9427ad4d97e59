"""Today's code runs next to code with one more migration during an upgrade, and nothing is stranded.

There is no second migration yet. This one is made for the tests: like most, it adds a column and an index.
"""

import asyncio
import json
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import StoreTooNew
from holdfast.runtime import Worker
from holdfast.store import Store, open_store, schema
from holdfast.store.sql import library
from tests.builders import until
from tests.conftest import Engine
from tests.upgrade.app import agent

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.processes, pytest.mark.new_database, pytest.mark.timeout(120)]
NEXT = schema.LATEST + 1
MIGRATION = """
ALTER TABLE sessions ADD COLUMN colour text;
CREATE INDEX sessions_colour ON sessions (colour) WHERE colour IS NOT NULL;
"""


@pytest.fixture
def next_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    """The code of this process has one migration more; other processes do not."""
    migrations = (*library.migrations(), (NEXT, "next_colours", MIGRATION))
    monkeypatch.setattr(library, "migrations", lambda: migrations)
    monkeypatch.setattr(schema, "LATEST", NEXT)


class Earlier:
    """A process that runs the code of today, which is the earlier one here."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def answer(self) -> dict[str, Any]:
        assert self._process.stdout
        return json.loads(await asyncio.wait_for(self._process.stdout.readline(), 60))

    async def order(self, **order: object) -> dict[str, Any]:
        assert self._process.stdin
        self._process.stdin.write(f"{json.dumps(order)}\n".encode())
        return await self.answer()

    async def end(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        assert await asyncio.wait_for(self._process.wait(), 60) == 0


@asynccontextmanager
async def earlier(url: str) -> AsyncGenerator[Earlier, None]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.upgrade.earlier", url),
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        started = Earlier(process)
        assert (await started.answer())["version"] < NEXT
        yield started
        await started.end()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def done(store: Store, session_id: str) -> None:
    async def is_done() -> bool:
        found = (await store.submissions(session_id)).items
        return bool(found) and {submission.state for submission in found} == {"done"}

    await until(is_done)


@pytest.mark.usefixtures("next_schema")
@pytest.mark.parametrize("engine", ["sqlite", "postgres"], indirect=True)
async def test_messages_accepted_by_earlier_code_are_answered_by_new_workers(engine: Engine):
    async with earlier(engine.url) as front:
        await front.order(submit="before", text="hello")
        async with open_store(
            engine.url
        ) as store:  # the upgrade, while the earlier process continues to serve
            assert (await store.schema()).version == NEXT
            await front.order(submit="during", text="hello")
            worker = Worker(store, agent, name="a new worker")
            serving = asyncio.create_task(worker.run())
            await front.order(submit="after", text="hello")
            for session in ("before", "during", "after"):
                await done(store, session)
            await front.order(submit="during", text="and again")
            await done(store, "during")
            worker.stop()
            await serving
            assert await store.check() == []


@pytest.mark.usefixtures("next_schema")
@pytest.mark.parametrize("engine", ["sqlite", "postgres"], indirect=True)
async def test_messages_accepted_by_new_code_are_answered_by_earlier_workers(engine: Engine):
    async with earlier(engine.url) as old, open_store(engine.url) as store:
        assert (await store.schema()).version == NEXT
        await old.order(serve=True)
        for session in ("one", "two"):
            await store.create_session(agent="agent", owner="you", id=session)
            await store.submit(session, "message", json.dumps({"text": "hello"}))
        for session in ("one", "two"):
            await done(store, session)
        assert await store.check() == []


@pytest.mark.parametrize("engine", ["sqlite", "postgres"], indirect=True)
async def test_earlier_code_that_starts_after_the_upgrade_is_refused(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
):
    with monkeypatch.context():
        request.getfixturevalue("next_schema")
        async with open_store(engine.url) as store:
            assert await store.upgrade() == NEXT
    monkeypatch.undo()
    with pytest.raises(StoreTooNew, match=f"schema version {NEXT}"):
        await open_store(engine.url).open()
