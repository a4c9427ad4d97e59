"""What comes from outside and cannot be used: a clear error of our family, nothing changed, the store goes on."""

import asyncio
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path

import asyncpg
import pytest

from holdfast.errors import (
    BadId,
    BadInput,
    BadText,
    HoldfastError,
    SessionNotFound,
    StoreCorrupt,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
    UnknownStore,
)
from holdfast.store import Store, open_store
from holdfast.types import Batch, Checkpoint, Holder, Message, NewEvent, Run, Segment
from tests.builders import held_session, new_session, ticks
from tests.conftest import Engine, new_database
from tests.servers import Postgres

BAD_IDS = [
    "",
    "../etc/passwd",
    "/etc/passwd",
    "a/b",
    "a\\b",
    "..",
    ".",
    "a b",
    "a\x00b",
    "a\nb",
    "\x1b[31m",
    "ü",
    "x" * 129,
    "\ud800",
    "-a",
    "a%2fb",
]


@pytest.mark.parametrize("bad", BAD_IDS)
async def test_ids_with_path_or_control_characters(store: Store, bad: str):
    lease, holder = await held_session(store)
    attempts = (
        store.create_session(agent="scribe", owner="ada", id=bad),
        store.session(bad),
        store.acquire(bad, holder),
        store.submit(bad, "message"),
        store.submit(lease.session_id, "message", id=bad),
        store.events(bad),
        store.history(bad, segment=1, length=1),
        store.effects(bad),
        store.run(bad),
        store.checkpoint(bad),
        store.set_cursor(lease.session_id, bad, 0),
        store.write(lease, Batch(runs=[Run(id=bad)])),
        store.write(lease, Batch(checkpoints=[Checkpoint(id=bad, segment=1, length=0)])),
    )
    for attempt in attempts:
        with pytest.raises(BadId, match="letters, digits"):
            await attempt
    with pytest.raises(BadId):
        await anext(store.watch(bad))
    assert (await store.schema()).sessions == 1
    assert await store.write(lease, ticks()) == 1


@pytest.mark.parametrize("bad", ["", "a\x00b", "a\nb", "\x1b[31m", "\ud800", "x" * 257])
async def test_names_are_printable(store: Store, bad: str):
    session_id = await new_session(store)
    attempts = (
        store.create_session(agent=bad, owner="ada"),
        store.create_session(agent="scribe", owner=bad),
        store.join(bad),
        store.submit(session_id, bad),
        store.submit(session_id, "message", idempotency_key=bad),
        store.audit(actor=bad, action="clean", session_id=None, detail="{}"),
    )
    for attempt in attempts:
        with pytest.raises(BadText):
            await attempt
    assert (await store.session(session_id)).seq == 0


@pytest.mark.parametrize("bad", ["\x00", "\ud800"])
async def test_text_that_cannot_be_stored(store: Store, bad: str):
    session_id = await new_session(store)
    attempts = (
        store.create_session(agent="scribe", owner="ada", title=bad),
        store.update_session(session_id, title=bad),
        store.sessions(search=bad),
        store.sessions(owner=bad),
    )
    for attempt in attempts:
        with pytest.raises(BadText):
            await attempt


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "{",
        "nope",
        "{'a': 1}",
        "[1,]",
        '"\x00"',
        '"\ud800"',
        '{"a": NaN}',
        '{"a": -Infinity}',
        '{"a": 1e999}',
        '{"a": ' + "9" * 5000 + "}",
        '{"a": ' * 101 + "1" + "}" * 101,
        "[" * 100_000,
    ],
    ids=lambda bad: ascii(bad[:20]),
)
async def test_what_is_not_json(store: Store, bad: str):
    session_id = await new_session(store)
    lease = await store.acquire(session_id, await store.join("test"))
    attempts = (
        store.write(lease, Batch(events=[NewEvent(kind="tick", payload=bad)])),
        store.write(lease, Batch(runs=[Run(id="r1", metadata=bad)])),
        store.audit(actor="ada", action="test", session_id=None, detail=bad),
        store.create_session(agent="scribe", owner="ada", metadata=bad),
        store.update_session(session_id, metadata=bad),
        store.submit(session_id, "message", bad),
        store.set_state(session_id, bad, expected_version=0),
    )
    for attempt in attempts:
        with pytest.raises(BadText):
            await attempt
    assert (await store.session(session_id)).seq == 0


async def test_metadata_that_is_not_an_object(store: Store):
    session_id = await new_session(store)
    for attempt in (
        store.create_session(agent="scribe", owner="ada", metadata="[]"),
        store.update_session(session_id, metadata="null"),
    ):
        with pytest.raises(BadText, match="is not a JSON object"):
            await attempt


@pytest.mark.parametrize("kind", ["", "a\nid: 7", "a\rdata: x", "a b", "x" * 129])
async def test_an_event_kind_that_is_no_simple_name(store: Store, kind: str):
    session_id = await new_session(store)
    lease = await store.acquire(session_id, await store.join("test"))
    with pytest.raises(BadId, match="event kind"):
        await store.write(lease, Batch(events=[NewEvent(kind=kind)]))


@pytest.mark.parametrize("ttl", [0, -1, float("nan"), float("inf"), 3e11])
async def test_a_time_to_live_that_is_none(store: Store, ttl: float):
    with pytest.raises(BadInput, match="positive number of seconds, at most one day"):
        await store.join("worker", ttl=ttl)


async def test_a_holder_that_was_made_up(store: Store):
    _, holder = await held_session(store)
    invented = Holder(id="invented", name="x", deadline=holder.deadline, ttl=10)
    with pytest.raises(HoldfastError, match="not registered"):
        await store.acquire(await new_session(store), invented)
    await store.leave(invented)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "mysql://localhost/x",
        "sqlite:",
        "sqlite://",
        "sqlite:///",
        "sqlite://file.db",
        "postgresql://",
        "store.db",
        "SQLITE:///x.db",
        "sqlite:///x.db?mode=ro",
        "sqlite:///x\x00.db",
        "postgresql://[bad",
    ],
)
def test_an_unknown_scheme_is_an_error(url: str):
    with pytest.raises(UnknownStore, match="Unknown store URL"):
        open_store(url)


async def test_an_unreachable_server():
    store = open_store("postgresql://ada:secret@127.0.0.1:1/nowhere")
    with pytest.raises(StoreUnavailable) as refused:
        await store.open()
    assert "secret" not in str(refused.value)
    assert "127.0.0.1:1" in str(refused.value)


async def test_a_database_that_is_not_there(postgres_server: Postgres):
    with pytest.raises(StoreUnavailable, match="does not exist"):
        await open_store(postgres_server.url("nowhere")).open()


async def test_a_user_without_rights(postgres_server: Postgres):
    url = await new_database(postgres_server)
    admin = await asyncpg.connect(url)
    await admin.execute("DROP ROLE IF EXISTS guest")
    await admin.execute("CREATE ROLE guest LOGIN")
    await admin.close()
    with pytest.raises(StoreReadOnly, match="permission denied"):
        await open_store(url.replace("postgres@", "guest@")).open()


async def test_a_folder_that_is_not_there(tmp_path: Path):
    with pytest.raises(StoreUnavailable, match=r"the folder .* does not exist"):
        await open_store(f"sqlite:///{tmp_path}/no/such/store.db").open()


async def test_a_corrupt_file(tmp_path: Path):
    (tmp_path / "junk.db").write_bytes(os.urandom(8192))
    with pytest.raises(StoreCorrupt, match="Restore it from a backup"):
        await open_store(f"sqlite:///{tmp_path}/junk.db").open()


async def test_a_file_damaged_in_the_middle(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/store.db"
    async with open_store(url) as store:
        lease, _ = await held_session(store)
        for n in range(40):
            await store.write(
                lease,
                Batch(
                    segments=[Segment(number=1)] if n == 0 else [],
                    messages=[Message(segment=1, position=n, body="x" * 3000)],
                    events=[NewEvent(kind="tick", payload='"' + "y" * 900 + '"')] * 5,
                ),
            )
    file = tmp_path / "store.db"
    content = bytearray(file.read_bytes())
    for page in range(4, len(content) // 4096, 2):
        content[page * 4096 : page * 4096 + 200] = b"\xff" * 200
    file.write_bytes(content)
    with pytest.raises(StoreCorrupt):
        async with open_store(url) as store:
            await store.check()


UNPRIVILEGED = """
import asyncio, os, sys
from holdfast.store import open_store
from holdfast.errors import HoldfastError

async def main():
    async with open_store("sqlite://:memory:"):
        pass  # everything is imported now, also where nobody may read the interpreter's folder
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
    try:
        async with open_store(sys.argv[1]) as store:
            await store.create_session(agent="scribe", owner="ada")
    except HoldfastError as error:
        print(error.code, error)

asyncio.run(main())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody who may not write")
@pytest.mark.parametrize("folder_writable", [False, True])
async def test_a_read_only_file(folder_writable: bool):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o777 if folder_writable else 0o755)
        async with open_store(f"sqlite:///{folder}/store.db"):
            pass
        (folder / "store.db").chmod(0o444)
        code = subprocess.run(
            [sys.executable, "-c", UNPRIVILEGED, f"sqlite:///{folder}/store.db"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    assert code.startswith("store_read_only The store at sqlite:///"), code


@pytest.fixture
def small_disk(tmp_path: Path) -> Generator[Path, None, None]:
    if os.geteuid() != 0:
        if os.environ.get("CI") == "true":
            pytest.fail("this needs root to mount a small disk")
        pytest.skip("only root can mount a small disk")
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)], check=True)
    try:
        yield disk
    finally:
        subprocess.run(["umount", str(disk)], check=True)


async def test_a_full_disk(small_disk: Path):
    async with open_store(f"sqlite:///{small_disk}/store.db") as store:
        lease, _ = await held_session(store)
        (small_disk / "ballast").write_bytes(bytes(1_200_000))
        written = 0
        large = Batch(events=[NewEvent(kind="tick", payload=f'"{"x" * 20_000}"')] * 3)

        async def fill() -> None:
            nonlocal written
            while written < 600:
                written = await store.write(lease, large)

        with pytest.raises(StoreFull, match="This write was discarded"):
            await fill()
        assert 0 < written < 600
        assert len(await store.events(lease.session_id)) == written
        # The same store goes on once there is space again.
        (small_disk / "ballast").unlink()
        assert await store.write(lease, ticks()) == written + 1
        assert await store.check() == []


async def test_an_error_leaves_the_engine_usable(engine: Engine, store: Store):
    lease, _ = await held_session(store)
    for _ in range(20):
        with pytest.raises(HoldfastError):
            await store.write(lease, Batch(segments=[Segment(number=1)] * 2))
    assert await store.write(lease, ticks()) == 1


async def test_none_is_nobodys_id(store: Store):
    await new_session(store)
    nobody: str = None  # pyright: ignore[reportAssignmentType]
    for attempt in (
        store.session(nobody),
        store.update_session(nobody, title="oops"),
        store.state(nobody),
        store.events(nobody),
        store.run(nobody),
        store.checkpoint(nobody),
        store.submissions(nobody),
    ):
        with pytest.raises(BadId):
            await attempt


async def test_json_is_passed_as_text(store: Store):
    lease, _ = await held_session(store)
    value: str = {"a": 1}  # pyright: ignore[reportAssignmentType]
    for attempt in (
        store.submit(lease.session_id, "message", value),
        store.create_session(agent="scribe", owner="ada", metadata=value),
        store.write(lease, Batch(events=[NewEvent(kind="tick", payload=value)])),
    ):
        with pytest.raises(BadText, match=r"is a dict; pass a string, and serialize JSON with json\.dumps"):
            await attempt


@pytest.mark.parametrize("port", ["notaport", "99999999"])
async def test_a_url_that_cannot_be_read(port: str):
    with pytest.raises(HoldfastError, match="URL is invalid"):
        await open_store(f"postgresql://ada@127.0.0.1:{port}/x").open()


async def test_a_file_that_is_damaged_while_it_is_open(tmp_path: Path):
    async with open_store(f"sqlite:///{tmp_path}/store.db") as store:
        lease, _ = await held_session(store)
        for _ in range(40):
            await store.write(lease, ticks())
        for name in ("store.db", "store.db-wal", "store.db-shm"):
            with (tmp_path / name).open("r+b") as file:
                file.write(os.urandom(4096))

        async def write_on() -> None:
            for _ in range(5):
                await store.write(lease, ticks())

        with pytest.raises(HoldfastError):
            await write_on()


async def test_a_relative_path_stays_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    async with open_store("sqlite:///here.db") as store:
        monkeypatch.chdir(tmp_path / "elsewhere")
        session_id = await new_session(store)
        assert (await store.session(session_id)).id == session_id
    assert list((tmp_path / "elsewhere").iterdir()) == []


async def test_shrinking_waits_for_others(tmp_path: Path):
    async with open_store(f"sqlite:///{tmp_path}/store.db") as store:
        other = sqlite3.connect(tmp_path / "store.db", check_same_thread=False)
        other.execute("BEGIN IMMEDIATE")
        shrinking = asyncio.create_task(store.shrink())
        await asyncio.sleep(0.1)
        assert not shrinking.done()
        other.rollback()
        other.close()
        async with asyncio.timeout(5):
            assert await shrinking == 0


async def test_a_list_of_nowhere(store: Store):
    for attempt in (
        store.submissions("nowhere"),
        store.cursors("nowhere"),
        store.effects("nowhere"),
        store.drafts("nowhere"),
        store.segments("nowhere"),
        store.history("nowhere", segment=1, length=1),
        store.runs(session_id="nowhere"),
        store.checkpoints(session_id="nowhere"),
    ):
        with pytest.raises(SessionNotFound):
            await attempt


async def test_metadata_that_is_too_large(store: Store):
    """It is in every list of sessions."""
    large = json.dumps({"a": "x" * 70_000})
    with pytest.raises(BadText, match="it has 70009 characters"):
        await store.create_session(agent="a", owner="o", metadata=large)
    session_id = (await store.create_session(agent="a", owner="o")).id
    with pytest.raises(BadText, match="limit is 65536"):
        await store.update_session(session_id, metadata=large)
