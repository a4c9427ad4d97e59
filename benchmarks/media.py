"""Media: put and get through each store against the raw medium, and memory while 1 GB streams.

The raw medium does the same amount of durable writing: a synced file, a committed `BYTEA`, an object put by obstore.
What the stores add is the digest, the register and, on reading, the check. A file that is read from the page cache comes
faster than SHA-256 can follow, so its bar is lower.
"""

import asyncio
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import obstore
from obstore.store import S3Store

from benchmarks.report import Report, progress, side_by_side
from holdfast.media import MediaStore, open_media
from holdfast.store import open_store
from tests.servers import SeaweedFs, postgres, seaweedfs

SIZE = 32 * 1024 * 1024
BLOCKS = 5
GIGABYTE = 1024**3
Raw = tuple[Callable[[bytes], Awaitable[object]], Callable[[], Awaitable[bytes]]]


async def compare(
    report: Report, name: str, media: MediaStore, raw: Raw, *, put_bar: float, get_bar: float
) -> None:
    """Time put and get of a blob in both ways, in turns."""
    put_raw, get_raw = raw
    fresh = iter([os.urandom(SIZE) for _ in range(BLOCKS + 1)])
    data, uri = b"", ""

    async def prepare() -> None:
        nonlocal data
        data = next(fresh)

    async def put() -> float:
        nonlocal uri
        started = time.perf_counter()
        uri = await media.put(data)
        return time.perf_counter() - started

    async def put_plainly() -> float:
        started = time.perf_counter()
        await put_raw(data)
        return time.perf_counter() - started

    async def get() -> float:
        started = time.perf_counter()
        got = await media.get(uri)
        assert len(got) == SIZE
        return time.perf_counter() - started

    async def get_plainly() -> float:
        started = time.perf_counter()
        assert len(await get_raw()) == SIZE
        return time.perf_counter() - started

    for what, first, second, before, bar in (
        ("put", put, put_plainly, prepare, put_bar),
        ("get", get, get_plainly, None, get_bar),
    ):
        duel = await side_by_side(first, second, blocks=BLOCKS, **({"prepare": before} if before else {}))
        rates = [SIZE / 1e6 / sorted(side)[len(side) // 2] for side in (duel.first, duel.second)]
        detail = f"media {rates[0]:,.0f} MB/s, raw {rates[1]:,.0f} MB/s"
        report.add(f"{name}: {what}, share of the raw medium", 1 / duel.ratio, at_least=bar, detail=detail)


def raw_disk(folder: Path) -> Raw:
    file = folder / "raw"

    def write(data: bytes) -> None:
        with file.open("wb") as out:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())

    async def put(data: bytes) -> None:
        await asyncio.to_thread(write, data)

    async def get() -> bytes:
        return await asyncio.to_thread(file.read_bytes)

    return put, get


def raw_sqlite(folder: Path) -> Raw:
    connection = sqlite3.connect(folder / "raw.db", isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("CREATE TABLE raw (body BLOB)")

    async def put(data: bytes) -> None:
        await asyncio.to_thread(connection.execute, "INSERT INTO raw VALUES (?)", (data,))

    async def get() -> bytes:
        query = "SELECT body FROM raw ORDER BY rowid DESC LIMIT 1"
        return (await asyncio.to_thread(connection.execute, query)).fetchone()[0]

    return put, get


async def raw_postgres(url: str) -> Raw:
    connection = await asyncpg.connect(url)
    await connection.execute("CREATE TABLE raw (id bigserial PRIMARY KEY, body bytea)")

    async def put(data: bytes) -> None:
        await connection.execute("INSERT INTO raw (body) VALUES ($1)", data)

    async def get() -> bytes:
        return await connection.fetchval("SELECT body FROM raw ORDER BY id DESC LIMIT 1")

    return put, get


def raw_s3(server: SeaweedFs) -> Raw:
    objects = S3Store(
        "media",
        prefix="raw",
        endpoint=server.url,
        access_key_id=server.key,
        secret_access_key=server.secret,
        region="us-east-1",
        client_options={"allow_http": True, "timeout": "60s"},
    )

    async def put(data: bytes) -> None:
        await obstore.put_async(objects, "raw", data)

    async def get() -> bytes:
        return bytes(await (await obstore.get_async(objects, "raw")).bytes_async())

    return put, get


@asynccontextmanager
async def opened(store_url: str, url: str) -> AsyncGenerator[MediaStore, None]:
    async with open_store(store_url) as store:
        yield open_media(url, store=store)


def resident() -> float:
    """Return the memory of this process that is in use, in MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


async def stream(store_url: str, url: str) -> None:
    """Put and get 1 GB and print how far the memory rose above what an idle process has."""
    piece = os.urandom(1024 * 1024)
    async with opened(store_url, url) as media:
        await media.get(await media.put(piece))
        idle = highest = resident()
        async with media.open() as writer:
            for number in range(GIGABYTE // len(piece)):
                await writer.write(number.to_bytes(8) + piece[8:])
                highest = max(highest, resident())
        size = 0
        async with media.open(writer.uri) as chunks:
            async for chunk in chunks:
                size += len(chunk)
                highest = max(highest, resident())
        assert size == GIGABYTE
        print(highest - idle)


def rise(store_url: str, url: str, environment: dict[str, str]) -> float:
    """Measure that in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.media", "stream", store_url, url]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | environment)
    return float(done.stdout)


async def main() -> int:
    report = Report("media")
    with tempfile.TemporaryDirectory() as name, postgres() as server, seaweedfs() as s3:
        folder = Path(name)
        os.environ.update(s3.environment())
        sqlite = f"sqlite:///{folder}/store.db"
        raw: dict[str, tuple[str, str, Any, float]] = {
            "disk": (sqlite, f"disk://{folder}/media", raw_disk(folder), 0.15),
            "sqlite": (sqlite, "database", raw_sqlite(folder), 0.5),
            "postgres": (server.url(), "database", await raw_postgres(server.url()), 0.5),
            "s3": (sqlite, "s3://media/bench", raw_s3(s3), 0.5),
        }
        for medium, (store_url, url, plain, get_bar) in raw.items():
            progress(medium)
            async with opened(store_url, url) as media:
                await compare(report, medium, media, plain, put_bar=0.5, get_bar=get_bar)
            risen = await asyncio.to_thread(rise, store_url, url, s3.environment())
            report.add(f"{medium}: memory above idle while 1 GB streams in and out", risen, "MB", at_most=64)
    return report.finish()


if __name__ == "__main__":
    if sys.argv[1:2] == ["stream"]:
        asyncio.run(stream(*sys.argv[2:]))
    else:
        sys.exit(asyncio.run(main()))
