"""The HTTP/1.1 protocol of the server: limits on heads, chunks and times, and strict parsing against request smuggling.

A rejected request gets an error of the documented form, and its connection is closed.
"""

import asyncio
import json
import re
import socket
import time
from typing import Any, Final, TypeAlias

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

MAX_HEAD_BYTES: Final = 64 * 1024
MAX_MESSAGE_BYTES: Final = 256 * 1024
"""The largest message over a WebSocket. Clients can send one before their token is checked."""
QUEUED_CONNECTIONS: Final = 2048
_FREE_CHUNKS: Final = 512
_MIN_CHUNK_BYTES: Final = 256
"""The minimum average size of a body's chunks, after the first ones. Each chunk costs the event loop some microseconds."""
_MIN_BYTES_PER_SECOND: Final = 500
"""The minimum speed of a body, apart from short pauses."""
_READ_BYTES: Final = 4096
_MAX_FRAMES, _FRAMES_SECONDS = 1000, 10.0
"""The maximum number of frames of a WebSocket within a number of seconds."""
_HOST: Final = re.compile(rb"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._~-]+)(:[0-9]{1,5})?")
_Event: TypeAlias = Any  # h11 types an event as one of its classes or of its sentinels


class Protocol(H11Protocol):
    """Uvicorn's protocol in pure Python, which limits the size of a head. The faster one does not."""

    request_seconds = 30.0
    """The time limit for the head of a request, and for a pause within its body.

    All pauses within a body together may take twice as long, or longer if enough of the body arrives between them. A client
    that reads nothing of a response for twice as long is disconnected.
    """

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.conn = _Connection(h11.SERVER, MAX_HEAD_BYTES)
        self._timer: asyncio.TimerHandle | None = None
        self._timed: str | None = None
        self._excused = False
        self._timed_at = self._patience = 0.0
        self._socket: asyncio.BaseProtocol | None = None
        self._writing: asyncio.TimerHandle | None = None
        self._watching: asyncio.TimerHandle | None = None
        self._is_over = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Start to wait for a head."""
        super().connection_made(transport)
        self._set_timer()
        self._watch_closing(None)

    def data_received(self, data: bytes) -> None:
        """Handle received bytes."""
        super().data_received(data)
        self._set_timer(len(data))

    def on_response_complete(self) -> None:
        """Wait for the next request, or for the rest of the body, which is discarded."""
        super().on_response_complete()
        self._set_timer()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """Hand the connection to the WebSocket. The time limit for the head includes its handshake."""
        super().handle_websocket_upgrade(event)
        self._socket = self.transport.get_protocol()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel all timers."""
        self._is_over = True
        self._set_timer()
        self._stop_writing_timer()
        if self._watching is not None:
            self._watching.cancel()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Set a time limit for the client to read some of the response."""
        super().pause_writing()
        self._expect_to_write_less_than(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """Continue with the response."""
        self._stop_writing_timer()
        super().resume_writing()

    def _watch_closing(self, before: int | None) -> None:
        """Abort a closed connection whose client does not read the rest of the response.

        Connections are closed in many places, so this checks periodically. `before` is the size of the rest at the last check.
        """
        left = self.transport.get_write_buffer_size() if self.transport.is_closing() else None
        if left and left == before:
            self.transport.abort()
        elif left != 0:
            self._watching = self.loop.call_later(2 * self.request_seconds, self._watch_closing, left)

    def _expect_to_write_less_than(self, size: int) -> None:
        def check() -> None:
            left = self.transport.get_write_buffer_size()
            if left < size:
                self._expect_to_write_less_than(left)
            else:
                self.transport.abort()

        self._stop_writing_timer()
        if size:
            self._writing = self.loop.call_later(2 * self.request_seconds, check)

    def _stop_writing_timer(self) -> None:
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None

    def send_400_response(self, msg: str) -> None:
        """Reject a request, unless its response has started, and close the connection."""
        del msg
        problem = f"The request is not valid HTTP/1.1, its head has more than {MAX_HEAD_BYTES} bytes, or its chunks are too small."
        self._refuse("400 Bad Request", "bad_request", problem)

    def _refuse(self, status: str, code: str, problem: str) -> None:
        if self.conn.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            body = json.dumps({"error": {"code": code, "message": problem}}).encode()
            head = [
                f"HTTP/1.1 {status}",
                "content-type: application/json",
                f"content-length: {len(body)}",
                "x-content-type-options: nosniff",
                "connection: close",
            ]
            self.transport.write("\r\n".join([*head, "", ""]).encode() + body)
        self.transport.close()

    def _waits_for(self) -> str | None:
        """Return which part the client must send next; None during the response, and while the keep-alive timeout runs."""
        if self._is_over or self.transport.is_closing():
            return None
        if self._socket is not None:
            return None if getattr(self._socket, "handshake_complete", True) else "head"
        if self.conn.their_state is h11.IDLE:
            return "head" if self.timeout_keep_alive_task is None else None
        if self.conn.their_state is h11.SEND_BODY:
            return "rest" if self.cycle.response_complete else "body"
        return None

    def _set_timer(self, received: int = 0) -> None:
        """Start, continue or stop the timer. Received bytes restart only the time limit for a body."""
        waits = self._waits_for()
        if waits is not None and waits == self._timed != "body":
            return
        now = self.loop.time()
        if self._timed != "body":
            self._patience = 2 * self.request_seconds
        elif not (self._excused or self._is_held_up()):
            left = self._patience - (now - self._timed_at) + received / _MIN_BYTES_PER_SECOND
            self._patience = min(left, 2 * self.request_seconds)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timed, self._timed_at = waits, now
        if waits is not None:
            self._excused = self._is_held_up()
            seconds = self.timeout_keep_alive if waits == "rest" else self.request_seconds
            if waits == "body":
                seconds = min(seconds, self._patience)
            self._timer = self.loop.call_later(seconds, self._time_out)

    def _is_held_up(self) -> bool:
        """Return whether the client cannot send because the application does not read, or it waits for `100 Continue`."""
        return self._timed == "body" and (
            self.flow.read_paused or self.conn.they_are_waiting_for_100_continue
        )

    def _time_out(self) -> None:
        if self.transport.is_closing():
            return
        if self._socket is not None:
            if self._waits_for() is not None:
                self.transport.abort()
        elif self._excused or self._is_held_up():
            self._set_timer()
        elif self._timed == "body" and self.cycle.response_started:
            self.transport.abort()
        elif self._timed == "head" and not self.conn.trailing_data[0]:
            self.transport.close()
        else:
            problem = f"The request did not arrive within {self.request_seconds:g} s, or its body arrives too slowly."
            self._refuse("408 Request Timeout", "request_timeout", problem)


def new_protocol(request_seconds: float) -> type[Protocol]:
    """Return the protocol with this time limit for requests."""
    return type("TimedProtocol", (Protocol,), {"request_seconds": request_seconds})


class _Connection(h11.Connection):
    """Rejects requests that h11 accepts but a proxy might parse differently, such as their end or their host."""

    _chunks = 0
    _bytes = 0
    _is_chunked = False
    _framing = b""  # lines read before the next piece of a chunked body

    def next_event(self) -> _Event:
        """Return the next event. Raises `h11.RemoteProtocolError`."""
        is_body = self._is_chunked and self.their_state is h11.SEND_BODY
        before = self.trailing_data[0] if is_body or self.their_state is h11.IDLE else b""
        event: _Event = super().next_event()
        read = before[: len(before) - len(self.trailing_data[0])] if before else b""
        if isinstance(event, h11.Request):
            _check_head(event, read)
            self._chunks = self._bytes = 0
            self._is_chunked = b"transfer-encoding" in dict(event.headers)
        elif isinstance(event, h11.Data):
            self._chunks += event.chunk_start
            self._bytes += len(event.data)
            if self._chunks > _FREE_CHUNKS + self._bytes / _MIN_CHUNK_BYTES:
                raise h11.RemoteProtocolError("the chunks are too small")
        if is_body:
            self._framing += read[: len(read) - len(event.data)] if isinstance(event, h11.Data) else read
            if event is not h11.NEED_DATA:
                _check_lines(self._framing)
                self._framing = b""
        return event


def _check_lines(text: bytes) -> None:
    lines = text.count(b"\r\n")
    if text.count(b"\n") != lines or text.count(b"\r") != lines or b"\r\n " in text or b"\r\n\t" in text:
        raise h11.RemoteProtocolError("a line does not end with CRLF, or is folded")


def _check_head(request: h11.Request, head: bytes) -> None:
    _check_lines(head)
    fields = (line.partition(b":") for line in head.split(b"\r\n")[1:])
    lengths = [value.strip(b" \t") for name, _, value in fields if name.lower() == b"content-length"]
    if lengths != [b"%d" % int(length) for length in lengths if length.isdigit()] or len(lengths) > 1:
        raise h11.RemoteProtocolError("Content-Length is not a single plain number")
    headers = dict(request.headers)
    if b"transfer-encoding" in headers and (lengths or request.http_version != b"1.1"):
        raise h11.RemoteProtocolError("Transfer-Encoding with Content-Length, or in HTTP/1.0")
    if b"upgrade" in headers and (b"transfer-encoding" in headers or lengths not in ([], [b"0"])):
        raise h11.RemoteProtocolError("an upgrade request has a body")
    if request.http_version not in {b"1.0", b"1.1"}:
        raise h11.RemoteProtocolError("the HTTP version is not supported")
    if b"host" in headers and not _HOST.fullmatch(headers[b"host"]):
        raise h11.RemoteProtocolError("Host is not valid")
    if not request.target.startswith(b"/") and request.target != b"*":
        raise h11.RemoteProtocolError("the target is not a path")


class SocketProtocol(WebSocketsSansIOProtocol):
    """Uvicorn's WebSocket protocol with a limit on frames, each of which costs the event loop some microseconds."""

    _frames = 0
    _counted_until = 0.0

    def data_received(self, data: bytes) -> None:
        """Read a few frames at a time."""
        for start in range(0, len(data), _READ_BYTES):
            if self.transport.is_closing():
                return
            super().data_received(data[start : start + _READ_BYTES])

    def handle_events(self) -> None:
        """Count the received frames before they are handled."""
        now = time.monotonic()
        if now >= self._counted_until:
            self._frames, self._counted_until = 0, now + _FRAMES_SECONDS
        self._frames += len(self.conn.events)
        if self._frames > _MAX_FRAMES:
            self.transport.abort()
            return
        super().handle_events()

    async def send(self, message: Any) -> None:
        """Send a message. The end of a refusal completes the handshake, which Uvicorn would otherwise log as an error."""
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and not message.get("more_body", False):
            self.handshake_complete = True


class Server(uvicorn.Server):
    """Accepts connections one by one.

    asyncio tries to accept as many connections at a time as the socket may queue. Without free file descriptors, it logs an
    error and starts a timer for each of them, which keeps the processor busy and fills the log.
    """

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to serve these sockets. Each keeps its usual queue length."""
        self.config.backlog = 1
        await super().startup(sockets)
        for listening in sockets or ():
            listening.listen(QUEUED_CONNECTIONS)
