"""The log of shell commands as a WebSocket, wire-compatible with existing agent servers.

Each message is an event of the log. A client may send `{"command": …}` to start a command. Nothing is sent or run before the client
is authenticated, and a client that loses access is disconnected.
"""

import asyncio
import logging
from contextlib import aclosing, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast

from fastapi import WebSocket, WebSocketDisconnect
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ValidationError

from holdfast.api.shell import BashError, NewCommand
from holdfast.errors import BadInput, BadText, Forbidden, HoldfastError, Unauthenticated
from holdfast.ids import new_id
from holdfast.jsontext import MOST_VALUES, parse_json
from holdfast.server.auth import cookie_of
from holdfast.server.routes import RULES, new_router, socket
from holdfast.server.shell import shown, start
from holdfast.shell.feed import Feed

if TYPE_CHECKING:
    from holdfast.operations.channel import Channels
    from holdfast.server.auth import Authenticator
    from holdfast.shell import ShellService

router = new_router("shell")
PATH = "/sockets/bash-events"
_MAX_FIELDS = 100
"""The maximum number of values in the first message, which is not authenticated yet."""
_MAX_SOCKETS = 50
"""The maximum number of connections of a process."""
_AUTH_SECONDS = 10.0
_PATIENCE_SECONDS = 30.0
_CHECK_SECONDS = 5.0
_REFUSED, _TOO_SLOW, _TOO_MANY, _RESTART = 4001, 1008, 1013, 1012
_log = logging.getLogger(__name__)


@socket(
    router,
    PATH,
    "shell",
    no_method="for clients of other agent servers; `ShellHandle.output` streams over HTTP",
)
async def bash_events(websocket: WebSocket) -> None:
    """Send new events of the log. With `resend_mode=all` (or `resend_all=true`), send its existing events first."""
    await _BashSocket(websocket).serve()


class _BashSocket:
    """A connection to one client."""

    def __init__(self, websocket: WebSocket) -> None:
        self._socket = websocket
        self._authenticator: Authenticator = websocket.app.state.authenticator
        self._channels: Channels = websocket.app.state.channels
        self._shell: ShellService = websocket.app.state.shell
        self._token: str | None = None
        self._sending = asyncio.Lock()

    async def serve(self) -> None:
        query = self._socket.query_params
        try:
            authorized = await self._authorize_before()
            resend = _resend(query.get("resend_mode"), query.get("resend_all"))
        except HoldfastError as error:
            await self._deny(error)
            return
        state = self._socket.app.state
        if not authorized:
            await self._socket.accept()
            if state.unauthenticated_sockets >= _MAX_SOCKETS:
                await self._close(_TOO_MANY, "Too many connections without a token")
                return
            state.unauthenticated_sockets += 1
            try:
                if not await self._authorize_first():
                    return
            finally:
                state.unauthenticated_sockets -= 1
        if state.sockets >= _MAX_SOCKETS:
            if authorized:
                await self._socket.accept()
            await self._close(_TOO_MANY, "Too many connections")
            return
        state.sockets += 1  # only authorized clients count
        try:
            await self._stream(resend, accept=authorized)
        finally:
            state.sockets -= 1

    async def _stream(self, resend: bool, *, accept: bool) -> None:
        feed = Feed(self._shell.store, owner=self._socket.state.caller.principal.owner_filter)
        try:
            if not resend:
                await feed.skip()  # before accepting: the client sees all commands that start after that
        except HoldfastError as error:
            if accept:
                await self._deny(error)
            else:
                await self._close(_RESTART, "The store is not available; reconnect")
            return
        if accept:
            await self._socket.accept()
        await self._run(feed, resend)

    async def _authorize_before(self) -> bool:
        """Return whether the request has valid credentials. Raises `Unauthenticated` if they are invalid."""
        try:
            await self._authorize()
        except Unauthenticated:
            if _has_credentials(self._socket):
                raise
            return False
        return True

    async def _authorize_first(self) -> bool:
        """Authorize with the token in the first message: `{"type": "auth", "session_api_key": …}`."""
        try:
            async with asyncio.timeout(_AUTH_SECONDS):
                self._token = _token(await self._socket.receive_text())
            await self._authorize()
        except WebSocketDisconnect:
            return False
        except (TimeoutError, KeyError, Unauthenticated, Forbidden):
            await self._close(_REFUSED, "Authentication failed")
            return False
        return True

    async def _authorize(self) -> None:
        await self._authenticator.authorize(self._socket, RULES["WEBSOCKET", PATH], {}, token=self._token)

    async def _deny(self, error: HoldfastError) -> None:
        statuses = {Unauthenticated: 401, Forbidden: 403, BadInput: 422}
        status = next((status for kind, status in statuses.items() if isinstance(error, kind)), 503)
        body = {"error": {"code": error.code, "message": str(error)}}
        await self._socket.send_denial_response(JSONResponse(body, status))

    async def _run(self, feed: Feed, resend: bool) -> None:
        tasks = [
            asyncio.create_task(work)
            for work in (
                self._send_all(feed, resend),
                self._listen(),
                self._check_access(),
                self._channels.closed.wait(),
            )
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
        for outcome in ended:
            if isinstance(outcome, TimeoutError):
                await self._close(_TOO_SLOW, "The client reads too slowly")
            elif isinstance(outcome, Unauthenticated | Forbidden):
                await self._close(_REFUSED, "Authentication failed")
            elif isinstance(outcome, Exception) and not isinstance(outcome, WebSocketDisconnect):
                _log.error("a WebSocket failed", exc_info=outcome)
        await self._close(_RESTART, "The server is stopping; reconnect")

    async def _send_all(self, feed: Feed, resend: bool) -> None:
        async def everything():  # noqa: ANN202 - a generator of events
            if resend:
                async for event in feed.replay():
                    yield event
            async for event in feed.follow():
                yield event

        async with aclosing(everything()) as events:
            async for event in events:
                await self._send(shown(event))

    async def _send(self, message: BaseModel) -> None:
        text = message.model_dump_json()
        async with asyncio.timeout(_PATIENCE_SECONDS), self._sending:
            await self._socket.send_text(text)

    async def _listen(self) -> None:
        while True:
            received = await self._socket.receive()
            if received["type"] == "websocket.disconnect":
                raise WebSocketDisconnect(received.get("code", 1000))
            try:
                command = _command(received.get("text"))
                if command is not None:
                    await self._authorize()
                    await start(self._shell, self._socket.state.caller.principal, command)
            except (Unauthenticated, Forbidden):
                raise
            except HoldfastError as error:
                await self._refuse(error.code, str(error))

    async def _refuse(self, code: str, detail: str) -> None:
        at = datetime.now(UTC)
        await self._send(BashError(id=new_id().replace("-", ""), timestamp=at, code=code, detail=detail))

    async def _check_access(self) -> None:
        """Raise when the client loses access."""
        while True:
            await asyncio.sleep(_CHECK_SECONDS)
            try:
                await self._authorize()
            except (Unauthenticated, Forbidden):
                raise
            except HoldfastError:  # the store is not available, so nothing is sent either
                continue

    async def _close(self, code: int, reason: str) -> None:
        with suppress(RuntimeError, WebSocketDisconnect):  # it is already closed
            async with asyncio.timeout(1):
                await self._socket.close(code, reason)


def _has_credentials(websocket: WebSocket) -> bool:
    given = websocket.headers.get("authorization") or websocket.headers.get("x-session-api-key")
    return bool(given or websocket.query_params.get("session_api_key") or cookie_of(websocket))


def _resend(mode: str | None, everything: str | None) -> bool:
    if mode not in {None, "all"}:
        raise BadInput(problem="resend_mode must be `all` or missing")
    return mode == "all" or (everything or "").lower() in {"true", "1", "yes", "on"}


def _object(text: str | None, *, most_values: int = MOST_VALUES) -> dict[str, Any]:
    try:
        result: Any = parse_json(text or "", "message", most_values=most_values)
    except BadText:
        result = None
    if not isinstance(result, dict):
        raise BadInput(problem="a message must be a JSON object")
    return cast("dict[str, Any]", result)


def _token(text: str) -> str:
    try:
        result = _object(text, most_values=_MAX_FIELDS)
    except BadInput:
        raise KeyError from None
    key = result["session_api_key"] if result.get("type") == "auth" else None
    if not isinstance(key, str) or not key:
        raise KeyError
    return key


def _command(text: str | None) -> NewCommand | None:
    """Return the command in a message; None for a repeated or unneeded auth message."""
    result = _object(text)
    if result.get("type") == "auth" and set(result) <= {"type", "session_api_key"}:
        return None
    try:
        return NewCommand.model_validate(result)
    except ValidationError as error:
        first = error.errors()[0]
        raise BadInput(problem=f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error
