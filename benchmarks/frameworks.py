"""What a framework's session costs in our store, against the framework's own: each claim is a bar that must hold.

A LangGraph chat with messages of 1 KB runs for 500 turns with our saver and with LangGraph's savers for SQLite and PostgreSQL. The sides
take turns, one turn of the chat each. Run it as `python -m benchmarks.frameworks --peer`; without `--peer` only our own growth is measured.
"""

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import asyncpg

from benchmarks.frameworks_sides import MESSAGE_BYTES
from benchmarks.peers import peer_python, process, ready
from benchmarks.report import Report, progress
from holdfast.store import open_store
from tests.servers import postgres

if TYPE_CHECKING:
    import subprocess

PEERS = {
    "sqlite": ("langgraph-checkpoint-sqlite", ["langgraph-checkpoint-sqlite==3.1.2"]),
    "postgres": (
        "langgraph-checkpoint-postgres",
        ["langgraph-checkpoint-postgres==3.2.0", "psycopg[binary]"],
    ),
}
SAME = ("langgraph", "langgraph-checkpoint", "langchain-core", "pydantic", "ormsgpack")
"""What both sides use, in the same version."""
WINDOW = 10
"""How many turns stand for turn 5 and for the last turn."""
FULL, QUICK = 500, 40
"""The number of turns."""


@dataclass(slots=True)
class Side:
    """A process that runs the chat."""

    started: "subprocess.Popen[str]"
    times: list[dict[str, Any]]

    def turn(self, *, get: bool) -> None:
        """Do one turn."""
        assert self.started.stdin is not None
        assert self.started.stdout is not None
        print("get" if get else "turn", file=self.started.stdin, flush=True)
        self.times.append(json.loads(self.started.stdout.readline()))

    def median(self, what: str, *, late: bool) -> float:
        """Return the median of the turns around turn 5, or of the last turns."""
        window = self.times[-WINDOW:] if late else self.times[2 : 2 + WINDOW]
        return median(median(one[what]) if what == "puts" else one[what] for one in window)

    def stop(self) -> None:
        """Let it close its store."""
        self.started.communicate()


def _start(stack: ExitStack, python: str, side: str, url: str) -> Side:
    started = stack.enter_context(process(python, "-m", "benchmarks.frameworks_sides", side, url))
    ready(started)
    return Side(started, [])


def _milliseconds(first: float, second: float) -> str:
    return f"{first * 1e3:.2f} ms, {second * 1e3:.2f} ms"


def _measure(report: Report, engine: str, ours: Side, theirs: Side | None, turns: int) -> None:
    sides = [ours] if theirs is None else [ours, theirs]
    for number in range(turns):
        for side in sides:
            side.turn(get=not 2 + WINDOW <= number < turns - WINDOW)
        sides.reverse()
        if number % 100 == 99:
            progress(f"  {engine}: turn {number + 1}")
    early, late = (ours.median("puts", late=late) for late in (False, True))
    report.add(
        f"{engine}: put at turn {turns} / put at turn 5",
        late / early,
        at_most=1.3,
        detail=_milliseconds(late, early),
    )
    if theirs is None:
        return
    name = PEERS[engine][0]
    for what, title in (
        ("get", "get_tuple"),
        ("first_get", "get_tuple of a new saver"),
        ("turn", "a whole turn"),
    ):
        mine, other = (side.median(what, late=True) for side in (ours, theirs))
        report.add(
            f"{engine}: {title} at turn {turns}, ours / {name}",
            mine / other,
            at_most=1.0,
            detail=_milliseconds(mine, other),
        )
    mine, other = (side.median("puts", late=True) for side in (ours, theirs))
    report.add(
        f"{engine}: put at turn {turns}, ours / {name}", mine / other, detail=_milliseconds(mine, other)
    )


async def _record_bytes(url: str) -> int:
    """Return the bytes of all records, with their keys."""
    size = 0
    async with open_store(url) as store:
        for session in (await store.sessions(owner="local")).items:
            for kind in ("checkpoint", "write", "value", "element", "text"):
                last: str | None = None
                while page := await store.records(session.id, kind, after=last, limit=1000):
                    size += sum(len(f"{session.id}{one.kind}{one.key}{one.body}".encode()) for one in page)
                    last = page[-1].key
    return size


async def _database_bytes(url: str) -> int:
    if not url.startswith("postgres"):
        path = Path(url.removeprefix("sqlite:///"))
        return sum(file.stat().st_size for file in path.parent.glob(f"{path.name}*"))
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetchval("SELECT pg_database_size(current_database()) - 7500000")
    finally:
        await connection.close()


def _run(turns: int, engines: Sequence[str], *, with_peer: bool, peer_venv: Path | None) -> int:
    report = Report("frameworks")
    content = turns * 2 * MESSAGE_BYTES
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-bench-"))
        python = ""
        if with_peer:
            packages = [f"{name}=={version(name)}" for name in SAME]
            packages += [package for _, group in PEERS.values() for package in group]
            python = str(stack.enter_context(peer_python(peer_venv, packages)))
        for engine in engines:
            progress(f"{engine}: {turns} turns")
            if engine == "postgres":
                server = stack.enter_context(postgres())
                urls = [asyncio.run(server.create_database(name)) for name in ("ours", "theirs")]
            else:
                urls = [f"sqlite:///{folder}/ours.db", f"sqlite:///{folder}/theirs.db"]
            ours = _start(stack, sys.executable, "holdfast", urls[0])
            theirs = _start(stack, python, PEERS[engine][0], urls[1]) if with_peer else None
            _measure(report, engine, ours, theirs, turns)
            for side in filter(None, (ours, theirs)):
                side.stop()
            report.add(
                f"{engine}: bytes of the records with their keys / bytes of the texts",
                asyncio.run(_record_bytes(urls[0])) / content,
            )
            report.add(
                f"{engine}: size of the database / bytes of the texts",
                asyncio.run(_database_bytes(urls[0])) / content,
                at_most=2.0,
                detail=f"{PEERS[engine][0]} {asyncio.run(_database_bytes(urls[1])) / content:,.1f}"
                if with_peer
                else "",
            )
    return report.finish()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.frameworks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="do little of everything: to see that it runs")
    parser.add_argument("--engine", choices=PEERS, action="append", help="measure only this")
    parser.add_argument(
        "--peer",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="compare with LangGraph's own savers",
    )
    parser.add_argument(
        "--peer-venv", type=Path, help="where they are installed, created if missing; else temporary"
    )
    given = parser.parse_args()
    turns = QUICK if given.quick else FULL
    return _run(turns, given.engine or list(PEERS), with_peer=given.peer, peer_venv=given.peer_venv)


if __name__ == "__main__":
    sys.exit(main())
