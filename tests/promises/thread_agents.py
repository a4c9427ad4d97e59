"""A plain agent whose step blocks in a thread, and notes in a file when it begins and ends."""

import os
import time
from typing import Any

import holdfast
from holdfast import Turn


def note(phase: str) -> None:
    file = os.open(os.environ["THREAD_NOTES"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(file, f"{phase} {os.getpid()}\n".encode())
    os.close(file)


def pay() -> str:
    note("begun")
    time.sleep(float(os.environ["HOLD"]))
    note("ended")
    return "paid"


@holdfast.agent("clerk")
async def clerk(turn: Turn) -> Any:
    return await turn.step("pay", pay)
