"""Processes that do something to a session and are killed at a given step: python -m tests.promises.cutter URL.

`clean`, `erase`, `rehydrate`, `import`, `move` and `copy` do that; `serve` is a worker that carries out what was submitted. It reads `ID ACTION N FILE`
from each line, does that in a child of its own, and prints how the child ended. Forking from a
process that has done nothing but import costs little, so that every single step can be one to be killed at.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import holdfast.retention.clean as cleaning
from holdfast.media import move, open_media
from holdfast.retention import clean, copy, erase, import_archive, rehydrate
from holdfast.runtime import Worker
from holdfast.store import Store, open_store
from tests.builders import until
from tests.upgrade.app import agent

STEPS = (
    "join",
    "acquire",
    "begin_cleaning",
    "begin_erasing",
    "put_blob",
    "set_blob_digest",
    "put_chunks",
    "mark_blob_stored",
    "replace_blob",
    "delete_chunks",
    "move_session",
    "import_cleaned",
    "add_shared_rows",
    "keep_archive",
    "drop_archive",
    "drop_references",
    "delete_blob_entry",
    "delete_content",
    "finish_cleaning",
    "finish_erasing",
    "import_rows",
    "leave",
    "shrink",
    "next_work",
    "take",
    "write",
    "release",
)


class Cutter:
    """Counts steps, before and after each call and within the import, and kills its process at one of them."""

    def __init__(self, at: int) -> None:
        self._left = at

    def step(self) -> None:
        self._left -= 1
        if not self._left:
            os.kill(os.getpid(), signal.SIGKILL)

    def watch(self, store: Store) -> None:
        for name in STEPS:
            setattr(store, name, self._stepping(getattr(store, name)))

    def _stepping(self, method: Callable[..., Any]) -> Callable[..., Any]:
        async def call(*args: Any, **kwargs: Any) -> Any:
            self.step()
            if method.__name__ == "import_rows":
                rows = args[1]
                args = (args[0], lambda: self._rows(rows()), *args[2:])
            result = await method(*args, **kwargs)
            self.step()
            return result

        return call

    def _rows(self, rows: Iterator[tuple[str, Mapping[str, Any]]]) -> Iterator[tuple[str, Mapping[str, Any]]]:
        for number, row in enumerate(rows):
            if number % 4 == 0:
                self.step()
            yield row


async def main(url: str, session_id: str, action: str, at: int, file: Path) -> None:
    cleaning._ROWS = 7  # pyright: ignore[reportPrivateUsage]
    async with open_store(url) as store:
        cutter = Cutter(at)
        cutter.watch(store)
        media = open_media(store=store)
        match action:
            case "clean":
                await clean(store, media, session_id, actor="test", force=True, archive="media")
            case "erase":
                await erase(store, media, session_id, actor="test")
            case "import":
                with file.open("rb") as archive:
                    await import_archive(store, media, archive, actor="test")
            case "move":
                await move(open_media(f"disk://{file}", store=store))
            case "copy":
                async with open_store(f"sqlite:///{file}") as target:
                    cutter.watch(target)
                    await copy(store, target, actor="test")
            case "serve":
                await serve_until_idle(store, session_id)
            case _:
                with file.open("rb") as archive:
                    await rehydrate(store, media, session_id, archive, actor="test")


async def serve_until_idle(store: Store, session_id: str) -> None:
    """Be a worker until everything that was submitted to the session has ended."""
    worker = Worker(store, agent)
    serving = asyncio.create_task(worker.run())

    async def is_idle() -> bool:
        session = await store.session(session_id)
        return session.pending == 0 and session.holder is None

    await until(is_idle, seconds=600)
    worker.stop()
    await serving


def serve(url: str) -> None:
    for line in sys.stdin:
        session_id, action, at, file = line.split(maxsplit=3)
        pid = os.fork()
        if not pid:
            asyncio.run(main(url, session_id, action, int(at), Path(file.strip())))
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    serve(sys.argv[1])
