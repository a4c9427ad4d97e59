"""Starts processes that do the same work one after the other, and kills all but the last at a random time."""

import os
import random
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from typing import Protocol


class Work(Protocol):
    """Continues the work, and acknowledges each part with a line once it is stored. It ends only if it is the last to do so."""

    def __call__(self, acknowledge: Callable[[str], None], *, is_last: bool) -> None: ...


def kill_and_continue(work: Work, *, kills: int, seed: int, most_seconds: float = 0.3) -> list[list[str]]:
    """Return the lines of each process. Call it in a process that has opened nothing, since it forks."""
    chance = random.Random(seed)
    return [_run(work, chance.uniform(0, most_seconds)) for _ in range(kills)] + [_run(work, None)]


def _run(work: Work, seconds: float | None) -> list[str]:
    """Run a process to its end, or kill it that long after its first line."""
    source, target = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(source)
        _be(work, target, is_last=seconds is None)
    os.close(target)
    text = b""
    if seconds is not None:
        assert select.select([source], [], [], 60)[0], "the process does nothing"
        text = os.read(source, 1 << 16)
        time.sleep(seconds)
        os.kill(pid, signal.SIGKILL)
    while piece := os.read(source, 1 << 16):
        text += piece
    os.close(source)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == (0 if seconds is None else -signal.SIGKILL), text
    return text.decode().splitlines()


def _be(work: Work, target: int, *, is_last: bool) -> None:
    code = 1
    try:
        work(partial(_acknowledge, target), is_last=is_last)
        code = 0
    except Exception:  # noqa: BLE001 - the test shows the traceback
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _acknowledge(target: int, line: str) -> None:
    os.write(target, f"{line}\n".encode())
