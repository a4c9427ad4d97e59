"""How cost grows: a session of 10,000 steps, 10,000 sessions, and a session of 1,000,000 events.

Each grows in one store, and at a hundredth, a thirtieth, a tenth, a third and the whole of it every operation is timed.
What is flat stays flat: each operation has a bar for its time at the end against its time at the beginning. A step is what the
recorder writes of one: two batches, with a request of 2 KB and a response. `--plot FILE` draws it.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import asyncpg

from benchmarks.media import resident
from benchmarks.report import Report, progress
from holdfast.ids import new_id
from holdfast.store import Store, open_store
from holdfast.types import Batch, Checkpoint, Effect, Lease, Message, NewEvent, Run, Segment
from tests.servers import postgres

PARTS = (0.01, 0.03, 0.1, 0.3, 1.0)
TIMES = 30
FLAT = 1.5
"""An operation may take so many times as long at the end: these are timings minutes apart, not turns."""


@dataclass
class Growth:
    """What was found at each size: milliseconds of every operation, bytes stored for a byte of content, memory."""

    what: str
    sizes: list[int] = field(default_factory=list[int])
    times: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    stored: list[float] = field(default_factory=list[float])
    memory: list[float] = field(default_factory=list[float])


Operation = Callable[[], Awaitable[object]]


async def timed(operation: Operation) -> float:
    """Return the milliseconds that it takes, at the median."""
    found: list[float] = []
    for _ in range(TIMES):
        started = time.perf_counter()
        await operation()
        found.append((time.perf_counter() - started) * 1e3)
    return median(found)


async def grow(
    what: str,
    most: int,
    add: Callable[[int], Awaitable[int]],
    operations: dict[str, Operation],
    stored: Callable[[], Awaitable[int]],
) -> Growth:
    """Add until there is all of it, and time the operations on the way. `add` returns how many bytes it added."""
    growth = Growth(what)
    size = content = 0
    for part in PARTS:
        content += await add(int(most * part) - size)
        size = int(most * part)
        growth.sizes.append(size)
        for name, operation in operations.items():
            growth.times.setdefault(name, []).append(await timed(operation))
        growth.stored.append(await stored() / content)
        growth.memory.append(resident())
        times = ", ".join(f"{name} {found[-1]:.2f} ms" for name, found in growth.times.items())
        progress(f"  {size:,} {what}: {times}, {growth.stored[-1]:.2f} bytes a byte, {resident():.0f} MB")
    return growth


async def held(store: Store) -> Lease:
    """Return the lease of a new session."""
    session = await store.create_session(agent="bench", owner="bench")
    return await store.acquire(session.id, await store.join("bench", ttl=3600))


async def steps(store: Store, most: int, stored: Callable[[], Awaitable[int]]) -> Growth:
    """Grow a session by steps of an agent."""
    lease = await held(store)
    await store.write(lease, Batch(segments=[Segment(number=1)]))
    request = json.dumps(
        {"kind": "request", "parts": [{"part_kind": "tool-return", "content": "0123" * 512}]}
    )
    response = json.dumps({"kind": "response", "parts": [{"part_kind": "tool-call", "tool_name": "work"}]})
    length = 0

    def batch(kind: str, body: str, told: tuple[str, ...], effect: Effect) -> Batch:
        nonlocal length
        events = [NewEvent(kind="message", message=(1, length)), *(NewEvent(kind=name) for name in told)]
        length += 1
        checkpoint = Checkpoint(id=new_id(), segment=1, length=length, kind=kind)  # pyright: ignore[reportArgumentType]
        return Batch(
            events=events,
            messages=[Message(segment=1, position=length - 1, body=body)],
            checkpoints=[checkpoint],
            effects=[effect],
        )

    async def step() -> None:
        call = Effect(run_id="run", call_id=f"call-{length}", tool="work")
        told = ("model_request_completed", "tool_call_started")
        await store.write(lease, batch("interrupted", response, told, call))
        done = Effect(run_id="run", call_id=call.call_id, tool="work", state="completed", message=(1, length))
        told = ("tool_call_completed", "model_request_started")
        await store.write(lease, batch("settled", request, told, done))

    async def add(count: int) -> int:
        for _ in range(count):
            await step()
        return count * (len(request) + len(response))

    operations: dict[str, Operation] = {
        "record a step": step,
        "find the last checkpoint": lambda: store.checkpoints(session_id=lease.session_id, limit=1),
        "read the last 10 messages": lambda: store.history(
            lease.session_id, segment=1, length=length, after=length - 11
        ),
    }
    return await grow("steps", most, add, operations, stored)


async def sessions(store: Store, most: int, stored: Callable[[], Awaitable[int]]) -> Growth:
    """Grow a store by sessions that have been talked to."""
    holder = await store.join("bench", ttl=3600)
    text = json.dumps({"text": "0123456789" * 50})

    async def create() -> None:
        session = await store.create_session(agent="idle", owner="bench")
        await store.submit(session.id, "message", text)

    async def add(count: int) -> int:
        for _ in range(count):
            await create()
        return count * len(text)

    ready = (await store.create_session(agent="busy", owner="bench")).id

    async def claim() -> None:
        await store.submit(ready, "message", text)
        (work,) = await store.next_work(holder, agents=["busy"])
        await store.release(work.lease)

    operations: dict[str, Operation] = {
        "create one and submit": create,
        "submit, claim it, let go": claim,
        "list the first 50": lambda: store.sessions(owner="bench", limit=50),
    }
    return await grow("sessions", most, add, operations, stored)


async def events(store: Store, most: int, stored: Callable[[], Awaitable[int]]) -> Growth:
    """Grow a session by events."""
    lease = await held(store)
    payload = json.dumps({"text": "0123456789" * 20})
    seq = 0

    async def write(count: int = 1) -> None:
        nonlocal seq
        seq = await store.write(lease, Batch(events=[NewEvent(kind="tick", payload=payload)] * count))

    async def add(count: int) -> int:
        for start in range(0, count, 500):
            await write(min(500, count - start))
        return count * len(payload)

    async def watch() -> None:
        watching = store.watch(lease.session_id, after=seq - 1)
        await anext(watching)
        await watching.aclose()

    async def list_run() -> None:
        nonlocal seq
        run = new_id()
        ticks = [NewEvent(kind="tick", run_id=run)] * 10
        checkpoint = Checkpoint(id=new_id(), run_id=run, segment=1, length=0)
        seq = await store.write(lease, Batch(runs=[Run(id=run)], events=ticks, checkpoints=[checkpoint]))
        assert len(await store.events(lease.session_id, run_id=run)) == len(ticks)
        assert len((await store.checkpoints(run_id=run)).items) == 1

    operations: dict[str, Operation] = {
        "write one": write,
        "read the last 100": lambda: store.events(lease.session_id, after=seq - 100),
        "begin to watch at the end": watch,
        "write a run and list it": list_run,
    }
    return await grow("events", most, add, operations, stored)


GROWN = {steps: 10_000, sessions: 10_000, events: 1_000_000}


async def databases(
    engines: list[str], folder: Path
) -> AsyncGenerator[tuple[str, str, Store, Callable[[], Awaitable[int]]], None]:
    """Hand out a new store of each engine for each growth, with a way to ask how many bytes it takes."""
    async with AsyncExitStack() as stack:
        server = stack.enter_context(postgres()) if "postgres" in engines else None
        for engine in engines:
            for growth in GROWN:
                name = f"growth_{growth.__name__}"
                if server is None or engine == "sqlite":
                    file = folder / f"{name}.db"

                    async def stored(file: Path = file) -> int:
                        return file.stat().st_size

                    async with open_store(f"sqlite:///{file}") as store:
                        yield engine, growth.__name__, store, stored
                    continue
                await server.create_database(name)
                connection = await asyncpg.connect(server.url())

                async def size(
                    connection: "asyncpg.Connection[asyncpg.Record]" = connection, name: str = name
                ) -> int:
                    return await connection.fetchval("SELECT pg_database_size($1) - 7500000", name)

                async with open_store(server.url(name)) as store:
                    yield engine, growth.__name__, store, size
                await connection.close()


async def measure(engines: list[str], share: float, plot: Path | None) -> int:
    """Let everything grow and say what became of it."""
    report = Report("growth")
    drawn: list[tuple[str, Growth]] = []
    by_name = {growth.__name__: growth for growth in GROWN}
    with tempfile.TemporaryDirectory(prefix="holdfast-growth-") as folder:
        async for engine, name, store, stored in databases(engines, Path(folder)):
            growth = by_name[name]
            progress(f"{engine}: {name}")
            found = await growth(store, int(GROWN[growth] * share), stored)
            drawn.append((engine, found))
            for operation, times in found.times.items():
                report.add(
                    f"{engine}: {operation}, at {found.sizes[-1]:,} {name} / at {found.sizes[0]:,}",
                    times[-1] / times[0],
                    at_most=FLAT,
                    detail=" · ".join(f"{took:.2f}" for took in times) + " ms",
                )
            report.add(f"{engine}: bytes stored for a byte of content, {name}", found.stored[-1])
            report.add(
                f"{engine}: memory gained from first to last, {name}",
                found.memory[-1] - found.memory[0],
                "MB",
                detail=f"{found.memory[-1]:.0f} MB in all",
            )
    if plot is not None:
        plot.write_text(picture(drawn))
    return report.finish()


def picture(drawn: list[tuple[str, Growth]]) -> str:
    """Return the times as a picture: a panel for each growth, a line for each operation, sizes by their order."""
    wide, high, gap = 300, 150, 70
    colours = ("#2563eb", "#d97706", "#059669", "#be185d")
    panels: list[str] = []
    for number, (engine, growth) in enumerate(drawn):
        x0, y0 = 50 + (number % 3) * (wide + gap), 40 + (number // 3) * (high + 110)
        top = max(max(times) for times in growth.times.values()) * 1.15
        body = [
            f'<text x="{x0}" y="{y0 - 12}" font-weight="bold">{engine}: {growth.what}</text>',
            f'<path d="M{x0} {y0}v{high}h{wide}" fill="none" stroke="#888"/>',
            f'<text x="{x0 - 6}" y="{y0 + 8}" text-anchor="end">{top:.1f}</text>',
            f'<text x="{x0 - 6}" y="{y0 + high}" text-anchor="end">0 ms</text>',
        ]
        across = [x0 + wide * at / (len(growth.sizes) - 1) for at in range(len(growth.sizes))]
        body += [
            f'<text x="{x:.0f}" y="{y0 + high + 16}" text-anchor="middle">{size:,}</text>'
            for x, size in zip(across, growth.sizes, strict=True)
        ]
        for line, (name, times) in enumerate(growth.times.items()):
            points = " ".join(
                f"{x:.0f},{y0 + high - high * took / top:.0f}" for x, took in zip(across, times, strict=True)
            )
            colour = colours[line % len(colours)]
            y = y0 + high + 34 + 14 * line
            body += [
                f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>',
                f'<text x="{x0}" y="{y}" fill="{colour}">{name}</text>',
            ]
        panels += body
    width, height = 50 + 3 * (wide + gap), 40 + (len(drawn) + 2) // 3 * (high + 110)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="11">'
        f'<rect width="100%" height="100%" fill="white"/>{"".join(panels)}</svg>\n'
    )


def main() -> int:
    """Measure what was asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description=__doc__)
    parser.add_argument("--engine", choices=["sqlite", "postgres"], action="append")
    parser.add_argument("--quick", action="store_true", help="a fiftieth of it: to see that it runs")
    parser.add_argument("--plot", type=Path, help="where to draw it, as SVG")
    given = parser.parse_args()
    engines = given.engine or ["sqlite", "postgres"]
    return asyncio.run(measure(engines, 0.02 if given.quick else 1.0, given.plot))


if __name__ == "__main__":
    sys.exit(main())
