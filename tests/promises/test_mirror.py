"""The mirror: workers that write it are killed and paused all the time, and its files contain exactly the journals in the end.

Promise 9 includes them: after a clean or an erasure, no file has content.
"""

import asyncio
import json
import random
from contextlib import AsyncExitStack
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP

import pytest

from holdfast.config import load_settings
from holdfast.media import open_media
from holdfast.retention import clean, erase
from holdfast.store import Store, open_store
from holdfast.types import Batch, NewEvent
from tests.builders import new_session, until
from tests.conftest import Engine
from tests.notices.test_mirror import content, files, followed, journal
from tests.promises.workers import WorkerProcess, worker

pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]

MARK = "mark-of-content-51c7"
SHORT = {"lease_ttl_seconds": "2", "lease_renew_seconds": "0.5"}


class Writers:
    """Sessions that get events all the time. Some are cleaned or erased while they are mirrored, and replaced by new ones."""

    def __init__(self, store: Store, chance: random.Random) -> None:
        self._store = store
        self._chance = chance
        self.sessions: list[str] = []
        self.gone: list[str] = []

    async def write(self, stop: asyncio.Event) -> None:
        holder = await self._store.join("writer", ttl=600)
        while not stop.is_set():
            session_id = (
                await new_session(self._store)
                if len(self.sessions) < 12
                else self._chance.choice(self.sessions)
            )
            lease = await self._store.acquire(session_id, holder)
            for _ in range(self._chance.randint(1, 4)):
                payload = json.dumps({"text": MARK * self._chance.randint(1, 500)})
                count = self._chance.randint(1, 20)
                await self._store.write(lease, Batch(events=[NewEvent(kind="tick", payload=payload)] * count))
                await asyncio.sleep(self._chance.uniform(0, 0.02))
            await self._store.release(lease)
            if session_id not in self.sessions:
                self.sessions.append(session_id)
            if self._chance.random() < 0.05:
                await self.delete(session_id)

    async def delete(self, session_id: str) -> None:
        """Clean or erase a session. The worker that must delete its files may be paused or dead."""
        self.sessions.remove(session_id)
        self.gone.append(session_id)
        media = open_media(store=self._store)
        holder = await self._store.join("retention", ttl=60)
        if self._chance.random() < 0.5:
            await clean(self._store, media, session_id, actor="test", force=True, holder=holder)
        else:
            await erase(self._store, media, session_id, actor="test", holder=holder)
        await self._store.leave(holder)


async def hit(url: str, folder: Path, chance: random.Random, count: int, check: Writers) -> None:
    """Kill or pause the workers that mirror, one after another."""
    async with AsyncExitStack() as stack:

        async def start() -> WorkerProcess:
            return await stack.enter_async_context(worker(url, mirror=str(folder), **SHORT))  # pyright: ignore[reportArgumentType]

        running = list(await asyncio.gather(*(start() for _ in range(2))))
        for _ in range(count):
            await asyncio.sleep(chance.uniform(0.1, 1.5))
            victim = running.pop(chance.randrange(len(running)))
            if chance.random() < 0.3:
                victim.signal(SIGSTOP)
                await asyncio.sleep(chance.uniform(0.5, 3))
                victim.signal(SIGCONT)
                running.append(victim)
            else:
                victim.signal(SIGKILL)
                running.append(await start())
            for session_id in check.sessions[:3]:
                await is_prefix(check, folder, session_id)


async def is_prefix(check: Writers, folder: Path, session_id: str) -> None:
    """At each moment, the complete lines are those at the beginning of the journal."""
    lines = content(folder, session_id).rpartition(b"\n")[0]
    whole = await journal(check._store, session_id)  # pyright: ignore[reportPrivateUsage]
    if session_id in check.sessions:  # it is not being deleted
        assert whole.startswith(lines)


async def test_the_files_are_exact_although_their_writers_are_killed(
    engine: Engine, tmp_path: Path, long: bool, request: pytest.FixtureRequest
):
    chance = random.Random(request.config.option.seed)
    folder = tmp_path / "journals"
    async with open_store(engine.url, settings=load_settings()) as store:
        writers = Writers(store, chance)
        stop = asyncio.Event()
        writing = asyncio.create_task(writers.write(stop))
        try:
            await hit(engine.url, folder, chance, 60 if long else 8, writers)
        finally:
            stop.set()
            await writing
        async with worker(engine.url, mirror=str(folder), **SHORT):  # pyright: ignore[reportArgumentType]
            await followed(store, folder, *writers.sessions)

            async def is_deleted() -> bool:
                return not any([await store.undeleted_files(each) for each in writers.gone])

            await until(is_deleted)
            names = {path.stem for path in folder.rglob("*.jsonl")}
            assert names == set(writers.sessions)
            assert sum(len(content(folder, each)) for each in writers.sessions) > 100_000
            media = open_media(store=store)
            for number, session_id in enumerate(writers.sessions):
                if number % 2:
                    gone = await clean(store, media, session_id, actor="test", force=True)
                else:
                    gone = await erase(store, media, session_id, actor="test")
                assert not gone.files_pending
                assert files(folder, session_id) == []
        assert not any(MARK.encode() in path.read_bytes() for path in folder.rglob("*") if path.is_file())
        assert await store.check() == []
