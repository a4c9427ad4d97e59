"""The HTTP application: routes, error responses, limits and security headers."""

import asyncio
import json
import logging
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic_core import to_jsonable_python
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.config import Settings
from holdfast.counting import counted_by
from holdfast.errors import (
    ArchiveFailed,
    BadInput,
    BadSettings,
    BudgetReached,
    Conflict,
    Forbidden,
    HoldfastError,
    MediaError,
    MissingExtra,
    NotFound,
    PayloadTooLarge,
    QueueFull,
    RateLimited,
    SessionBusy,
    ShellUnavailable,
    Stopping,
    StoreError,
    TooManyExports,
    TooManySessions,
    TooMuchStored,
    TurnInProgress,
    Unauthenticated,
)
from holdfast.ids import new_id
from holdfast.operations.access import Service
from holdfast.operations.channel import Channels
from holdfast.operations.metrics import Metrics
from holdfast.operations.registry import invalid
from holdfast.operations.topics import operations
from holdfast.runtime.attachment import Attachment
from holdfast.server import chat, durable_streams, events, media, metrics, page, retention, sockets
from holdfast.server import shell as shell_routes
from holdfast.server.auth import Authenticator
from holdfast.server.demo import demo_router
from holdfast.server.long_responses import DIRECT
from holdfast.server.revocation import Revocation
from holdfast.server.routes import BODY_LIMIT, add_operation, channels_of, new_router
from holdfast.shell import ShellService
from holdfast.store import Store

_log = logging.getLogger(__name__)

_STATUS: Final[tuple[tuple[type[HoldfastError], int], ...]] = (
    (Unauthenticated, 401),
    (Forbidden, 403),
    (NotFound, 404),
    (PayloadTooLarge, 413),
    (BadSettings, 501),
    (BadInput, 422),
    (QueueFull, 429),
    (RateLimited, 429),
    (TooManySessions, 409),
    (TooMuchStored, 409),
    (BudgetReached, 409),
    (Conflict, 409),
    (TurnInProgress, 409),
    (SessionBusy, 409),
    (StoreError, 503),
    (ArchiveFailed, 503),
    (ShellUnavailable, 503),
    (TooManyExports, 503),
    (MediaError, 503),
    (MissingExtra, 501),
)
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
"""The methods that are metric labels. All others share one label, since a client can invent any number of them."""
_HEADERS: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (
        b"content-security-policy",
        (
            b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
            b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        ),
    ),
)


_operations = new_router()
for _operation in operations():
    if _operation.has_route:
        add_operation(_operations, _operation)


def create_app(
    settings: Settings,
    store: Store,
    agents: Iterable[str] = (),
    *,
    shell: ShellService | None = None,
    attached: Mapping[str, bool | Attachment] = MappingProxyType({}),
    worker_metrics: Path | None = None,
    kill: Callable[[int | None], int | None] | None = None,
) -> FastAPI:
    """Create the application on an open store. Sessions can be created for `agents`, or for any agent if it is empty.

    With an open `shell`, principals with the scope `shell` can run commands; without one, these routes do not exist.
    `attached` maps agents to the attachment of their sessions, unless a session's metadata overrides it.
    `worker_metrics` is the folder where workers write their metrics.
    `kill` kills a worker, for the demo.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None, None]:
        with counted_by(app.state.metrics.count):
            yield
        app.state.channels.close()

    app = _Application(
        title="Holdfast",
        description="Durable sessions for AI agents.",
        version="1",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        separate_input_output_schemas=False,
    )
    app.state.service = Service(
        store=store,
        settings=settings,
        agents=frozenset(agents),
        attached={
            name: {"attached": value.model_dump() if isinstance(value, Attachment) else value}
            for name, value in attached.items()
            if value
        },
        demo=kill is not None,
    )
    app.state.authenticator = Authenticator(settings, store)
    app.state.revocation = Revocation(app.state.authenticator.principal)
    app.state.channels = Channels(store, comment_seconds=settings.stream_comment_seconds)
    app.state.metrics = Metrics(worker_metrics)
    app.state.shell = shell
    app.state.imports = retention.Imports()
    app.state.chat_pages = asyncio.Semaphore(2)  # each takes a thread, and some 50 MB
    app.state.openapi = None
    app.state.sockets = 0
    app.state.unauthenticated_sockets = 0  # sockets that have not sent a token yet
    routers = [
        _operations,
        events.router,
        chat.router,
        durable_streams.router,
        media.router,
        retention.router,
        metrics.router,
        page.router,
    ]
    if shell is not None:
        routers += [shell_routes.router, sockets.router]
    if kill is not None:
        routers.append(demo_router(kill))
    for router in routers:
        # `include_router` would build every route again, at the first request: a fifth of a second.
        app.router.routes.extend(router.routes)
    app.add_exception_handler(HoldfastError, _holdfast_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _unexpected_error)
    app.add_middleware(
        Gate,
        limit=settings.max_body_bytes,
        metrics=app.state.metrics,
    )
    app.openapi = lambda: _document(app)
    app.add_api_route("/openapi.json", _openapi, include_in_schema=False)
    return app


class _Application(FastAPI):
    """The application, which stores the server's own `send` in the scope for streams.

    The address that a user opens contains a token, so its query is hidden from everything except the page, such as request tracing.
    A request that is cancelled because the server stops is answered with an error.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[DIRECT] = send
        if scope.get("path") == "/":
            scope[page.QUERY], scope["query_string"] = scope["query_string"], b""
        started = False

        async def send_first(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await super().__call__(scope, receive, send_first)
        except asyncio.CancelledError:
            if started or scope["type"] != "http" or DIRECT not in scope:
                raise
            stopping = Stopping()
            await _error(503, stopping.code, str(stopping))(scope, receive, send)


async def _openapi(request: Request) -> Response:
    state = request.app.state
    if state.openapi is None:
        state.openapi = JSONResponse(request.app.openapi()).body
    return Response(state.openapi, media_type="application/json")


def _document(app: FastAPI) -> dict[str, Any]:
    if app.openapi_schema is None:
        document = FastAPI.openapi(app)
        document.setdefault("components", {})["securitySchemes"] = {
            "bearer": {
                "type": "http",
                "scheme": "bearer",
                "description": "Create one with `holdfast token create`.",
            }
        }
        for path in document["paths"].values():
            for operation_ in path.values():
                responses = operation_["responses"]
                if "HTTPValidationError" in json.dumps(responses.get("422", {})):
                    responses["422"] = responses["401"] | {"description": "The request is not valid."}
        for leftover in ("HTTPValidationError", "ValidationError"):
            document["components"]["schemas"].pop(leftover, None)
        app.openapi_schema = document
    return app.openapi_schema


def _error(
    status: int, code: str, message: str, facts: Mapping[str, Any] = MappingProxyType({})
) -> JSONResponse:
    headers = {401: {"www-authenticate": "Bearer"}, 429: {"retry-after": "1"}, 503: {"retry-after": "1"}}
    body = {"error": {"code": code, "message": message, "facts": dict(facts)}}
    given = headers.get(status)
    if status == 429 and "seconds" in facts:  # noqa: PLR2004 - too many requests
        given = {"retry-after": str(facts["seconds"])}
    return JSONResponse(body, status, given)


def _facts(error: HoldfastError) -> dict[str, Any]:
    """Return the facts of an error as JSON values."""
    facts = to_jsonable_python(error.facts, fallback=str, inf_nan_mode="strings")
    return json.loads(json.dumps(facts, ensure_ascii=False).encode("utf-8", "replace"))


async def _holdfast_error(request: Request, error: Any) -> JSONResponse:
    status = next((status for kind, status in _STATUS if isinstance(error, kind)), 500)
    if isinstance(error, StoreError):
        _log.error("%s", error)
        if error.is_permanent and not channels_of(request).closing:  # else another server continues
            status = 500
        if (
            request.app.state.service.settings.auth == "none"
        ):  # the caller is the local administrator, often this process
            return _error(status, error.code, str(error), _facts(error))
        hint = "Restart the server." if status == 500 else "Retry in a moment."  # noqa: PLR2004
        return _error(status, error.code, f"The store is not available. {hint}")
    if isinstance(error, MediaError):
        _log.error("%s", error)
        return _error(503, error.code, "The media store is not available, or its content is damaged.")
    return _error(status, error.code, str(error), _facts(error))


async def _validation_error(request: Request, error: Any) -> JSONResponse:
    del request
    bad = invalid(error.errors())
    return _error(422, bad.code, str(bad), _facts(bad))


async def _http_error(request: Request, error: Any) -> JSONResponse:
    del request
    codes = {
        400: "bad_input",
        404: "not_found",
        405: "method_not_allowed",
        413: "payload_too_large",
        416: "range_not_satisfiable",
    }
    status = 422 if error.status_code == 400 else error.status_code  # noqa: PLR2004
    facts = error.facts if isinstance(error, BodyTooLarge) else {}
    answer = _error(status, codes.get(error.status_code, "http_error"), str(error.detail), facts)
    answer.headers.update(error.headers or {})
    return answer


async def _unexpected_error(request: Request, error: Exception) -> JSONResponse:
    number = new_id()
    _log.error(
        "%s %s failed with an unexpected error, %s", request.method, request.url.path, number, exc_info=error
    )
    return _error(500, "internal", f"Internal error. The server's log has the details under {number}.")


class BodyTooLarge(HTTPException):
    """The body of a request is larger than its route allows. `size` is the declared size, or the bytes read so far."""

    def __init__(self, limit: int, size: int) -> None:
        super().__init__(413, f"The body has {size} bytes or more; the limit is {limit}.")
        self.facts = {"what": "body", "size": size, "limit": limit}


class Gate:
    """Middleware for all requests: limits the size of bodies, counts requests, and adds security headers.

    A route with its own limit sets it in the scope after the request is authorized and before its body is read.
    """

    def __init__(self, app: ASGIApp, *, limit: int, metrics: Metrics) -> None:
        self._app = app
        self._limit = limit
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        scope[BODY_LIMIT] = self._limit
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        status = 0
        received = 0

        async def receive_bounded() -> Message:
            nonlocal received
            limit = scope[BODY_LIMIT]
            if declared.isdigit() and int(declared) > limit:
                raise BodyTooLarge(limit, int(declared))
            message = await receive()
            received += len(message.get("body", b""))
            if received > limit:
                raise BodyTooLarge(limit, received)
            return message

        async def send_safely(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], *_HEADERS]
            await send(message)

        await self._app(scope, receive_bounded, send_safely)
        method = scope["method"] if scope["method"] in _METHODS else "other"
        path = getattr(scope.get("route"), "path", "unknown")
        self._metrics.requests.labels(method, path, status).inc()
        self._metrics.seconds.labels(method, path).observe(time.perf_counter() - started)
