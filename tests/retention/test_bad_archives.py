"""Archives that are not what they say: each is refused with a clear error, and nothing is changed."""

import gzip
import hashlib
import io
import json
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.errors import ArchiveTooNew, BadArchive, BadInput, Conflict
from holdfast.media import open_media
from holdfast.retention import clean, erase, import_archive, rehydrate, verify_archive
from holdfast.store import Store, open_store
from holdfast.types import Batch, Run
from tests.builders import claim
from tests.promises.sessions import fill
from tests.promises.test_exact_return import export

LONGEST = 8 * 1024 * 1024


def remade(archive: bytes, change: Callable[[list[dict[str, Any]]], object]) -> bytes:
    """Change records and make the end fit, as somebody would who means harm."""
    records = [json.loads(line) for line in archive.splitlines()[:-1]]
    change(records)
    lines = [json.dumps(r, ensure_ascii=False, separators=(",", ":")).encode() + b"\n" for r in records]
    counts: dict[str, int] = {}
    for record in records[1:]:
        (name,) = record
        if name != "bytes":
            counts[name] = counts.get(name, 0) + 1
    end = {"counts": counts, "sha256": hashlib.sha256(b"".join(lines)).hexdigest()}
    return b"".join(lines) + json.dumps({"end": end}).encode() + b"\n"


def first(records: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return next(record[name] for record in records if name in record)


def shift(records: list[dict[str, Any]], by: int) -> None:
    """Move a whole history, with all that refers to it: everything fits together, and reading it never ends."""
    for record in records:
        for name, column in (("segments", "start"), ("messages", "position"), ("checkpoints", "length")):
            if name in record:
                record[name][column] += by
        for name in ("events", "effects"):
            if name in record and record[name]["position"] is not None:
                record[name]["position"] += by


HARM: dict[str, Callable[[list[dict[str, Any]]], object]] = {
    "another session's record": lambda r: first(r, "events").update(session_id="other"),
    "a path in an id": lambda r: first(r, "runs").update(id="../../etc/passwd"),
    "a path in the session id": lambda r: r[0].update(session_id="../x"),
    "an unknown kind": lambda r: r.insert(3, {"surprise": {}}),
    "an unknown field": lambda r: first(r, "events").update(more=1),
    "a wrong type": lambda r: first(r, "events").update(seq="1"),
    "a truth value": lambda r: first(r, "events").update(seq=True),
    "a huge number": lambda r: first(r, "events").update(at=2**63),
    "a NUL": lambda r: first(r, "messages").update(body="a\x00b"),
    "a message that is not JSON": lambda r: first(r, "messages").update(body='"a"},{"b":1'),
    "a message with NaN": lambda r: first(r, "messages").update(body="[NaN]"),
    "a message that is too deep": lambda r: first(r, "messages").update(body="[" * 100_000),
    "a result that is not JSON": lambda r: first(r, "effects").update(result="nope"),
    "metadata that is not JSON": lambda r: r[1]["session"].update(metadata="{"),
    "metadata that is no object": lambda r: r[1]["session"].update(metadata="[]"),
    "metadata that is too deep": lambda r: r[1]["session"].update(metadata='{"a":' * 101 + "1" + "}" * 101),
    "a time that is none": lambda r: r[1]["session"].update(active_at=2**62),
    "a time before all times": lambda r: first(r, "events").update(at=-1),
    "a title without an end": lambda r: r[1]["session"].update(title="x" * 5_000_000),
    "a newline in a kind": lambda r: first(r, "events").update(kind="said\ndata: forged"),
    "NaN in a payload": lambda r: first(r, "events").update(payload='{"a": NaN}'),
    "a run with an unknown status": lambda r: first(r, "runs").update(status="flying"),
    "a run with bad metadata": lambda r: first(r, "runs").update(metadata="nope"),
    "a run with a parent that is no id": lambda r: first(r, "runs").update(parent_id="../\x1b[31m a"),
    "a run with an empty parent": lambda r: first(r, "runs").update(parent_id=""),
    "a run with a number as its parent": lambda r: first(r, "runs").update(parent_id=7),
    "a run with a parent that is too long": lambda r: first(r, "runs").update(parent_id="p" * 129),
    "an unknown lane": lambda r: first(r, "submissions").update(lane="fast"),
    "a submission that is not JSON": lambda r: first(r, "submissions").update(payload="nope"),
    "an agent without a name": lambda r: r[1]["session"].update(agent=""),
    "a record twice": lambda r: r.insert(3, r[2]),
    "records out of order": lambda r: r.insert(len(r), r[2]),
    "other media": lambda r: next(x for x in r if "bytes" in x).update(bytes="AAAA"),
    "no base64": lambda r: next(x for x in r if "bytes" in x).update(bytes="?"),
    "media cut short": lambda r: r.remove(next(x for x in r if "bytes" in x)),
    "no session": lambda r: r.remove(r[1]),
    "a session that runs": lambda r: r[1]["session"].update(status="running"),
    "another owner": lambda r: r[1]["session"].update(owner="mallory"),
    "a history that begins at a huge number": lambda r: shift(r, 2**60),
    "a checkpoint of a segment that is not there": lambda r: first(r, "checkpoints").update(segment=7),
    "an older one": lambda r: r[1]["session"].update(seq=1),
}


@pytest.fixture
async def archived(store: Store) -> tuple[str, bytes]:
    session_id = await fill(store, open_media(store=store), ["hello", "world"], blobs=[b"picture"])
    archive = await export(store, session_id)
    await clean(store, open_media(store=store), session_id, actor="test", force=True)
    return session_id, archive


async def refused(store: Store, session_id: str, archive: bytes, kind: type[Exception] = BadArchive) -> str:
    before = await store.session(session_id)
    with pytest.raises(kind) as caught:
        await rehydrate(store, open_media(store=store), session_id, io.BytesIO(archive), actor="test")
    assert await store.content_counts(session_id) == {}
    after = await store.session(session_id)
    assert (after.status, after.seq, after.title) == ("cleaned", before.seq, before.title)
    return str(caught.value)


@pytest.mark.parametrize("harm", HARM)
async def test_harm_is_refused(store: Store, archived: tuple[str, bytes], harm: str):
    session_id, archive = archived
    assert remade(archive, lambda _: None).splitlines()[:-1] == archive.splitlines()[:-1]
    await refused(store, session_id, remade(archive, HARM[harm]))
    await rehydrate(store, open_media(store=store), session_id, io.BytesIO(archive), actor="test")


async def test_a_parent_that_is_no_id_is_named_and_one_that_does_not_exist_is_restored(
    store: Store, archived: tuple[str, bytes]
):
    """A parent may be a run of another session, which may have been erased."""
    session_id, archive = archived
    bad = remade(archive, lambda r: first(r, "runs").update(parent_id="a b\n"))
    message = await refused(store, session_id, bad)
    assert "'a b\\n' is not a valid parent_id of runs" in message
    assert "line 3" in message
    gone = remade(archive, lambda r: first(r, "runs").update(parent_id="gone"))
    await rehydrate(store, open_media(store=store), session_id, io.BytesIO(gone), actor="test")
    assert "gone" in [run.parent_id for run in (await store.runs(session_id=session_id)).items]
    assert await store.check() == []


async def test_every_cut_and_changed_byte_is_noticed(store: Store, archived: tuple[str, bytes]):
    _, archive = archived
    for at in range(0, len(archive), 97):
        with pytest.raises(BadInput):
            verify_archive(io.BytesIO(archive[:at]), longest=LONGEST)
        changed = archive[:at] + bytes([archive[at] ^ 1]) + archive[at + 1 :]
        with pytest.raises(BadInput):
            verify_archive(io.BytesIO(changed), longest=LONGEST)
    packed = gzip.compress(archive, mtime=0)
    for at in range(1, len(packed), 61):
        with pytest.raises(BadInput):
            verify_archive(io.BytesIO(packed[:at]), longest=LONGEST)
    for more in (b"x", b"\n", archive, b"{}\n"):
        with pytest.raises(BadInput):
            verify_archive(io.BytesIO(archive + more), longest=LONGEST)
    with pytest.raises(BadInput):
        verify_archive(io.BytesIO(packed + packed), longest=LONGEST)


async def test_versions(store: Store, archived: tuple[str, bytes]):
    session_id, archive = archived
    newer = remade(archive, lambda r: r[0].update(version=2))
    assert "Upgrade Holdfast" in await refused(store, session_id, newer, ArchiveTooNew)
    for version in (b"0", b'"1"', b"null", b"[]", b"1.5"):
        await refused(store, session_id, archive.replace(b'"version":1', b'"version":' + version, 1))
    await refused(store, session_id, b'{"hello": "world"}\n')
    await refused(store, session_id, b"\x00\xff" * 100)


async def test_an_archive_of_another_session(store: Store, archived: tuple[str, bytes]):
    session_id, _ = archived
    other = await fill(store, open_media(store=store), ["other"])
    assert other in await refused(store, session_id, await export(store, other))


async def test_an_id_that_another_session_has_is_named(store: Store, archived: tuple[str, bytes]):
    session_id, archive = archived
    other = await fill(store, open_media(store=store), ["other"])
    taken = (await store.runs(session_id=other)).items[0].id
    stolen = remade(archive, lambda r: first(r, "submissions").update(id=taken))
    await rehydrate(store, open_media(store=store), session_id, io.BytesIO(stolen), actor="test")
    await clean(store, open_media(store=store), session_id, actor="test", force=True)
    used = (await store.submissions(other)).items[0].id
    stolen = remade(archive, lambda r: first(r, "submissions").update(id=used))
    assert used in await refused(store, session_id, stolen, Conflict)


async def test_a_submission_that_waits_in_an_idle_session_is_queued(
    store: Store, archived: tuple[str, bytes]
):
    session_id, archive = archived
    waiting = remade(archive, lambda r: first(r, "submissions").update(state="waiting", ended_at=None))
    await rehydrate(store, open_media(store=store), session_id, io.BytesIO(waiting), actor="test")
    assert [item.state for item in (await store.submissions(session_id)).items] == ["queued"]
    holder = await store.join("worker")
    lease = await claim(store, holder, agents=["scribe"])
    assert lease is not None
    assert lease.session_id == session_id


async def test_a_run_of_another_owner_as_parent_gives_that_owner_no_children(
    store: Store, archived: tuple[str, bytes]
):
    session_id, archive = archived
    victim = await store.create_session(agent="a", owner="eve")
    holder = await store.join("worker")
    lease = await store.acquire(victim.id, holder)
    await store.write(lease, Batch(runs=[Run(id="run-of-eve", status="completed")]))
    await store.release(lease)
    claiming = remade(archive, lambda r: first(r, "runs").update(parent_id="run-of-eve"))
    await rehydrate(store, open_media(store=store), session_id, io.BytesIO(claiming), actor="test")
    assert await store.child_sessions(victim.id) == []
    erased = await erase(store, open_media(store=store), victim.id, actor="eve", children=True)
    assert erased.children == ()
    assert (await store.session(session_id)).status == "idle"


class Endless(io.RawIOBase):
    """A line without an end, without the memory for it."""

    def __init__(self, size: int) -> None:
        self._left = size

    def read(self, size: int = -1) -> bytes:
        size = min(size, self._left)
        self._left -= size
        return b"x" * size


def test_a_line_of_two_gigabytes_takes_no_memory():
    tracemalloc.start()
    with pytest.raises(BadArchive, match="longer than"):
        verify_archive(Endless(2 * 1024**3), longest=LONGEST)  # pyright: ignore[reportArgumentType]
    assert tracemalloc.get_traced_memory()[1] < 4 * LONGEST
    tracemalloc.stop()


async def test_a_bomb_is_refused():
    async with open_store("sqlite://:memory:") as store:
        session_id = await fill(store, open_media(store=store), ["hello"])
        archive = await export(store, session_id)
    event = next(line for line in archive.splitlines(keepends=True) if line.startswith(b'{"messages"'))
    header = b"".join(archive.splitlines(keepends=True)[:2])
    row = json.loads(event)["messages"]
    lines = (
        json.dumps(
            {"messages": {**row, "position": n, "body": f'"{"0" * 1_000_000}"'}}, separators=(",", ":")
        ).encode()
        + b"\n"
        for n in range(100)
    )
    bomb = gzip.compress(header + b"".join(lines), mtime=0)
    assert len(bomb) < 200_000
    with pytest.raises(BadArchive, match="compression ratio is more than"):
        verify_archive(io.BytesIO(bomb), longest=LONGEST)


async def test_an_import_checks_the_same(store: Store, archived: tuple[str, bytes]):
    _, archive = archived
    async with open_store("sqlite://:memory:") as other:
        for harm in HARM.values():
            changed = remade(archive, harm)
            try:
                verify_archive(io.BytesIO(changed), longest=LONGEST)
            except BadArchive:
                with pytest.raises(BadArchive):
                    await import_archive(other, open_media(store=other), io.BytesIO(changed), actor="test")
        assert (await other.sessions()).items == []


async def test_a_record_with_very_many_values_is_refused(store: Store, archived: tuple[str, bytes]):
    """Before they are made: a megabyte of them compresses to a kilobyte, and takes a hundred megabytes."""
    session_id, archive = archived
    lists = "[" + "[]," * 500_000 + "1]"
    lines = archive.splitlines(keepends=True)
    lines.insert(2, b'{"runs":' + lists.encode() + b"}\n")
    assert "more values than any valid record" in await refused(store, session_id, b"".join(lines))
    harmed = remade(archive, lambda r: first(r, "messages").update(body="[" + "1," * 2_000_001 + "1]"))
    assert "is not valid JSON" in await refused(store, session_id, harmed)
    calls = json.dumps({"kind": "response", "parts": [{}] * 5001})
    harmed = remade(archive, lambda r: first(r, "messages").update(body=calls))
    assert "too many values or parts" in await refused(store, session_id, harmed)


async def test_names_and_metadata_of_media_are_bounded(store: Store, archived: tuple[str, bytes]):
    """Content that several owners have is stored once: a long name would be in the archives of all of them."""
    session_id, archive = archived
    for change in (
        {"file_name": "x" * 1001},
        {"metadata": json.dumps({"of": "é" * 3000})},
        {"media_type": "\n"},
    ):
        harmed = remade(archive, lambda r, change=change: first(r, "blob_references").update(change))
        assert "media" in await refused(store, session_id, harmed)
