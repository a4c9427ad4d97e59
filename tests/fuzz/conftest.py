import asyncio
from collections.abc import Generator
from pathlib import Path

import pytest

from holdfast.store import Store, open_store


class Opened:
    """A store in memory, and a loop to ask it on: an example must not pay for opening one."""

    def __init__(self, runner: asyncio.Runner, store: Store) -> None:
        self.run = runner.run
        self.store = store


@pytest.fixture(scope="module")
def opened() -> Generator[Opened, None, None]:
    with asyncio.Runner() as runner:
        store = runner.run(open_store("sqlite://:memory:").open())
        try:
            yield Opened(runner, store)
        finally:
            runner.run(store.close())


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
