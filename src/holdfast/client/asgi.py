"""Send requests to an ASGI application in this process. Responses are streamed, unlike with httpx2's own transport."""

import asyncio
from collections.abc import AsyncGenerator, MutableMapping
from typing import TYPE_CHECKING, Any

import httpx2

if TYPE_CHECKING:
    from starlette.types import ASGIApp


class AsgiTransport(httpx2.AsyncBaseTransport):
    """An httpx2 transport whose server is an application in this process and event loop."""

    def __init__(self, app: "ASGIApp") -> None:
        self._app = app

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Start the application on a request, and return when its response has begun."""
        exchange = _Exchange(request)
        body = _ResponseBody(exchange, asyncio.create_task(exchange.run(self._app)))
        try:
            status, headers = await exchange.start
        except BaseException:
            await body.aclose()
            raise
        return httpx2.Response(status, headers=headers, stream=body)


class _Exchange:
    """One request and its response, as the application receives and sends them."""

    def __init__(self, request: httpx2.Request) -> None:
        self._request = request
        self._body = aiter(request.stream)  # pyright: ignore[reportArgumentType]
        self._body_ended = False
        self.start: asyncio.Future[tuple[int, list[tuple[bytes, bytes]]]]
        self.start = asyncio.get_running_loop().create_future()
        self.pieces: asyncio.Queue[bytes | Exception | None] = asyncio.Queue(maxsize=1)
        """The body of the response. It ends with None, or with the error of the application."""
        self.closed = asyncio.Event()

    async def run(self, app: "ASGIApp") -> None:
        """Run the application until its response has ended."""
        problem: BaseException | None = None
        try:
            await app(self._scope(), self._receive, self._send)
        except asyncio.CancelledError as error:
            if self.closed.is_set():
                raise
            problem = error
        except Exception as error:  # noqa: BLE001 - the caller of the client gets it
            problem = error
        if problem is None and self.start.done():
            await self.pieces.put(None)
            return
        failure = httpx2.ReadError(f"the application ended before its response: {problem!r}")
        failure.__cause__ = problem
        if self.start.done():
            await self.pieces.put(failure)
        else:
            self.start.set_exception(failure)

    def _scope(self) -> MutableMapping[str, Any]:
        url = self._request.url
        return {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": self._request.method,
            "headers": [(name.lower(), value) for name, value in self._request.headers.raw],
            "scheme": url.scheme,
            "path": url.path,
            "raw_path": url.raw_path.partition(b"?")[0],
            "query_string": url.query,
            "server": (url.host, url.port),
            "client": None,
            "root_path": "",
        }

    async def _receive(self) -> dict[str, Any]:
        if self._body_ended:
            await self.closed.wait()
            return {"type": "http.disconnect"}
        try:
            return {"type": "http.request", "body": await anext(self._body), "more_body": True}
        except StopAsyncIteration:
            self._body_ended = True
            return {"type": "http.request", "body": b"", "more_body": False}

    async def _send(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.start.set_result((message["status"], list(message["headers"])))
        elif body := message.get("body"):
            await self.pieces.put(bytes(body))


class _ResponseBody(httpx2.AsyncByteStream):
    """The body of a response. Closing it early disconnects the application."""

    def __init__(self, exchange: _Exchange, task: "asyncio.Task[None]") -> None:
        self._exchange = exchange
        self._task = task

    async def __aiter__(self) -> AsyncGenerator[bytes, None]:
        while (piece := await self._exchange.pieces.get()) is not None:
            if isinstance(piece, Exception):
                raise piece
            yield piece

    async def aclose(self) -> None:
        """Cancel the application if it has not ended."""
        self._exchange.closed.set()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
