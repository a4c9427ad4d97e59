"""The fault driver: chooses, by its seed, what is hit next and how, and counts what was survived."""

import asyncio
import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import asyncpg

from tests.servers import Postgres
from tests.torture.fleet import Member
from tests.torture.line import Line

KILLS_AND_PAUSES = ("SIGKILL", "SIGSTOP", "database killed", "database paused")


class Driver:
    """Hits members of the fleet and their database, one fault after the other, several at a time."""

    def __init__(
        self,
        seed: int,
        members: Sequence[Member],
        *,
        pace: float,
        ttl: float,
        server: Postgres | None = None,
        line: Line | None = None,
        disk: Path | None = None,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.log: list[str] = []
        self._chance = random.Random(f"faults {seed}")
        self._members = members
        self._pace = pace
        self._ttl = ttl
        self._server = server
        self._line = line
        self._disk = disk
        self._under_way: set[asyncio.Task[None]] = set()
        self._database = asyncio.Lock()
        self._begun = time.monotonic()

    @property
    def survived(self) -> int:
        """How many kills and pauses there were."""
        return sum(number for name, number in self.counts.items() if name.startswith(KILLS_AND_PAUSES))

    async def run(self, seconds: float) -> None:
        """Hit for so long; then let everything that is paused go on, and have the database run."""
        until = time.monotonic() + seconds
        kinds: dict[Callable[[], Coroutine[Any, Any, None]], float] = {
            self._kill: 14,
            self._pause: 68,
            self._terminate: 3,
        }
        if self._server is not None:
            kinds |= {
                self._kill_database: 2.5,
                self._pause_database: 2.5,
                self._cut_connections: 5,
                self._move_clock: 2,
            }
        if self._line is not None:
            kinds |= {self._silence: 2.5, self._slow_down: 1.5}
        if self._disk is not None:
            kinds[self._fill_disk] = 3
        while (left := until - time.monotonic()) > 0:
            await asyncio.sleep(min(left, self._chance.expovariate(1 / self._pace)))
            while not self._someone_is_up() and time.monotonic() < until:
                await asyncio.sleep(0.05)
            (fault,) = self._chance.choices(list(kinds), list(kinds.values()))
            task = asyncio.create_task(fault())
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)
        await asyncio.gather(*self._under_way)

    def _someone_is_up(self) -> bool:
        return any(member.standing == "up" for member in self._members)

    def _note(self, fault: str, target: str = "") -> None:
        self.counts[f"{fault} {target}".strip()] += 1
        self.log.append(f"{time.monotonic() - self._begun:8.2f} {fault} {target}")

    def _target(self) -> Member | None:
        """Choose who is hit: as a rule one that serves, now and then one that is just starting."""
        standing = "starting" if self._chance.random() < 0.07 else "up"
        found = [member for member in self._members if member.standing == standing]
        if not found:
            return None
        # Workers more often: they have more to lose, and without fronts nobody asks them for anything.
        (target,) = self._chance.choices(found, [3 if member.kind == "worker" else 1 for member in found])
        return target

    async def _kill(self) -> None:
        up = sum(member.standing == "up" for member in self._members)
        if 2 * up <= len(self._members) and self._chance.random() < 0.8:
            await self._pause()  # a machine that starts slowly is not to spend all its time on that
            return
        target = self._target()
        if target is not None and target.hit(signal.SIGKILL):
            self._note("SIGKILL", target.kind)

    async def _terminate(self) -> None:
        target = self._target()
        if target is not None and target.hit(signal.SIGTERM):
            self._note("SIGTERM", target.kind)
            if self._chance.random() < 0.3:  # who stops may be paused, or killed, while it hands over
                await asyncio.sleep(self._chance.uniform(0, 0.5))
                if target.hit(signal.SIGKILL):
                    self._note("SIGKILL", target.kind)

    async def _pause(self) -> None:
        target = self._target()
        if target is None or target.standing == "paused":
            return
        # Mostly a hiccup; often enough so long that others take over in the meantime.
        short = self._chance.random() < 0.8
        seconds = self._chance.uniform(0.05, 0.8) if short else self._ttl + self._chance.uniform(0.2, 2)
        self._note("SIGSTOP", f"{target.kind}, {'short' if short else 'beyond the deadline'}")
        await target.pause(seconds)

    async def _move_clock(self) -> None:
        """Have a worker come back with a clock that is wrong by up to two hours."""
        target = self._chance.choice([member for member in self._members if member.kind == "worker"])
        target.move_clock(self._chance.choice([None, self._chance.uniform(-7200, 7200)]))
        if target.hit(signal.SIGTERM):
            self._note("clock moved", target.kind)

    # The database

    async def _kill_database(self) -> None:
        server = self._server
        if server is None or self._database.locked():
            return
        async with self._database:
            self._note("database killed")
            await asyncio.to_thread(server.kill)
            await asyncio.sleep(self._chance.uniform(0, 2))
            await asyncio.to_thread(server.start)

    async def _pause_database(self) -> None:
        server = self._server
        if server is None or self._database.locked():
            return
        async with self._database:
            self._note("database paused")
            stopped = await asyncio.to_thread(_signal_all, server, signal.SIGSTOP)
            try:
                await asyncio.sleep(self._chance.uniform(0.1, 2.5))
            finally:
                for pid in stopped:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGCONT)

    async def _cut_connections(self) -> None:
        server = self._server
        if server is None or self._database.locked():
            return
        async with self._database:
            share = self._chance.choice([0.3, 1.0])
            with suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
                connection = await asyncpg.connect(server.url(), timeout=5)
                try:
                    cut = await connection.fetchval(
                        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
                        " WHERE application_name = 'holdfast' AND random() < $1",
                        share,
                    )
                finally:
                    await connection.close(timeout=5)
                self._note("connections cut")
                self.counts["connections"] += cut

    async def _silence(self) -> None:
        """Drop what the fleet and the database say to each other, as a rule for less than a lease lives."""
        if self._line is None or self._database.locked():
            return
        async with self._database:
            breaks = self._chance.random() < 0.5
            self._note("network silent", "then cut" if breaks else "")
            await self._line.silent(self._chance.choice([0.5, 1.5, self._ttl + 1]), breaks=breaks)

    async def _slow_down(self) -> None:
        if self._line is None or self._database.locked():
            return
        async with self._database:
            self._note("network slow")
            await self._line.slow(self._chance.uniform(0.5, 3), self._chance.uniform(0.005, 0.1))

    async def _fill_disk(self) -> None:
        """Leave no byte on the disk of the database, for a while."""
        if self._disk is None or self._database.locked():
            return
        async with self._database:
            self._note("disk full")
            ballast = self._disk / "ballast"
            try:
                await asyncio.to_thread(_fill, ballast)
                await asyncio.sleep(self._chance.uniform(0.2, 2))
            finally:
                ballast.unlink(missing_ok=True)


def _fill(ballast: Path) -> None:
    with ballast.open("wb", buffering=0) as file, suppress(OSError):
        free = os.statvfs(ballast.parent)
        os.posix_fallocate(file.fileno(), 0, max(1, free.f_bavail * free.f_frsize))
        while True:
            file.seek(0, os.SEEK_END)
            file.write(b"\0" * 4096)


def _signal_all(server: Postgres, number: signal.Signals) -> list[int]:
    """Send a signal to the server and all its children; return who got it."""
    parent = server.pid
    found = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(parent)], capture_output=True, text=True, check=False
    )
    hit: list[int] = []
    for pid in [parent, *map(int, found.stdout.split())]:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
            hit.append(pid)
    return hit
