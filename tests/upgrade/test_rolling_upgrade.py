"""The code of the schema before the latest one runs next to today's during an upgrade, and nothing is stranded.

It comes from the history of this repository.
"""

import asyncio
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from holdfast.runtime import Worker
from holdfast.store import Store, open_store
from holdfast.store.schema import LATEST
from holdfast.store.sql import library
from tests.builders import until
from tests.conftest import Engine
from tests.upgrade.app import agent

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.processes, pytest.mark.new_database, pytest.mark.timeout(120)]


def git(*arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True).stdout


@pytest.fixture(scope="session")
def earlier_code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources as they were before the latest migration was added."""
    _, name, _ = library.migrations()[-1]
    migration = f"src/holdfast/store/sql/migrations/{name}.sql"
    try:
        added = (
            git("log", "--first-parent", "-m", "--format=%H", "--diff-filter=A", "-1", "--", migration)
            .decode()
            .strip()
        )
        sources = git("archive", f"{added}^", "src")
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("needs the history of the repository")
    folder = tmp_path_factory.mktemp("earlier")
    with tarfile.open(fileobj=BytesIO(sources)) as archive:
        archive.extractall(folder, filter="data")
    return folder / "src"


class Earlier:
    """A process that runs the earlier code."""

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
async def earlier(code: Path, url: str) -> AsyncGenerator[Earlier, None]:
    if url.startswith("postgresql"):  # it does not set this itself, and would be slow
        connection = await asyncpg.connect(url)
        await connection.execute(f"ALTER DATABASE {url.rpartition('/')[2]} SET jit = off")
        await connection.close()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.upgrade.earlier", url),
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{code}{os.pathsep}{ROOT}"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        started = Earlier(process)
        assert (await started.answer())["version"] < LATEST
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


@pytest.mark.parametrize("engine", ["sqlite", "postgres"], indirect=True)
async def test_messages_accepted_by_earlier_code_are_answered_by_new_workers(
    engine: Engine, earlier_code: Path
):
    async with earlier(earlier_code, engine.url) as front:
        await front.order(submit="before", text="hello")
        async with open_store(engine.url) as store:  # the upgrade, while the earlier process serves on
            assert (await store.schema()).version == LATEST
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


@pytest.mark.parametrize("engine", ["sqlite", "postgres"], indirect=True)
async def test_messages_accepted_by_new_code_are_answered_by_earlier_workers(
    engine: Engine, earlier_code: Path
):
    async with earlier(earlier_code, engine.url) as old, open_store(engine.url) as store:
        await old.order(serve=True)
        for session in ("one", "two"):
            await store.create_session(agent="agent", owner="you", id=session)
            await store.submit(session, "message", json.dumps({"text": "hello"}))
        for session in ("one", "two"):
            await done(store, session)
        assert await store.check() == []
