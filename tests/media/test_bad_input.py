"""What goes wrong outside: clear errors, nothing half-visible, and trying again works."""

import asyncio
import hashlib
import os
import re
import urllib.error
import urllib.request
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path

import pytest
from obstore.store import S3Store

from holdfast.errors import (
    BadInput,
    BadKey,
    HoldfastError,
    MediaDenied,
    MediaNotFound,
    MediaUnavailable,
    UnknownMedia,
)
from holdfast.media import MediaContext, collect, open_media
from holdfast.media.disk import DiskMedia
from holdfast.media.media_store import KeyStrategy
from holdfast.media.s3 import S3Media
from holdfast.store import Store, open_store
from tests.media.conftest import Medium
from tests.media.test_collect import child, facts
from tests.servers import SeaweedFs

ESCAPES = [
    "/etc/passwd",
    "../out",
    "a/../../out",
    "..",
    ".",
    "",
    "a//b",
    ".hidden/x",
    "a\\b",
    "c:/x",
    "a\x00b",
    "x" * 300,
    "nul\n",
    "a/ ",
    "~/x?",
]
FINE = ["plain", "a/b/c.png", "with space (1)@home=+,.tar.gz", "ünï/cødé"]


def always(key: str) -> KeyStrategy:
    def strategy(sha256: str, context: MediaContext) -> str:
        return key

    return strategy


def by_name(sha256: str, context: MediaContext) -> str:
    return context.file_name or sha256


@pytest.fixture
async def sqlite(tmp_path: Path) -> AsyncGenerator[Store, None]:
    async with open_store(f"sqlite:///{tmp_path}/store.db") as store:
        yield store


@pytest.fixture
def bucket(s3_server: SeaweedFs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Medium:
    for name, value in s3_server.environment().items():
        monkeypatch.setenv(name, value)
    url = f"s3://media/{tmp_path.name}-{os.getpid()}"
    return Medium("s3", f"sqlite:///{tmp_path}/store.db", url, tmp_path, s3_server.environment())


@pytest.mark.parametrize(
    "url",
    [
        *("", "disk:", "disk://", "disk:///", "ftp://x", "s3://", "s3:bucket", "Database"),
        *("s3://bucket?endpoint=http://host", "s3://bucket/prefix#part"),
    ],
)
async def test_an_unknown_url_is_refused(sqlite: Store, url: str):
    with pytest.raises(UnknownMedia):
        open_media(url, store=sqlite)


@pytest.mark.parametrize("key", ESCAPES)
async def test_a_key_that_escapes_is_refused(sqlite: Store, bucket: Medium, tmp_path: Path, key: str):
    disk = DiskMedia(sqlite, tmp_path / "media", key_strategy=always(key))
    s3 = S3Media.from_url(bucket.url, sqlite, key_strategy=always(key))
    for media in (disk, s3):
        with pytest.raises(BadKey, match="key_strategy"):
            await media.put(b"x")
        with pytest.raises(BadKey):
            async with media.open() as writer:
                await writer.write(b"x")
    assert (await sqlite.blobs()).items == []
    assert await bucket.stored() == 0
    assert [path for path in tmp_path.rglob("*") if path.is_file() and "store.db" not in path.name] == []


@pytest.mark.parametrize("key", FINE)
async def test_a_key_that_stays_is_used(sqlite: Store, bucket: Medium, tmp_path: Path, key: str):
    disk = DiskMedia(sqlite, tmp_path / "media", key_strategy=always(key))
    s3 = S3Media.from_url(bucket.url, sqlite, key_strategy=always(key), key_prefix="team (a)/b=")
    for media in (disk, s3):
        one, two = [await media.put(data) for data in (b"one", b"two")]  # the same key for both
        assert (await media.get(one), await media.get(two)) == (b"one", b"two")
        assert (await media.metadata(one)).key != (await media.metadata(two)).key
        await media.delete(one)
        assert await media.get(two) == b"two"
    assert (await s3.metadata(two)).key.startswith("team (a)/b=/")


async def test_links_that_lead_out_are_refused(sqlite: Store, tmp_path: Path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (tmp_path / "media").mkdir()
    (tmp_path / "media" / "link").symlink_to(outside)
    media = DiskMedia(sqlite, tmp_path / "media", key_strategy=always("link/x"))
    with pytest.raises(BadKey, match="symbolic link"):
        await media.put(b"x")
    assert list(outside.iterdir()) == []
    media = DiskMedia(sqlite, tmp_path / "media")
    uri = await media.put(b"mine")
    file = tmp_path / "media" / (await media.metadata(uri)).key
    file.unlink()
    (outside / "secret").write_bytes(b"mine")
    file.symlink_to(outside / "secret")
    with pytest.raises(BadKey, match="symbolic link"):
        await media.get(uri)
    # A root that is itself reached through a link is fine.
    (tmp_path / "alias").symlink_to(tmp_path / "real")
    (tmp_path / "real").mkdir()
    assert await DiskMedia(sqlite, tmp_path / "alias").put(b"through")


async def test_a_sidecar_says_what_a_file_is(sqlite: Store, tmp_path: Path):
    media = DiskMedia(sqlite, tmp_path / "media", key_strategy=by_name)
    uri = await media.put(b"x", MediaContext(media_type="image/png", file_name="a.png", metadata={"k": "v"}))
    file = tmp_path / "media" / (await media.metadata(uri)).key
    assert file.suffix == ".png"
    sidecar = file.with_name(file.name + ".json").read_text()
    assert all(
        fact in sidecar for fact in (hashlib.sha256(b"x").hexdigest(), "image/png", "a.png", '"k": "v"')
    )


async def test_a_bad_media_type_is_refused(sqlite: Store):
    for wrong in ("", "a\nb", "ü", "x" * 300):
        with pytest.raises(BadInput):
            await open_media("database", store=sqlite).put(b"x", MediaContext(media_type=wrong))


async def test_a_full_disk(sqlite: Store, tmp_path: Path):
    medium = Medium("disk", f"sqlite:///{tmp_path}/store.db", f"disk://{tmp_path}/media", tmp_path)
    process = child(medium, "fill", "2000000")
    said = facts((await asyncio.to_thread(process.communicate))[0])
    assert [line.get("error") for line in said] == ["media_full", "media_full", None]
    assert "is full" in said[0]["message"]
    media = medium.open(sqlite)
    assert [blob.size for blob in (await media.list()).items] == [4]
    assert await medium.stored() == 4
    assert len((await sqlite.blobs()).items) == 1


async def test_a_folder_that_may_not_be_written(sqlite: Store, tmp_path: Path):
    (tmp_path / "file").write_text("not a folder")
    media = open_media(f"disk://{tmp_path}/file", store=sqlite)
    with pytest.raises(MediaUnavailable, match="file"):
        await media.put(b"x")
    assert (await sqlite.blobs()).items == []


@pytest.mark.parametrize("variable", ["AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID"])
async def test_wrong_credentials(
    sqlite: Store, bucket: Medium, monkeypatch: pytest.MonkeyPatch, variable: str
):
    uri = await bucket.open(sqlite).put(b"x")
    monkeypatch.setenv(variable, "wrong")
    media = bucket.open(sqlite)
    for attempt in (media.put(b"y"), media.put(os.urandom(9_000_000)), media.get(uri), media.delete(uri)):
        with pytest.raises(MediaDenied, match="credentials"):
            await attempt
    monkeypatch.undo()
    assert len((await media.list()).items) == 0


async def test_a_bucket_that_is_not_there(sqlite: Store, bucket: Medium):
    uri = await bucket.open(sqlite).put(b"x")
    gone = S3Store(
        "no-such-bucket",
        endpoint=bucket.environment["AWS_ENDPOINT_URL"],
        access_key_id=SeaweedFs.key,
        secret_access_key=SeaweedFs.secret,
        region="us-east-1",
        client_options={"allow_http": True},
    )
    media = S3Media(sqlite, gone, location=bucket.url)
    with pytest.raises(MediaUnavailable, match=r"[Bb]ucket"):
        await media.get(uri)
    assert not await media.exists(uri)


@pytest.mark.parametrize(
    ("code", "status", "error", "said"),
    [
        ("NoSuchBucket", "404 Not Found", MediaUnavailable, "bucket"),
        ("ExpiredToken", "400 Bad Request", MediaDenied, "expired"),
        ("ExpiredToken", "403 Forbidden", MediaDenied, "expired"),
    ],
)
async def test_what_only_other_s3_servers_say(
    sqlite: Store, bucket: Medium, code: str, status: str, error: type[HoldfastError], said: str
):
    """SeaweedFS makes missing buckets and knows no temporary credentials: a server that says what S3 would say."""
    body = f"<Error><Code>{code}</Code><Message>The {said} of the request is at fault</Message></Error>"
    answer = f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n{body}"

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        size = re.search(rb"content-length: (\d+)", head)
        await reader.readexactly(int(size[1]) if size else 0)
        writer.write(answer.encode())
        await writer.drain()
        writer.close()

    uri = await bucket.open(sqlite).put(b"x")
    async with await asyncio.start_server(refuse, "127.0.0.1") as server:
        objects = S3Store(
            "media",
            endpoint=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}",
            access_key_id="k",
            secret_access_key="s",
            session_token="t",
            region="us-east-1",
            client_options={"allow_http": True},
        )
        media = S3Media(sqlite, objects, location=bucket.url)
        for attempt in (media.put(b"small"), media.put(os.urandom(9_000_000)), media.get(uri)):
            with pytest.raises(error, match=rf"(?i){said}"):
                await attempt
        with pytest.raises(error, match=rf"(?i){said}"):
            async with media.open() as writer:
                await writer.write(b"streamed")
    assert [blob.size for blob in (await media.list()).items] == [1]
    for data in (b"small", b"streamed"):
        assert await bucket.open(sqlite).get(await bucket.open(sqlite).put(data)) == data


async def test_an_object_that_is_gone(sqlite: Store, bucket: Medium):
    media = bucket.open(sqlite)
    uri = await media.put(b"x")
    bucket.objects().delete((await media.metadata(uri)).key)
    assert not await media.exists(uri)
    with pytest.raises(MediaNotFound):
        await media.get(uri)
    assert await media.put(b"x") == uri
    assert await media.get(uri) == b"x"


@asynccontextmanager
async def cutting(target: str, after: int) -> AsyncGenerator[str, None]:
    """A way to a server on which every connection is cut after so many bytes, in either direction."""
    host, port = target.removeprefix("http://").split(":")
    serving: set[asyncio.Task[None] | None] = set()

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        passed = 0
        try:
            while passed < after and (data := await reader.read(65536)):
                passed += len(data)
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection(host, int(port))
        except OSError:
            writer.close()
            return
        serving.add(asyncio.current_task())
        with suppress(asyncio.CancelledError):
            await asyncio.gather(carry(reader, back), carry(there, writer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in filter(None, serving):
            task.cancel()
        await asyncio.gather(*filter(None, serving))


@pytest.mark.parametrize("size", [3_000_000, 20_000_000])
async def test_a_network_that_is_cut(
    sqlite: Store, bucket: Medium, monkeypatch: pytest.MonkeyPatch, size: int
):
    data, other = os.urandom(size), os.urandom(size)
    whole = bucket.open(sqlite)
    uri = await whole.put(data)
    async with cutting(bucket.environment["AWS_ENDPOINT_URL"], 1_000_000) as address:
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        cut = bucket.open(sqlite)
        with pytest.raises(MediaUnavailable):
            await cut.put(other)
        with pytest.raises(MediaUnavailable):
            async with cut.open() as writer:
                await writer.write(other)
    async with cutting(bucket.environment["AWS_ENDPOINT_URL"], 2000) as address:
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        with pytest.raises(MediaUnavailable):
            await bucket.open(sqlite).get(uri)
    assert [blob.uri for blob in (await whole.list()).items] == [uri]
    assert await whole.get(uri) == data
    assert await whole.get(await whole.put(other)) == other
    # What the failed ones left is found by their entries.
    await collect(whole, grace=0, dead_after=0)
    assert (await sqlite.blobs()).items == []
    assert await bucket.stored() == 0


async def test_presigned_urls(sqlite: Store, bucket: Medium):
    media = S3Media.from_url(bucket.url, sqlite, presigned=timedelta(seconds=1))
    uri = await media.put(b"for others", MediaContext(media_type="image/png", file_name="ü.png"))
    url = await media.public_url(uri)
    assert url is not None

    def fetch(address: str) -> tuple[bytes, str, dict[str, str]]:
        with urllib.request.urlopen(address, timeout=5) as answer:
            return answer.read(), answer.headers["Content-Type"], dict(answer.headers)

    body, media_type, headers = await asyncio.to_thread(fetch, url)
    assert (body, media_type) == (b"for others", "image/png")
    told = {name.lower(): value for name, value in headers.items()}
    assert told["x-amz-meta-sha256"] == uri.removeprefix("media+sha256://")
    assert told["x-amz-meta-file-name"] == "%C3%BC.png"
    while True:  # until it has expired
        try:
            await asyncio.to_thread(fetch, url)
        except urllib.error.HTTPError as refused:
            assert refused.code == 403  # noqa: PT017
            break
    with pytest.raises(BadInput):
        S3Media.from_url(bucket.url, sqlite, presigned=timedelta(seconds=1), public_url="https://x")
