"""Media over HTTP: only for those who may read a session that refers to it."""

import hashlib

import httpx2

from holdfast import Store
from holdfast.media import MediaContext, open_media
from holdfast.types import Batch

CONTENT = b"\x89PNG" + bytes(range(256)) * 1000
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
    part = await http.get(path, headers={"range": "bytes=4-9"})
    assert (part.status_code, part.content) == (206, CONTENT[4:10])
    assert part.headers["content-range"] == f"bytes 4-9/{len(CONTENT)}"
    assert (await http.get(path, headers={"range": "bytes=-5"})).content == CONTENT
    assert (await http.get(f"/api/media/{'0' * 64}")).status_code == 404
    assert (await http.get("/api/media/../etc")).status_code in {404, 422}


async def test_what_a_browser_could_run_is_only_for_saving(store: Store, http: httpx2.AsyncClient):
    await put(store, "mine", "owner", "text/html")
    found = await http.get(f"/api/media/{DIGEST}")
    assert found.headers["content-type"] == "application/octet-stream"
    assert found.headers["content-disposition"] == "attachment"
    assert found.headers["x-content-type-options"] == "nosniff"
