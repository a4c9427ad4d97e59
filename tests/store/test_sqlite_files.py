"""The files of a SQLite database that is open are deleted or replaced: nothing is acknowledged that only the old ones have."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.errors import StoreReplaced
from holdfast.store import Store, open_store
from tests.builders import held_session, new_session, ticks
from tests.server.fronts import front


def delete(path: Path) -> None:
    path.unlink()


def replace(path: Path) -> None:
    Path(f"{path}-backup").rename(path)


def delete_log(path: Path) -> None:
    Path(f"{path}-wal").unlink()


def delete_index(path: Path) -> None:
    Path(f"{path}-shm").unlink()


def move_folder(path: Path) -> None:
    path.parent.rename(path.parent.with_name("elsewhere"))


@pytest.fixture
async def path(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    path = tmp_path / "data" / "store.db"
    async with open_store(f"sqlite:///{path}-backup") as backup:
        await new_session(backup, id="restored")
    return path


@pytest.mark.parametrize("attack", [delete, replace, delete_log, delete_index, move_folder])
async def test_no_commit_is_acknowledged_that_only_a_replaced_file_has(
    path: Path, attack: Callable[[Path], None]
):
    async with open_store(f"sqlite:///{path}") as store:
        lease, _ = await held_session(store)
        await store.write(lease, ticks())
        attack(path)
        for _ in range(2):
            with pytest.raises(StoreReplaced, match="Restart"):
                await store.write(lease, ticks())
        for call in (store.session(lease.session_id), store.shrink(), new_session(store)):
            with pytest.raises(StoreReplaced):
                await call
        with pytest.raises(StoreReplaced):
            _ = [page async for page in store.export_rows(lease.session_id)]
        assert attack not in {delete, move_folder} or not path.exists()


async def test_a_restore_that_sets_the_times_of_the_folder_back_is_noticed(path: Path):
    """As `tar` and `rsync -a` do."""
    an_hour_ago = time.time_ns() - 3_600_000_000_000
    async with open_store(f"sqlite:///{path}") as store:
        lease, _ = await held_session(store)
        os.utime(path.parent, ns=(an_hour_ago, an_hour_ago))
        await store.write(lease, ticks())
        replace(path)
        os.utime(path.parent, ns=(an_hour_ago, an_hour_ago))
        with pytest.raises(StoreReplaced):
            await store.write(lease, ticks())


async def test_files_that_are_moved_back_stay_refused(path: Path):
    """A commit that was refused while they were away may be in them."""
    async with open_store(f"sqlite:///{path}") as store:
        lease, _ = await held_session(store)
        away = path.with_name("away")
        path.rename(away)
        with pytest.raises(StoreReplaced):
            await store.write(lease, ticks())
        away.rename(path)
        with pytest.raises(StoreReplaced):
            await store.write(lease, ticks())


async def test_a_replacement_of_a_linked_file_is_noticed(path: Path):
    link = path.with_name("link.db")
    path.touch()
    link.symlink_to(path)
    async with open_store(f"sqlite:///{link}") as store:
        await new_session(store)
        delete_log(path)
        with pytest.raises(StoreReplaced):
            await new_session(store)


async def test_other_changes_in_the_folder_are_no_replacement(path: Path):
    async with open_store(f"sqlite:///{path}") as store:
        lease, _ = await held_session(store)
        for number in range(3):
            (path.parent / f"other-{number}").touch()
            await store.write(lease, ticks())
            (path.parent / f"other-{number}").unlink()
            assert len(await store.events(lease.session_id)) == number + 1


async def test_readers_that_wait_get_the_error(path: Path):
    async with open_store(f"sqlite:///{path}") as store:
        session_id = await new_session(store)
        waiting = asyncio.ensure_future(anext(store.watch(session_id)))
        await asyncio.sleep(0)
        path.unlink()
        with pytest.raises(StoreReplaced):
            await asyncio.wait_for(waiting, 10)


WRITE_AND_REPLACE = """
import asyncio, pathlib, sys
from holdfast.errors import StoreReplaced
from holdfast.store import open_store
from tests.builders import new_session

async def main(path):
    async with open_store(f"sqlite:///{path}") as store:
        await new_session(store)
        for name in (f"{path}-wal", f"{path}-shm", path):
            pathlib.Path(name).unlink()
        pathlib.Path(f"{path}-backup").rename(path)
        try:
            await new_session(store)
        except StoreReplaced:
            print("refused", flush=True)
        await asyncio.to_thread(sys.stdin.readline)

asyncio.run(main(sys.argv[1]))
"""


async def test_a_process_that_ends_with_replaced_files_leaves_the_new_ones_alone(path: Path):
    """SQLite deletes the log by its name when it closes the last connection to the old file."""
    old = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", WRITE_AND_REPLACE, str(path)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert old.stdout is not None
    assert await old.stdout.readline() == b"refused\n"

    async def other(store: Store) -> None:
        lease = await store.acquire("restored", await store.join("new", ttl=60))
        await store.write(lease, ticks(3))
        await old.communicate(b"\n")
        assert old.returncode == 0
        assert await store.write(lease, ticks()) == 4

    async with open_store(f"sqlite:///{path}") as store:
        await other(store)
    async with open_store(f"sqlite:///{path}") as store:
        assert [event.seq for event in await store.events("restored")] == [1, 2, 3, 4]
        assert await store.check() == []


async def test_a_server_whose_store_was_replaced_ends_with_an_error(path: Path):
    """Its supervisor starts it again; it would answer no request ever after."""
    async with front(f"sqlite:///{path}", "--role", "api") as server:
        replace(path)
        assert await asyncio.wait_for(server.process.wait(), 30) not in {0, -signal.SIGKILL}
