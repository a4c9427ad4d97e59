import os
import time
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from holdfast.shell import ShellService
from holdfast.shell.process import MARK
from holdfast.store import Store

OURS = ("LC_TEST_RUN", f"holdfast-{os.getpid()}-{time.time_ns()}")


@pytest.fixture
async def service(store: Store, tmp_path: Path) -> AsyncGenerator[ShellService, None]:
    async with ShellService(store, cwd=tmp_path) as service:
        yield service
    # Whatever a test did, nothing is left: no child of ours, no descriptor, no command without an end.
    assert (await store.commands(state="running")).items == []


@pytest.fixture(autouse=True)
def no_leaks(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(*OURS)  # commands inherit it, and others may run these tests at the same time
    before = len(list(Path("/proc/self/fd").iterdir()))
    yield
    assert leftovers() == []
    assert (
        len(list(Path("/proc/self/fd").iterdir())) <= before + 12
    )  # of engines that live as long as the session


def leftovers() -> list[str]:
    """Return the command lines of all processes that carry the mark of a command, and ours."""
    found: list[str] = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            environment = (path / "environ").read_bytes()
            if f"{MARK}=".encode() in environment and "=".join(OURS).encode() in environment:
                found.append((path / "cmdline").read_text())
        except OSError:
            continue
    return [line for line in found if line]
