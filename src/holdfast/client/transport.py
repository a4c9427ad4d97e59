"""The calls of the client: operations by their method and path, streams that resume, and errors as classes.

`http.py` sends them to an API server; `local.py` runs them on a store in this process. Handles work the same on both.
"""

import asyncio
import json
import random
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, aclosing
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from holdfast.api.models import Items
from holdfast.api.retention import RehydrateResult
from holdfast.errors import HoldfastError, ServerError, ServerUnavailable, StoreError
from holdfast.media import walker

M = TypeVar("M", bound=BaseModel)
R = TypeVar("R")
_PAUSE_SECONDS = 0.2
_LONGEST_PAUSE_SECONDS = 5.0
_PATIENCE_SECONDS = 300.0
"""How long a reader waits for a server that is restarting."""
_GATEWAY = {502, 503, 504}
"""HTTP statuses of a stopping server, and of a proxy whose server is unavailable."""


class Transport(ABC):
    """Calls operations. Raises Holdfast's own errors."""

    @abstractmethod
    async def send(
        self,
        method: str,
        path: str,
        *,
        json: object = None,
        params: Mapping[str, Any] | None = None,
        is_long: bool = False,
    ) -> "BaseModel | str":
        """Call an operation, and return its result: a model, or JSON text. Parameters that are None are left out.

        A long call reads or writes an entire session, and has no timeout.
        """

    @abstractmethod
    def archive(self, session_id: str, *, gzip: bool) -> AsyncGenerator[bytes, None]:
        """Yield the archive of a session. Raises `ArchiveFailed` if it ends early."""

    @abstractmethod
    async def rehydrate(self, session_id: str, archive: Path | None, *, force: bool) -> RehydrateResult:
        """Restore a cleaned session from an archive file, or from the archive in the media store."""

    @abstractmethod
    async def media(self, sha256: str) -> bytes:
        """Return the content with this SHA-256."""

    @abstractmethod
    def listen(
        self, path: str, *, after: int | None = None, params: Mapping[str, Any] | None = None
    ) -> AbstractAsyncContextManager[AsyncGenerator[str, None]]:
        """Open an event stream, after an event, and yield its text in pieces."""

    @abstractmethod
    async def metrics(self) -> str:
        """Return the metrics in Prometheus format."""

    async def call(self, model: type[M], method: str, path: str, **options: Any) -> M:
        """Call an operation and return its result as a model."""
        result = await self.send(method, path, **options)
        if type(result) is model:
            return result
        try:
            return model.model_validate_json(result if isinstance(result, str) else result.model_dump_json())
        except ValidationError as error:
            problem = f"the response is not a {model.__name__}: {error.errors()[0]['msg']}"
            raise ServerError(status=200, code="unknown", message=problem) from error

    async def stored(self, model: type[M], path: str, params: Mapping[str, Any]) -> AsyncGenerator[M, None]:
        """Yield all items of a list that contain stored JSON, page by page, without media."""
        cursor: str | None = None
        while True:
            items, cursor = await self.page(path, {**params, "cursor": cursor}, media=False)
            for item in items:
                yield model.model_validate(item)
            if cursor is None:
                return

    async def items(self, model: type[M], path: str, params: Mapping[str, Any]) -> AsyncGenerator[M, None]:
        """Yield all items of a list, page by page."""
        cursor: str | None = None
        while True:
            page = await self.call(Items[model], "GET", path, params={**params, "cursor": cursor})
            for item in page.items:
                yield item
            cursor = page.next_cursor
            if cursor is None:
                return

    async def page(
        self, path: str, params: Mapping[str, Any], *, media: bool = True
    ) -> tuple[list[dict[str, Any]], str | None]:
        """Return a page of items that contain stored JSON, with the media of messages, and the cursor of the next page."""
        result = await self.send("GET", path, params=params)
        text = result if isinstance(result, str) else result.model_dump_json()
        try:
            page = json.loads(await self._with_media(text) if media else text)
            return page["items"], page["next_cursor"]
        except (ValueError, LookupError, TypeError, RecursionError):
            problem = "the response is not a page of items"
            raise ServerError(status=200, code="unknown", message=problem) from None

    async def stream(self, path: str, *, after: int) -> AsyncGenerator[tuple[str, dict[str, Any]], None]:
        """Yield every block of an event stream, as its kind and its data, and reconnect until the session is erased.

        Raises `ServerUnavailable` if the server stays unavailable for minutes.
        """
        pause, loop = _PAUSE_SECONDS, asyncio.get_running_loop()
        since: float | None = None  # when the server was first missed
        while True:
            try:
                async with (
                    self.listen(path, after=after) as pieces,
                    aclosing(blocks(pieces)) as received,
                ):
                    async for kind, text in received:
                        pause, since = _PAUSE_SECONDS, None
                        data = json.loads(await self._with_media(text))
                        if kind == "end":
                            if data.get("reason") == "erased":
                                return
                            break
                        after = data.get("seq", after)
                        yield kind, data
            except HoldfastError as error:
                since = since or loop.time()
                if not _may_return(error) or loop.time() - since > _PATIENCE_SECONDS:
                    raise
            await asyncio.sleep(pause * random.uniform(0.5, 1))  # noqa: S311
            pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)

    async def patiently(self, read: Callable[[], Awaitable[R]]) -> R:
        """Return the result of a call that can be repeated, and repeat it while the server is restarting."""
        pause, end = _PAUSE_SECONDS, asyncio.get_running_loop().time() + _PATIENCE_SECONDS
        while True:
            try:
                return await read()
            except HoldfastError as error:
                if not _may_return(error) or asyncio.get_running_loop().time() > end:
                    raise
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)

    async def _with_media(self, text: str) -> str:
        """Return JSON text with the content that was moved to the media store."""
        if not walker.is_changed(text):
            return text
        contents = {digest: await self.media(digest) for digest in walker.digests([text])}
        return walker.put_back(text, contents)


def _may_return(error: HoldfastError) -> bool:
    """Return whether an error may be resolved by a restart of the server or the database."""
    is_away = isinstance(error, ServerUnavailable | StoreError) and not error.is_permanent
    return is_away or error.status in _GATEWAY


async def blocks(pieces: AsyncGenerator[str, None]) -> AsyncGenerator[tuple[str, str], None]:
    """Yield the blocks of an event stream, as their kind and their data."""
    kind, lines = "message", list[str]()
    async with aclosing(_lines(pieces)) as received:
        async for line in received:
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if name == "event":
                kind = value
            elif name == "data":
                lines.append(value)
            elif not line and lines:
                yield kind, "\n".join(lines)
                kind, lines = "message", []


async def _lines(pieces: AsyncGenerator[str, None]) -> AsyncGenerator[str, None]:
    """Yield the lines of an event stream. `str.splitlines` would also split at other characters."""
    rest = ""
    async for piece in pieces:
        *lines, rest = (rest + piece).split("\n")
        for line in lines:
            yield line.removesuffix("\r")
