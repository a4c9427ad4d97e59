"""Media in a bucket, through obstore: S3 and compatible services, Google Cloud Storage, Azure.

An object appears complete or not at all. Streamed content is written to a temporary file first: its key contains its
digest, and content that the bucket already has is not uploaded.
"""

import asyncio
import json
import os
import re
import tempfile
from collections.abc import AsyncGenerator, Generator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    PermissionDeniedError,
    UnauthenticatedError,
)
from obstore.store import from_url

from holdfast.errors import BadInput, MediaDenied, MediaError, MediaNotFound, MediaUnavailable
from holdfast.media.media_store import (
    ANY,
    CHUNK,
    KeyStrategy,
    MediaContext,
    MediaStore,
    PublicUrl,
    Stage,
    by_digest,
    check_key,
)
from holdfast.store import Store
from holdfast.types import Blob

if TYPE_CHECKING:
    from obstore.store import ClientConfig, ObjectStore, RetryConfig

_PART = 6 * CHUNK
"""Larger content is uploaded in parts of this size, a few at a time."""
_PARTS_AT_ONCE = 2
_HEADER_BYTES = 1024
_RETRY: "RetryConfig" = {"max_retries": 4, "retry_timeout": timedelta(seconds=30)}
# A server that does not respond is given up soon; a large object may take as long as data is moving.
_CLIENT: "ClientConfig" = {"connect_timeout": "5s", "read_timeout": "30s", "timeout": "3600s"}
_SIGNATURE = re.compile(r"\?[^\s\"')]*")
_DENIED = re.compile(
    r"InvalidAccessKeyId|SignatureDoesNotMatch|ExpiredToken|AccessDenied|TokenRefreshRequired|InvalidToken"
)


class S3Media(MediaStore):
    """Content as objects in a bucket, below `key_prefix`.

    With `presigned`, `public_url` returns signed URLs that expire after that time; they are secrets until then.
    """

    def __init__(
        self,
        store: Store,
        objects: "ObjectStore",
        *,
        location: str,
        key_prefix: str = "",
        key_strategy: KeyStrategy = by_digest,
        public_url: PublicUrl | None = None,
        presigned: timedelta | None = None,
    ) -> None:
        if presigned is not None and public_url is not None:
            raise BadInput(problem="pass either `public_url` or `presigned`, not both")
        if key_prefix:
            key_prefix = check_key(key_prefix.rstrip("/"), location) + "/"
        super().__init__(store, location, key_strategy=key_strategy, public_url=public_url)
        self._objects = objects
        self._key_prefix = key_prefix
        self._presigned = presigned

    @classmethod
    def from_url(cls, url: str, store: Store, **options: Any) -> Self:
        """Return the media store of a bucket, `s3://bucket/prefix`, configured by environment variables."""
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
        client: ClientConfig = {**_CLIENT, "allow_http": endpoint.startswith("http://")}
        location = url.rstrip("/")
        try:
            objects = from_url(location, client_options=client, retry_config=_RETRY)
        except (BaseError, ValueError) as error:
            raise MediaUnavailable(location=location, problem=_describe(error)) from error
        return cls(store, objects, location=location, **options)

    async def public_url(self, uri: str, context: MediaContext = ANY) -> str | None:
        """Return the URL of the object: below the base URL, presigned, or from the callable."""
        if self._presigned is None:
            return await super().public_url(uri, context)
        blob = await self.metadata(uri)
        if blob.location != self.location:
            return None
        with self._translated_errors():
            signing: Any = self._objects  # stores that cannot sign raise an error
            return str(await obstore.sign_async(signing, "GET", blob.key, self._presigned))

    def _named(self, blob: Blob, sha256: str, size: int, context: MediaContext) -> Blob:
        named = super()._named(blob, sha256, size, context)
        return replace(named, key=f"{self._key_prefix}{named.key}")

    async def _write(self, blob: Blob, data: bytes) -> None:
        await self._upload(blob, data, len(data))

    async def _upload(self, blob: Blob, source: bytes | Path, size: int) -> None:
        """Upload the content. The key belongs to this upload, so an existing object is from an attempt whose response was lost."""
        with self._translated_errors():
            try:
                if size <= _PART:
                    await obstore.put_async(
                        self._objects, blob.key, source, attributes=_attributes(blob), mode="create"
                    )
                else:
                    await obstore.put_async(
                        self._objects,
                        blob.key,
                        source,
                        attributes=_attributes(blob),
                        use_multipart=True,
                        chunk_size=_PART,
                        max_concurrency=_PARTS_AT_ONCE,
                    )
            except AlreadyExistsError:
                pass

    async def _stage(self, blob: Blob) -> Stage:
        del blob
        return _Spool(self)

    async def _read(self, blob: Blob) -> AsyncGenerator[bytes, None]:
        with self._translated_errors(blob):
            result = await obstore.get_async(self._objects, blob.key)
            async for chunk in result.stream(min_chunk_size=CHUNK):
                yield bytes(chunk)

    async def _read_part(self, blob: Blob, start: int, stop: int) -> AsyncGenerator[bytes, None]:
        with self._translated_errors(blob):
            if (size := (await obstore.head_async(self._objects, blob.key))["size"]) != blob.size:
                raise await self._resized(blob, size)
            result = await obstore.get_async(self._objects, blob.key, options={"range": (start, stop)})
            async for chunk in result.stream(min_chunk_size=CHUNK):
                yield bytes(chunk)

    async def _present(self, blob: Blob) -> bool:
        try:
            with self._translated_errors(blob):
                return (await obstore.head_async(self._objects, blob.key))["size"] == blob.size
        except MediaNotFound:
            return False

    async def _remove(self, blob: Blob) -> None:
        if not blob.key:
            return
        with self._translated_errors():
            try:
                await obstore.delete_async(self._objects, blob.key)
            except FileNotFoundError as error:
                if "NoSuchBucket" in str(error):
                    raise

    async def _give_up(self, blob: Blob) -> None:
        """Do nothing: data in transit may still arrive, and the collector finds it by its entry."""

    @contextmanager
    def _translated_errors(self, blob: Blob | None = None) -> Generator[None, None, None]:
        """Raise errors of obstore as Holdfast errors, without the signatures that they may contain."""
        try:
            yield
        except FileNotFoundError as error:
            if blob is None or "NoSuchBucket" in str(error):
                raise MediaUnavailable(location=self.location, problem=_describe(error)) from error
            raise MediaNotFound(uri=blob.uri, location=self.location) from error
        except (PermissionDeniedError, UnauthenticatedError) as error:
            raise MediaDenied(location=self.location, problem=_describe(error)) from error
        except (BaseError, OSError) as error:
            kind: type[MediaError] = MediaDenied if _DENIED.search(str(error)) else MediaUnavailable
            raise kind(location=self.location, problem=_describe(error)) from error


class _Spool(Stage):
    """A temporary file that becomes an object when its digest is known."""

    def __init__(self, media: S3Media) -> None:
        self._media = media
        self._file = tempfile.NamedTemporaryFile(prefix="holdfast-")  # noqa: SIM115 - closed by close()

    async def write(self, data: bytes) -> None:
        with self._media._translated_errors():  # pyright: ignore[reportPrivateUsage]  # noqa: SLF001
            await asyncio.to_thread(self._file.write, data)

    async def place(self, blob: Blob) -> None:
        with self._media._translated_errors():  # pyright: ignore[reportPrivateUsage]  # noqa: SLF001
            await asyncio.to_thread(self._file.flush)
        await self._media._upload(blob, Path(self._file.name), blob.size)  # pyright: ignore[reportPrivateUsage]  # noqa: SLF001

    async def close(self) -> None:
        self._file.close()


def _attributes(blob: Blob) -> dict[str, str]:
    """Return the attributes of the object, as short, plain headers. The register has all of them."""
    attributes = {"Content-Type": blob.media_type, "sha256": blob.sha256}
    if blob.file_name:
        attributes["file-name"] = quote(blob.file_name)[:_HEADER_BYTES]
    metadata = quote(json.dumps(json.loads(blob.metadata)))
    if blob.metadata != "{}" and len(metadata) <= _HEADER_BYTES:
        attributes["metadata"] = metadata
    return attributes


def _describe(error: BaseException) -> str:
    """Return an error in one line, without anything after a question mark, which may be a signature."""
    text = _SIGNATURE.sub("?…", " ".join(str(error).split()))
    code = re.search(r"<Code>(\w+)</Code>(?:.*?<Message>(.*?)</Message>)?", text)
    if code:
        return f"{code[1]}: {code[2] or ''}".rstrip(": .")
    return text.split(" Debug source:")[0][:300].rstrip(".")
