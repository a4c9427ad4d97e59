"""Requests to an API server, and its responses as values. Whether the server is in this process makes no difference."""

import asyncio
import json
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any, TypeVar

import httpx2
from pydantic import BaseModel, ValidationError

from holdfast.api.models import Items
from holdfast.errors import (
    BadText,
    HoldfastError,
    ServerError,
    ServerUnavailable,
    Unauthenticated,
    error_of,
)
from holdfast.ids import is_token
from holdfast.media import walker

M = TypeVar("M", bound=BaseModel)
R = TypeVar("R")
_PAUSE_SECONDS = 0.2
_LONGEST_PAUSE_SECONDS = 5.0
LONG = httpx2.Timeout(30, read=None)
"""For requests that read or write all of a session: they are answered when that is done."""
_STREAM = httpx2.Timeout(10, read=60)
_PATIENCE_SECONDS = 300.0
"""How long a reader waits for a server that is restarting."""
_GATEWAY = {502, 503, 504}
"""The statuses of a server that is stopping, and of a proxy whose server is away."""


def new_http(url: str, token: str | None, *, timeout: float = 30.0) -> httpx2.AsyncClient:
    """Return an HTTP client for an API server."""
    if token is not None and not is_token(token):
        raise Unauthenticated(problem="The token has characters that no token has.")
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    unlimited = httpx2.Limits(max_connections=None)  # each stream needs a connection of its own
    return httpx2.AsyncClient(base_url=url, headers=headers, timeout=timeout, limits=unlimited)


class Transport:
    """Sends requests over an httpx2 client, and raises the errors of the server as Holdfast's own errors."""

    def __init__(self, http: httpx2.AsyncClient) -> None:
        self._http = http

    async def request(self, method: str, path: str, **options: Any) -> httpx2.Response:
        """Send a request and return the response if it is a success."""
        async with self._failing():
            response = await self._http.request(method, path, **options)
        _raise_error(response)
        return response

    async def call(
        self,
        model: type[M],
        method: str,
        path: str,
        *,
        json: object = None,
        params: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> M:
        """Send a request and return the body of the response. Parameters that are None are left out."""
        response = await self.request(method, path, json=json, params=_given(params or {}), **options)
        try:
            return model.model_validate_json(response.content)
        except ValidationError as error:
            problem = f"the response is not a {model.__name__}: {error.errors()[0]['msg']}"
            raise ServerError(status=response.status_code, code="unknown", message=problem) from error

    async def items(
        self, model: type[M], path: str, params: Mapping[str, Any], *, after: str = "cursor"
    ) -> AsyncGenerator[M, None]:
        """Yield all items of a list, page by page. `after` names the parameter that takes the cursor."""
        cursor: str | None = None
        while True:
            where = {**params, **({} if cursor is None else {after: cursor})}
            page = await self.call(Items[model], "GET", path, params=where)
            for item in page.items:
                yield item
            cursor = page.next_cursor
            if cursor is None:
                return

    async def page(
        self, path: str, params: Mapping[str, Any], *, media: bool = True
    ) -> tuple[list[dict[str, Any]], str | None]:
        """Return a page of items that contain stored JSON, with the media of messages, and the cursor of the next page."""
        response = await self.request("GET", path, params=_given(params))
        try:
            page = json.loads(await self._with_media(response.text) if media else response.text)
            return page["items"], page["next_cursor"]
        except (ValueError, LookupError, TypeError, RecursionError):
            problem = "the response is not a page of items"
            raise ServerError(status=response.status_code, code="unknown", message=problem) from None

    @asynccontextmanager
    async def download(self, path: str, **options: Any) -> AsyncGenerator[httpx2.Response, None]:
        """Send a GET request whose response is read piece by piece."""
        async with self._failing(), self._http.stream("GET", path, **options) as response:
            if not response.is_success:
                await response.aread()
                _raise_error(response)
            yield response

    async def media(self, sha256: str) -> bytes:
        """Return the content with this SHA-256."""
        return (await self.request("GET", f"/api/media/{sha256}", timeout=LONG)).content

    async def stream(self, path: str, *, after: int) -> AsyncGenerator[tuple[str, dict[str, Any]], None]:
        """Yield every block of an event stream, as its kind and its data, and reconnect until the session is erased.

        Raises `ServerUnavailable` if the server has been away for minutes.
        """
        pause, loop = _PAUSE_SECONDS, asyncio.get_running_loop()
        since: float | None = None  # when the server was first missed
        while True:
            headers = {"accept": "text/event-stream", "last-event-id": str(after)}
            try:
                async with (
                    self.download(path, headers=headers, timeout=_STREAM) as response,
                    aclosing(_blocks(response)) as blocks,
                ):
                    async for kind, text in blocks:
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
        """Return the result of a request that can be repeated, and repeat it while the server is restarting."""
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

    @asynccontextmanager
    async def _failing(self) -> AsyncGenerator[None, None]:
        try:
            yield
        except (httpx2.RequestError, httpx2.InvalidURL) as error:
            problem = str(error).rstrip(".") or type(error).__name__
            raise ServerUnavailable(url=str(self._http.base_url), problem=problem) from error
        except UnicodeEncodeError:
            raise BadText(
                what="request", problem="contains a lone surrogate, which is not valid text"
            ) from None


def _may_return(error: HoldfastError) -> bool:
    """Return whether an error may be over when the server has restarted."""
    return isinstance(error, ServerUnavailable) or error.status in _GATEWAY


def _given(params: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in params.items() if value is not None}


async def _blocks(response: httpx2.Response) -> AsyncGenerator[tuple[str, str], None]:
    kind, lines = "message", list[str]()
    async with aclosing(_lines(response)) as received:
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


async def _lines(response: httpx2.Response) -> AsyncGenerator[str, None]:
    """Yield the lines of an event stream. `str.splitlines` would also split at other characters."""
    rest = ""
    async for piece in response.aiter_text():
        *lines, rest = (rest + piece).split("\n")
        for line in lines:
            yield line.removesuffix("\r")


def _raise_error(response: httpx2.Response) -> None:
    """Raise the error that a response reports, as the class that the server raised."""
    if response.is_success:
        return
    status = response.status_code
    try:
        error = response.json()["error"]
        code, message, facts = str(error["code"]), str(error["message"]), dict(error.get("facts", {}))
    except (ValueError, LookupError, TypeError, RecursionError):  # it is not from Holdfast, but from a proxy
        text = response.text[:200].strip().rstrip(".") or "no reason given"
        raise ServerError(status=status, code="unknown", message=text) from None
    kind = error_of(code)
    if kind is not None:
        raised = kind.restore(message, facts)
    else:
        raised = ServerError(status=status, code=code, message=message.rstrip("."), facts=facts)
    raised.status = status
    raise raised
