"""Calls over HTTP, to an API server."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any

import httpx2

from holdfast.api.retention import RehydrateResult
from holdfast.client.files import read_pieces
from holdfast.client.transport import Transport
from holdfast.errors import (
    ArchiveFailed,
    BadText,
    HoldfastError,
    ServerError,
    ServerUnavailable,
    Unauthenticated,
)
from holdfast.ids import is_token
from holdfast.operations.registry import dump_body

_LONG = httpx2.Timeout(30, read=None)
_STREAM = httpx2.Timeout(10, read=60)


def new_http(url: str, token: str | None, *, timeout: float = 30.0) -> httpx2.AsyncClient:
    """Return an HTTP client for an API server."""
    if token is not None and not is_token(token):
        raise Unauthenticated(problem="The token contains invalid characters.")
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    unlimited = httpx2.Limits(max_connections=None)  # each stream needs a connection of its own
    return httpx2.AsyncClient(base_url=url, headers=headers, timeout=timeout, limits=unlimited)


class HttpTransport(Transport):
    """Sends requests over an httpx2 client, and raises the errors of the server as Holdfast's own errors."""

    def __init__(self, http: httpx2.AsyncClient) -> None:
        self._http = http

    async def send(
        self,
        method: str,
        path: str,
        *,
        json: object = None,
        params: Mapping[str, Any] | None = None,
        is_long: bool = False,
    ) -> str:
        """Send a request and return the body of the response if it is a success."""
        options: dict[str, Any] = {"params": _given(params), "is_long": is_long}
        if json is not None:
            options |= {"content": dump_body(json), "headers": {"content-type": "application/json"}}
        response = await self._request(method, path, **options)
        return response.text

    async def _request(
        self, method: str, path: str, *, is_long: bool = False, **options: Any
    ) -> httpx2.Response:
        if is_long:
            options["timeout"] = _LONG
        async with self._failing():
            response = await self._http.request(method, path, **options)
        _raise_error(response)
        return response

    async def archive(self, session_id: str, *, gzip: bool) -> AsyncGenerator[bytes, None]:
        """Yield the archive of a session. Raises `ArchiveFailed` if the stream ends early."""
        path, params = f"/api/sessions/{session_id}/export", {"gzip": gzip}
        try:
            async with self._download(path, params=params, timeout=_LONG) as response:
                async for piece in response.aiter_bytes():
                    yield piece
        except ServerUnavailable as error:
            raise ArchiveFailed(problem=str(error).rstrip(".")) from error

    async def rehydrate(self, session_id: str, archive: Path | None, *, force: bool) -> RehydrateResult:
        """Restore a cleaned session from an archive file, or from the archive in the media store."""
        content = None if archive is None else read_pieces(archive)
        path, params = f"/api/sessions/{session_id}/rehydrate", {"force": force}
        response = await self._request("POST", path, content=content, params=params, is_long=True)
        return RehydrateResult.model_validate_json(response.content)

    async def media(self, sha256: str) -> bytes:
        """Return the content with this SHA-256."""
        return (await self._request("GET", f"/api/media/{sha256}", is_long=True)).content

    async def metrics(self) -> str:
        """Return the metrics in Prometheus format."""
        return (await self._request("GET", "/metrics")).text

    @asynccontextmanager
    async def listen(
        self, path: str, *, after: int | None = None, params: Mapping[str, Any] | None = None
    ) -> AsyncGenerator[AsyncGenerator[str, None], None]:
        """Open an event stream, after an event, and yield its text in pieces."""
        headers = {"accept": "text/event-stream"} | ({} if after is None else {"last-event-id": str(after)})
        options: dict[str, Any] = {"headers": headers, "params": _given(params), "timeout": _STREAM}
        async with self._download(path, **options) as response, aclosing(_text(response)) as pieces:
            yield pieces

    @asynccontextmanager
    async def _download(self, path: str, **options: Any) -> AsyncGenerator[httpx2.Response, None]:
        """Send a GET request whose response is read piece by piece."""
        async with self._failing(), self._http.stream("GET", path, **options) as response:
            if not response.is_success:
                await response.aread()
                _raise_error(response)
            yield response

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


def _given(params: Mapping[str, Any] | None) -> dict[str, Any]:
    return {name: value for name, value in (params or {}).items() if value is not None}


async def _text(response: httpx2.Response) -> AsyncGenerator[str, None]:
    async for piece in response.aiter_text():
        yield piece


@cache
def _error_classes() -> dict[str, type[HoldfastError]]:
    """Return the classes of errors by code. A code that several classes have is that of the first."""
    kinds: list[type[HoldfastError]] = [HoldfastError]
    for kind in kinds:
        kinds += kind.__subclasses__()
    return {kind.code: kind for kind in reversed(kinds)}


def _raise_error(response: httpx2.Response) -> None:
    """Raise the error in a response, as the same class that the server raised."""
    if response.is_success:
        return
    status = response.status_code
    try:
        error = response.json()["error"]
        code, message, facts = str(error["code"]), str(error["message"]), dict(error.get("facts", {}))
    except (ValueError, LookupError, TypeError, RecursionError):  # it is not from Holdfast, but from a proxy
        text = response.text[:200].strip().rstrip(".") or "no reason given"
        raise ServerError(status=status, code="unknown", message=text) from None
    kind = _error_classes().get(code)
    if kind is not None:
        raised = kind.restore(message, facts)
    else:
        raised = ServerError(status=status, code=code, message=message.rstrip("."), facts=facts)
    raised.status = status
    raise raised
