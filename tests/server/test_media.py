"""Media over HTTP: only for those who may read a session that refers to it."""

import hashlib
from typing import Any

import httpx2
import pytest

from holdfast import Store
from holdfast.media import MediaContext, open_media
from holdfast.types import Batch

CONTENT = b"\x89PNG" + bytes(range(256)) * 1000
SIZE = len(CONTENT)
DIGEST = hashlib.sha256(CONTENT).hexdigest()


async def put(store: Store, session_id: str, owner: str, media_type: str = "image/png") -> None:
    await store.create_session(agent="agent", owner=owner, id=session_id)
    await open_media(store=store).put(CONTENT, MediaContext(media_type=media_type))
    lease = await store.acquire(session_id, await store.join("test"))
    await store.write(lease, Batch(blobs=[DIGEST]))
    await store.release(lease)


async def test_only_readers_of_a_session_that_refers_to_it(
    store: Store, http: httpx2.AsyncClient, tokens: dict[str, str]
):
    await put(store, "theirs", "other")
    path = f"/api/media/{DIGEST}"
    assert (await http.get(path)).status_code == 404
    assert (await http.get(path, headers={"authorization": f"Bearer {tokens['other']}"})).content == CONTENT
    assert (await http.get(path, headers={"authorization": f"Bearer {tokens['admin']}"})).content == CONTENT
    await put(store, "mine", "owner")
    found = await http.get(path)
    assert (found.content, found.headers["content-type"]) == (CONTENT, "image/png")
    assert (await http.get(path, headers={"if-none-match": found.headers["etag"]})).status_code == 304
    assert (await http.get(f"/api/media/{'0' * 64}")).status_code == 404
    assert (await http.get("/api/media/../etc")).status_code in {404, 422}


class Recorder:
    """A store that notes which of its methods are called, and with which content and owner."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.calls: list[tuple[str, Any]] = []

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if not callable(found):
            return found

        def call(*given: Any, **named: Any) -> Any:
            self.calls.append((name, named.get("owner")))
            return found(*given, **named)

        return call


async def test_a_stranger_causes_the_same_queries_whether_others_store_the_content_or_not(
    store: Store, app: Any, http: httpx2.AsyncClient
):
    await put(store, "theirs", "other")
    await put(store, "theirs-too", "other")
    recorder = app.state.service.store = Recorder(store)
    asked: list[list[tuple[str, Any]]] = []
    for digest in (DIGEST, "0" * 64):
        recorder.calls.clear()
        assert (await http.get(f"/api/media/{digest}")).status_code == 404
        asked.append([*recorder.calls])
    assert asked[0] == asked[1] == [("is_referenced", "owner")]


async def test_what_a_browser_could_run_is_only_for_saving(store: Store, http: httpx2.AsyncClient):
    await put(store, "mine", "owner", "text/html")
    found = await http.get(f"/api/media/{DIGEST}")
    assert found.headers["content-type"] == "application/octet-stream"
    assert found.headers["content-disposition"] == "attachment"
    assert found.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    ("asked", "start", "stop"),
    [
        ("bytes=4-9", 4, 10),
        ("bytes=0-0", 0, 1),
        ("bytes=0-", 0, SIZE),
        (f"bytes={SIZE - 1}-", SIZE - 1, SIZE),
        (f"bytes=5-{SIZE * 9}", 5, SIZE),
        ("bytes=-5", SIZE - 5, SIZE),
        (f"bytes=-{SIZE * 9}", 0, SIZE),
    ],
)
async def test_a_part_is_what_was_asked_for(
    store: Store, http: httpx2.AsyncClient, asked: str, start: int, stop: int
):
    await put(store, "mine", "owner")
    part = await http.get(f"/api/media/{DIGEST}", headers={"range": asked})
    assert (part.status_code, part.content) == (206, CONTENT[start:stop])
    assert part.headers["content-range"] == f"bytes {start}-{stop - 1}/{SIZE}"
    assert part.headers["content-length"] == str(stop - start)


async def test_parts_that_cannot_be(store: Store, http: httpx2.AsyncClient):
    await put(store, "mine", "owner")
    path = f"/api/media/{DIGEST}"
    for asked in (f"bytes={SIZE}-", f"bytes={SIZE}-{SIZE + 5}", "bytes=-0"):
        answer = await http.get(path, headers={"range": asked})
        assert (answer.status_code, answer.json()["error"]["code"]) == (416, "range_not_satisfiable"), asked
        assert answer.headers["content-range"] == f"bytes */{SIZE}"
    for asked in (
        "bytes=",
        "bytes=-",
        "bytes=9-4",
        "bytes=0-1,5-6",
        "bytes=a-b",
        "items=0-1",
        "bytes=-" + "9" * 40,
    ):
        answer = await http.get(path, headers={"range": asked})
        assert (answer.status_code, answer.content) == (200, CONTENT), asked
    other = {"range": "bytes=0-1", "if-range": '"something else"'}
    assert (await http.get(path, headers=other)).status_code == 200


async def test_a_part_of_something_large_is_all_that_is_read(
    store: Store, http: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
):
    """Of 32 MB in the database, 100 bytes cost one chunk."""
    large = bytes(1024 * 1024) * 31 + CONTENT
    await store.create_session(agent="agent", owner="owner", id="mine")
    uri = await open_media(store=store).put(large)
    lease = await store.acquire("mine", await store.join("test"))
    await store.write(lease, Batch(blobs=[uri.removeprefix("media+sha256://")]))
    read: list[int] = []
    chunks = store.chunks

    async def counted(blob_id: str, *, first: int, limit: int) -> list[bytes]:
        found = await chunks(blob_id, first=first, limit=limit)
        read.extend(map(len, found))
        return found

    monkeypatch.setattr(store, "chunks", counted)
    path = f"/api/media/{uri.removeprefix('media+sha256://')}"
    part = await http.get(path, headers={"range": "bytes=-100"})
    assert part.content == CONTENT[-100:]
    assert sum(read) <= 1024 * 1024
