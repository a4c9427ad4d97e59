"""What a session of the OpenAI Agents SDK costs per turn, against the SDK's own sessions on SQLite: each claim is a bar that must hold.

A turn reads the history, stores the question, and stores the answer of two items. All sides sync each commit (`synchronous=FULL`), and take
turns. The SDK is installed into an environment of its own, and everything is measured there.
"""

import argparse
import asyncio
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.peers import ROOT, peer_python
from benchmarks.report import Report, progress, seconds, side_by_side

PACKAGES = [f"{ROOT}[openai-agents]", "openai-agents[sqlalchemy]==0.24.0", "aiosqlite"]
LENGTH = 40
"""The items of the conversation before each block of turns."""
PAUSE_SECONDS = 0.3
"""Long enough for Holdfast to release the session, as it does while a model or a person takes time."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How many turns are in a block, how many blocks there are, and how many turns have a pause before them."""

    turns: int
    blocks: int
    paced: int


FULL = Scale(turns=10, blocks=30, paced=30)
QUICK = Scale(turns=3, blocks=2, paced=2)


def _items(count: int) -> list[Any]:
    return [{"role": "assistant", "content": "some words of a conversation " * 10} for _ in range(count)]


async def _turn(session: Any) -> None:
    await session.get_items()
    await session.add_items(_items(1))
    await session.add_items(_items(2))


async def _turns(session: Any, count: int) -> None:
    for _ in range(count):
        await _turn(session)


def _sqlite_session(folder: str) -> Any:
    """Return the SDK's session, whose connections are as durable as ours."""
    base: Any = import_module("agents").SQLiteSession

    def configure(_: object, connection: Any) -> None:
        base._configure_connection(connection)  # noqa: SLF001 - there is no setting for it
        connection.execute("PRAGMA synchronous = FULL")

    return type("Durable", (base,), {"_configure_connection": configure})("talk", f"{folder}/sqlite.db")


def _sqlalchemy_session(folder: str) -> Any:
    engine = import_module("sqlalchemy.ext.asyncio").create_async_engine(
        f"sqlite+aiosqlite:///{folder}/sqlalchemy.db"
    )

    def configure(connection: Any, _: object) -> None:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")

    import_module("sqlalchemy").event.listen(engine.sync_engine, "connect", configure)
    session: Any = import_module("agents.extensions.memory.sqlalchemy_session").SQLAlchemySession
    return session("talk", engine=engine, create_tables=True)


async def _compare(report: Report, ours: Any, name: str, theirs: Any, scale: Scale) -> None:
    async def prepare() -> None:
        for session in (ours, theirs):
            await session.clear_session()
            await session.add_items(_items(LENGTH))

    def block(session: Any) -> Callable[[], Awaitable[float]]:
        return lambda: seconds(_turns(session, scale.turns), scale.turns)

    def paced(session: Any) -> Callable[[], Awaitable[float]]:
        async def turn() -> float:
            await asyncio.sleep(PAUSE_SECONDS)
            return await seconds(_turn(session), 1)

        return turn

    progress(name)
    duel = await side_by_side(block(ours), block(theirs), blocks=scale.blocks, prepare=prepare)
    report.add(f"a turn, ours / {name}", duel.ratio, at_most=1, detail=duel.times("ours", "theirs"))
    await prepare()
    duel = await side_by_side(paced(ours), paced(theirs), blocks=scale.paced)
    report.add(
        f"a turn after a pause, ours / {name}", duel.ratio, at_most=1, detail=duel.times("ours", "theirs")
    )


async def _measure(scale: Scale) -> int:
    report = Report("openai_session")
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        ours: Any = import_module("holdfast.frameworks.openai_agents").HoldfastSession(
            "talk", f"{folder}/ours.db"
        )
        sqlite, sqlalchemy = _sqlite_session(folder), _sqlalchemy_session(folder)
        await _compare(report, ours, "SQLiteSession", sqlite, scale)
        await _compare(report, ours, "SQLAlchemySession", sqlalchemy, scale)
        ours.close()
        sqlite.close()
        await sqlalchemy.engine.dispose()
    return report.finish()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.openai_session", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="do little of everything: to see that it runs")
    parser.add_argument(
        "--peer-venv", type=Path, help="where the SDK is installed, created if missing; else temporary"
    )
    parser.add_argument("--installed", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.installed:
        return asyncio.run(_measure(QUICK if given.quick else FULL))
    with peer_python(given.peer_venv, PACKAGES) as python:
        command = [str(python), "-m", "benchmarks.openai_session", "--installed", *["--quick"] * given.quick]
        return subprocess.run(command, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
