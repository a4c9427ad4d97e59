"""Every media store in turn, with a way to its raw bytes that does not lead through it."""

import os
import sqlite3
from collections.abc import AsyncGenerator, Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg
import obstore
import pytest
from obstore.store import S3Store
from pymongo import AsyncMongoClient

from holdfast.media import MediaStore, open_media
from holdfast.store import Store, open_store
from holdfast.types import Blob
from tests.servers import SeaweedFs, seaweedfs


@dataclass
class Medium:
    """A media store to test: where its register and its bytes are, and how to get at these behind its back."""

    name: str
    store_url: str
    url: str
    folder: Path
    environment: dict[str, str] = field(default_factory=dict[str, str])

    def open(self, store: Store) -> MediaStore:
        return open_media(self.url, store=store)

    async def stored(self) -> int:
        """How many bytes of content there are, in whatever state."""
        if self.url.startswith("disk"):
            files = [file for file in (self.folder / "media").rglob("*") if file.is_file()]
            return sum(file.stat().st_size for file in files if file.suffix != ".json")
        if self.url.startswith("s3"):
            objects: Any = self.objects()
            return sum(meta["size"] for page in objects.list() for meta in page)
        if self.name == "mongodb":
            async with AsyncMongoClient[dict[str, Any]](self.store_url) as client:
                chunks = client.get_default_database()["blob_chunks"]
                return sum([len(chunk["body"]) async for chunk in chunks.find({})])
        (row,) = await self._sql("SELECT coalesce(sum(length(body)), 0) FROM blob_chunks")
        return int(str(row[0]))

    async def damage(self, blob: Blob, data: bytes) -> None:
        """Put other bytes in place of what is stored."""
        if self.url.startswith("disk"):
            (self.folder / "media" / blob.key).write_bytes(data)
        elif self.url.startswith("s3"):
            obstore.put(self.objects(), blob.key, data)
        elif self.name == "mongodb":
            half = len(data) // 2
            async with AsyncMongoClient[dict[str, Any]](self.store_url) as client:
                chunks = client.get_default_database()["blob_chunks"]
                await chunks.delete_many({})
                for number, body in enumerate((data[:half], data[half:])):
                    key = {"blob_id": blob.id, "number": number}
                    await chunks.insert_one({"_id": key, **key, "body": body})
        else:
            half = len(data) // 2
            await self._sql("DELETE FROM blob_chunks")
            for number, body in enumerate((data[:half], data[half:])):
                await self._sql(f"INSERT INTO blob_chunks VALUES ('{blob.id}', {number}, {self._hex(body)})")

    def objects(self) -> S3Store:
        return S3Store.from_url(
            self.url,
            endpoint=self.environment["AWS_ENDPOINT_URL"],
            access_key_id=self.environment["AWS_ACCESS_KEY_ID"],
            secret_access_key=self.environment["AWS_SECRET_ACCESS_KEY"],
            region="us-east-1",
            client_options={"allow_http": True},
        )

    def _hex(self, body: bytes) -> str:
        return f"x'{body.hex()}'" if self.name == "sqlite" else f"'\\x{body.hex()}'"

    async def _sql(self, statement: str) -> list[tuple[object, ...]]:
        if self.name == "sqlite":
            connection = sqlite3.connect(self.store_url.removeprefix("sqlite:///"))
            try:
                with connection:
                    return connection.execute(statement).fetchall()
            finally:
                connection.close()
        server = await asyncpg.connect(self.store_url, server_settings={"search_path": "holdfast"})
        try:
            return [tuple(row) for row in await server.fetch(statement)]
        finally:
            await server.close()


@pytest.fixture(scope="session")
def s3_server() -> Generator[SeaweedFs, None, None]:
    with seaweedfs() as server:
        yield server


@pytest.fixture(params=["disk", "sqlite", "postgres", "mongodb", "s3", "disk on postgres"])
def medium(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Medium:
    store_url, url = f"sqlite:///{tmp_path}/store.db", "database"
    environment: dict[str, str] = {}
    if "postgres" in request.param:
        store_url = request.getfixturevalue("postgres_url")
    if request.param == "mongodb":
        store_url = request.getfixturevalue("mongo_url")
    if "disk" in request.param:
        url = f"disk://{tmp_path}/media"
    if request.param == "s3":
        s3: SeaweedFs = request.getfixturevalue("s3_server")
        environment = s3.environment()
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        url = f"s3://media/{tmp_path.name}-{os.getpid()}"
    return Medium(request.param, store_url, url, tmp_path, environment)


@pytest.fixture
async def store(medium: Medium) -> AsyncGenerator[Store, None]:
    async with open_store(medium.store_url) as store:
        yield store
        assert await store.check() == []


@pytest.fixture
def media(medium: Medium, store: Store) -> MediaStore:
    return medium.open(store)
