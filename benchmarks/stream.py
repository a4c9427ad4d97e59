"""What a live stream costs, from one server process to many clients: each claim is a bar that must hold.

The server is `holdfast serve --role api` on a real PostgreSQL; the clients are raw sockets in a process of their own; who
writes is a third. A bare Starlette stream of the same bytes takes turns with it. Deliveries are counted two ways: by
the clock while the server is behind all the time, where it sends what has gathered at once, and by the processor's time
while events come one at a time, where nothing can gather. Run it as `python -m benchmarks.stream`.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import urlsplit

import psutil

from benchmarks.report import Report, progress
from holdfast.store import Store, open_store
from holdfast.types import Batch, Lease, NewEvent
from tests.server.fronts import Front, front
from tests.servers import free_port, postgres

ROOT = Path(__file__).parents[1]
TOKEN = "hf_benchmark"
PAYLOAD = json.dumps({"text": "what an event says " * 16})


@dataclass(frozen=True, slots=True)
class Scale:
    """How much of everything."""

    clients: int
    events: int
    rounds: int
    latencies: int
    replayed: int
    idle: int


FULL = Scale(clients=500, events=200, rounds=3, latencies=400, replayed=100_000, idle=2000)
QUICK = Scale(clients=100, events=50, rounds=1, latencies=100, replayed=20_000, idle=200)


class Readers:
    """The process of the clients."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(
        cls, url: str, streams: Sequence[tuple[int, str]], *, expected: int, noting: bool = False
    ) -> "Readers":
        """Start it and wait until every stream has begun."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "benchmarks.stream_readers"),
            cwd=ROOT,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=2**26,
        )
        where = urlsplit(url)
        order = {"host": where.hostname, "port": where.port, "token": TOKEN, "streams": streams}
        readers = cls(process)
        await readers.tell(json.dumps(order | {"expected": expected, "noting": noting}))
        if (said := await readers.hear()) != "ready":
            raise RuntimeError(f"the readers said {said!r}")
        return readers

    async def tell(self, line: str) -> None:
        """Send a line."""
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        await self._process.stdin.drain()

    async def hear(self) -> str:
        """Return the next line."""
        assert self._process.stdout is not None
        return (await self._process.stdout.readline()).decode().strip()

    async def result(self) -> dict[str, Any]:
        """Wait until all have what they expect."""
        found = json.loads(await self.hear())
        await self._process.wait()
        return found


class Writer:
    """Writes events into sessions of its own."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def session(self) -> Lease:
        """Return a new session that is held."""
        holder = await self._store.join("benchmark", ttl=3600)
        made = await self._store.create_session(agent="bench", owner="bench")
        return await self._store.acquire(made.id, holder)

    async def write(self, lease: Lease, count: int = 1) -> float:
        """Write some events and return when they were committed, as far as anybody knows."""
        await self._store.write(
            lease, Batch(events=[NewEvent(kind="message", payload=PAYLOAD) for _ in range(count)])
        )
        return time.monotonic()


@dataclass(frozen=True, slots=True)
class Delivered:
    """What it took to bring events to all clients."""

    deliveries: int
    seconds: float
    cpu: float
    reads: int

    @property
    def rate(self) -> float:
        """Deliveries per second."""
        return self.deliveries / self.seconds

    @property
    def cost(self) -> float:
        """The processor's microseconds for one delivery."""
        return self.cpu / self.deliveries * 1e6


def path_of(lease: Lease) -> str:
    return f"/api/sessions/{lease.session_id}/events"


async def _ours(server: Front, writer: Writer, scale: Scale, *, paced: float) -> Delivered:
    """Write events, as fast as it goes or one in `paced` seconds, and wait until every client has them all."""
    lease = await writer.session()
    await writer.write(lease)
    readers = await Readers.start(server.url, [(0, path_of(lease))] * scale.clients, expected=scale.events)
    process = psutil.Process(server.process.pid)
    before, started = process.cpu_times(), time.monotonic()
    for number in range(1, scale.events):
        await writer.write(lease)
        await asyncio.sleep(max(0, started + number * paced - time.monotonic()))
    return _delivered(process, before, started, scale, await readers.result())


async def _bare(blocks: bytes, scale: Scale, *, paced: float) -> Delivered:
    """Let a bare Starlette stream bring the same bytes to as many clients, at the same pace."""
    with tempfile.TemporaryDirectory() as folder:
        file, port = Path(folder) / "blocks", free_port()
        running = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "benchmarks.stream_bare", str(port), str(file), str(paced)), cwd=ROOT
        )
        try:
            await _listens(port)
            url = f"http://127.0.0.1:{port}"
            readers = await Readers.start(url, [(0, "/")] * scale.clients, expected=scale.events)
            process = psutil.Process(running.pid)
            before, started = process.cpu_times(), time.monotonic()
            file.with_suffix(".new").write_bytes(blocks)
            file.with_suffix(".new").rename(file)
            return _delivered(process, before, started, scale, await readers.result())
        finally:
            running.kill()
            await running.wait()


def _delivered(
    process: psutil.Process, before: Any, started: float, scale: Scale, found: dict[str, Any]
) -> Delivered:
    after = process.cpu_times()
    cpu = after.user + after.system - before.user - before.system
    return Delivered(scale.clients * scale.events, found["ended"] - started, cpu, found["reads"])


async def _listens(port: int) -> None:
    while True:
        try:
            _, connection = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.02)
        else:
            connection.close()
            return


async def _deliveries(report: Report, server: Front, writer: Writer, store: Store, scale: Scale) -> None:
    """Compare deliveries with those of a bare stream."""
    from holdfast.operations.channel import encode

    lease = await writer.session()
    await writer.write(lease, scale.events)
    blocks = b"".join(map(encode, await store.events(lease.session_id, limit=scale.events)))
    flat: list[tuple[Delivered, Delivered]] = []
    single: list[tuple[Delivered, Delivered]] = []
    for _ in range(scale.rounds):
        for pace, results in ((0, flat), (scale.clients * 120e-6, single)):
            ours = await _ours(server, writer, scale, paced=pace)
            results.append((ours, await _bare(blocks, scale, paced=pace)))
    report.add(
        f"deliveries/s to {scale.clients} clients, times those of a bare stream of the same bytes",
        median(ours.rate / bare.rate for ours, bare in flat),
        "x",
        at_least=0.5,
        detail=f"{median(a.rate for a, _ in flat):,.0f}/s, bare {median(b.rate for _, b in flat):,.0f}/s",
    )
    report.add(
        "one event at a time: the bare stream's processor time for a delivery, times ours",
        median(bare.cost / ours.cost for ours, bare in single),
        "x",
        at_least=0.5,
        detail=(
            f"{median(a.cost for a, _ in single):.1f} us, bare {median(b.cost for _, b in single):.1f} us; "
            f"{median(a.deliveries / a.reads for a, _ in single):.2f} events a read"
        ),
    )


async def _latency(report: Report, server: Front, writer: Writer, scale: Scale) -> None:
    """Measure the time from the commit to the byte in a client's hands."""
    for sessions, bar in ((50, True), (1, False)):
        leases = [await writer.session() for _ in range(sessions)]
        for lease in leases:
            await writer.write(lease)
        per_session = max(scale.latencies // sessions, 1)
        streams = [(number % sessions, path_of(leases[number % sessions])) for number in range(scale.clients)]
        readers = await Readers.start(server.url, streams, expected=per_session + 1, noting=True)
        committed: dict[tuple[int, int], float] = {}
        for number in range(per_session):
            for topic, lease in enumerate(leases):
                committed[topic, number + 2] = await writer.write(lease)
                await asyncio.sleep(0.01 if sessions > 1 else 0.08)
        seen = (await readers.result())["seen"]
        waited = sorted(max(0.0, at - committed[topic, seq]) for topic, seq, at in seen if seq > 1)
        where = f"{scale.clients} clients of {sessions} session" + ("s" if sessions > 1 else "")
        report.add(
            f"commit to byte, {where}, p99",
            waited[int(len(waited) * 0.99)] * 1e3,
            "ms",
            at_most=15 if bar else None,
            detail=f"p50 {median(waited) * 1e3:.1f} ms, worst {waited[-1] * 1e3:.1f} ms, {len(waited):,} of them",
        )


def _peak(pid: int) -> float:
    """Return the most memory that a process ever had since the last reset, in MB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise AssertionError


def _reset_peak(pid: int) -> None:
    Path(f"/proc/{pid}/clear_refs").write_text("5")


async def _replay(report: Report, server: Front, writer: Writer, scale: Scale) -> None:
    """Compare the memory that a long replay needs with that of a short one."""
    peaks: list[float] = []
    seconds = 0.0
    for count in (scale.replayed // 10, scale.replayed):
        lease = await writer.session()
        for _ in range(count // 500):
            await writer.write(lease, 500)
        _reset_peak(server.process.pid)
        started = time.monotonic()
        readers = await Readers.start(server.url, [(0, path_of(lease))], expected=count)
        seconds = (await readers.result())["ended"] - started
        peaks.append(_peak(server.process.pid))
    report.add(
        f"replay of {scale.replayed:,} events: memory beyond that for {scale.replayed // 10:,}",
        max(0.0, peaks[1] - peaks[0]),
        "MB",
        at_most=4,
        detail=f"{scale.replayed / seconds:,.0f} events/s, {peaks[1]:.0f} MB at the most",
    )


async def _idle(report: Report, url: str, scale: Scale) -> None:
    """Measure what clients cost that only wait, each at a session of its own."""
    async with open_store(url) as store:
        sessions = [(await store.create_session(agent="bench", owner="bench")).id for _ in range(scale.idle)]
    async with front(url, "--role", "api", token=TOKEN) as server:
        process = psutil.Process(server.process.pid)
        # What the first clients load stays for all of them.
        warm = [(0, f"/api/sessions/{session}/events") for session in sessions[:20]]
        warming = await Readers.start(server.url, warm, expected=0)
        await warming.tell("stop")
        await warming.result()
        before = process.memory_info().rss
        streams = [(0, f"/api/sessions/{session}/events") for session in sessions]
        readers = await Readers.start(server.url, streams, expected=0)
        cpu = process.cpu_times()
        await asyncio.sleep(5)
        spent = process.cpu_times()
        after = process.memory_info().rss
        await readers.tell("stop")
        await readers.result()
    report.add(
        f"{scale.idle:,} idle clients of as many sessions: memory",
        (after - before) / 2**20,
        "MB",
        at_most=100,
        detail=(
            f"{after / 2**20:.0f} MB in all, {(after - before) / scale.idle / 1024:.0f} KB each, "
            f"{(spent.user + spent.system - cpu.user - cpu.system) / 5 * 100:.0f} % of a processor"
        ),
    )


async def main(scale: Scale, only: Sequence[str]) -> int:
    report = Report("stream")
    with postgres() as server:
        url = await server.create_database("stream")
        async with open_store(url) as store:
            writer = Writer(store)
            async with front(url, "--role", "api", token=TOKEN) as serving:
                if "deliveries" in only:
                    progress("deliveries")
                    await _deliveries(report, serving, writer, store, scale)
                if "latency" in only:
                    progress("latency")
                    await _latency(report, serving, writer, scale)
                if "replay" in only:
                    progress("replay")
                    await _replay(report, serving, writer, scale)
        if "idle" in only:
            progress("idle clients")
            await _idle(report, await server.create_database("idle"), scale)
    return report.finish()


PARTS = ("deliveries", "latency", "replay", "idle")
if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="less of everything, to see whether it works")
    parser.add_argument("--only", choices=PARTS, action="append", help="only this part; may be repeated")
    given = parser.parse_args()
    sys.exit(asyncio.run(main(QUICK if given.quick else FULL, given.only or PARTS)))
