"""The agents that worker processes serve in the drills of fairness: a turn lasts until a file exists, and then for the seconds in HOLD."""

import asyncio
import os
from pathlib import Path

from holdfast import Turn
from holdfast import agent as function_agent


async def _hold(turn: Turn) -> None:
    """Log the process. The message names the log and the file."""
    log, end = map(Path, turn.text.split())
    with log.open("a") as file:
        file.write(f"{os.getpid()}\n")
    while not end.exists():
        await asyncio.sleep(0.01)
    await asyncio.sleep(float(os.environ["HOLD"]))


@function_agent("one")
async def one(turn: Turn) -> None:
    """Serve the sessions of one agent."""
    await _hold(turn)


@function_agent("two")
async def two(turn: Turn) -> None:
    """Serve those of another one."""
    await _hold(turn)


agents = [one, two]
