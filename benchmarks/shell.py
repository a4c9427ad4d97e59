"""The cost of the shell log on both engines: search, sweep, the way of a first byte, and a lot of output.

Run it as `python -m benchmarks.shell`.
"""

import argparse
import asyncio
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import asyncpg

from benchmarks.report import Report, progress, seconds, side_by_side
from benchmarks.store import Engine, Sqlite, open_engine
from holdfast.commands import Output
from holdfast.config import load_settings
from holdfast.ids import new_id
from holdfast.shell import ShellService
from holdfast.store import Store, open_store

OUTPUTS_EACH = 99
"""With its command that makes a hundred events."""
BODY = "A line of output that is neither short nor long.\n" * 4


@dataclass(frozen=True, slots=True)
class Scale:
    """How much of everything is done."""

    many: int = 100_000
    few: int = 1_000
    blocks: int = 40
    pages: int = 20
    first_bytes: int = 20
    output: int = 100_000_000


FULL = Scale()
QUICK = Scale(many=5_000, blocks=6, first_bytes=4, output=5_000_000)


async def _fill(engine: Engine, url: str, events: int) -> None:
    """Add commands that have just ended, with their output, all at once."""
    now = time.time_ns() // 1000 - 10 * events
    commands: list[tuple[object, ...]] = []
    outputs: list[tuple[object, ...]] = []
    for number in range(events // (OUTPUTS_EACH + 1)):
        command_id, at = new_id(), now + number * (OUTPUTS_EACH + 1)
        ended = at + OUTPUTS_EACH
        commands.append(
            (
                command_id,
                "bench",
                "ls",
                "h",
                "here",
                1,
                "done",
                0,
                0,
                OUTPUTS_EACH,
                0,
                0,
                0,
                0,
                at,
                ended,
                ended,
            )
        )
        for order in range(OUTPUTS_EACH):
            code = 0 if order == OUTPUTS_EACH - 1 else None
            outputs.append((command_id, order, "bench", new_id(), BODY, code, 0, at + order + 1))
    tables = {
        "commands": (
            (
                "id owner command holder host pid state stop_requested exit_code outputs stdout_bytes"
                " stderr_bytes left_out_bytes damaged started_at last_at ended_at"
            ),
            commands,
        ),
        "outputs": ("command_id number owner id stdout exit_code damaged at", outputs),
    }
    if isinstance(engine, Sqlite):
        connection = sqlite3.connect(url.removeprefix("sqlite:///"))
        for table, (names, rows) in tables.items():
            marks = ", ".join("?" * len(names.split()))
            columns = ", ".join(names.split())
            connection.executemany(f"INSERT INTO {table} ({columns}) VALUES ({marks})", rows)
        connection.commit()
        connection.close()
    else:
        server = await asyncpg.connect(url, server_settings={"search_path": "holdfast"})
        for table, (names, rows) in tables.items():
            await server.copy_records_to_table(table, records=rows, columns=names.split())
        await server.close()


async def _search(report: Report, engine: Engine, scale: Scale) -> None:
    """Measure the newest hundred events, and a sweep that finds nothing, among many against among few."""
    urls = [await engine.new_url() for _ in range(2)]
    async with open_store(urls[0]) as many, open_store(urls[1]) as few:
        await _fill(engine, urls[0], scale.many)
        await _fill(engine, urls[1], scale.few)

        async def pages(store: Store) -> None:
            for _ in range(scale.pages):
                page = await store.shell_events(newest_first=True, limit=100)
                assert len(page.items) == 100

        duel = await side_by_side(
            lambda: seconds(pages(many), scale.pages),
            lambda: seconds(pages(few), scale.pages),
            blocks=scale.blocks,
        )
        report.add(
            f"{engine.name}: search of the last 100 events among {scale.many:,} / among {scale.few:,}",
            duel.ratio,
            at_most=1.3,
            detail=duel.times("many", "few"),
        )

        async def sweep() -> float:
            started = time.perf_counter()
            assert await many.purge_commands(older_than=24 * 60 * 60) == 0
            return time.perf_counter() - started

        report.add(
            f"{engine.name}: a sweep that deletes nothing among {scale.many:,}",
            max([await sweep() for _ in range(20)]) * 1000,
            "ms",
            at_most=10,
            detail="the slowest of 20",
        )


async def _first_byte(report: Report, engine: Engine, scale: Scale) -> None:
    """Measure from when a slow command prints until a poller in another process has seen it."""
    url = await engine.new_url()
    times: list[float] = []
    async with open_store(url) as store, ShellService(store) as service:
        poller = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "benchmarks.shell", "--poll", url),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert poller.stdin
        assert poller.stdout
        await poller.stdout.readline()
        for _ in range(scale.first_bytes):
            command = await service.start("sleep 0.3; date +%s.%N; sleep 0.3")
            poller.stdin.write(f"{command.id}\n".encode())
            seen = json.loads(await poller.stdout.readline())
            times.append(seen["at"] - float(seen["text"]))
        poller.stdin.close()
        await poller.wait()
    report.add(
        f"{engine.name}: first byte of a slow command until a poller has it",
        max(times) * 1000,
        "ms",
        at_most=150,
        detail=f"the slowest of {len(times)}; median {median(times) * 1000:.0f} ms; polled every 10 ms",
    )


async def _poll(url: str) -> None:
    """For each command that is named, poll until it has written something, and say what and when."""
    async with open_store(url, upgrade=False) as store:
        print("ready", flush=True)
        while command_id := (await asyncio.to_thread(sys.stdin.readline)).strip():
            text = None
            while text is None:
                await asyncio.sleep(0.01)
                page = await store.shell_events(kind="output", command_id=command_id, limit=100)
                text = next((output.stdout for output in page.items if isinstance(output, Output)), None)
            print(json.dumps({"text": text.strip(), "at": time.time()}), flush=True)


async def _flood(report: Report, engine: Engine, scale: Scale) -> None:
    """Measure a lot of output through the log, and into a file that is synced, in turns."""
    url = await engine.new_url()
    settings = load_settings(shell_output_bytes=4 * scale.output)
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        source, target = Path(folder) / "source", Path(folder) / "target"
        source.write_text(("0123456789abcdef" * 6 + "\n") * (scale.output // 97))
        size = source.stat().st_size

        async def into_file() -> float:
            started = time.perf_counter()
            with target.open("wb") as file:
                cat = await asyncio.create_subprocess_exec("cat", str(source), stdout=file)
                assert await cat.wait() == 0
                os.fsync(file.fileno())
            return time.perf_counter() - started

        async with open_store(url) as store, ShellService(store, settings=settings) as service:

            async def through_log() -> float:
                started = time.perf_counter()
                command = await service.start(f"cat {source}")
                async for output in service.follow(command.id, after=size):
                    assert output.exit_code == 0
                while (await store.command(command.id)).ended_at is None:
                    await asyncio.sleep(0.001)
                spent = time.perf_counter() - started
                assert (await store.command(command.id)).stdout_bytes == size
                await service.clear()
                return spent

            duel = await side_by_side(through_log, into_file, blocks=3)
    report.add(
        f"{engine.name}: {scale.output // 1_000_000} MB through the log / cat into a file, synced",
        duel.ratio,
        detail=f"log {median(duel.first):.2f} s, file {median(duel.second):.2f} s",
    )


async def _measure(engines: Sequence[str], scale: Scale) -> int:
    report = Report("shell")
    for name in engines:
        with open_engine(name) as engine:
            for topic in (_search, _first_byte, _flood):
                progress(f"{name}: {topic.__name__.strip('_').replace('_', ' ')}")
                await topic(report, engine, scale)
    return report.finish()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.shell", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="do little of everything: to see that it runs")
    parser.add_argument("--engine", choices=["sqlite", "postgres"], help="measure this engine only")
    parser.add_argument("--poll", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.poll:
        asyncio.run(_poll(given.poll))
        return 0
    engines = [given.engine] if given.engine else ["sqlite", "postgres"]
    return asyncio.run(_measure(engines, QUICK if given.quick else FULL))


if __name__ == "__main__":
    sys.exit(main())
