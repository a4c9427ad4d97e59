"""Routes: each has a rule, which is checked before the body is read, and documented errors."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Generator
from contextlib import AbstractContextManager, contextmanager
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast, get_origin, get_type_hints

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from holdfast.api.models import Health
from holdfast.errors import BadInput, Unauthenticated
from holdfast.jsontext import MOST_VALUES
from holdfast.logs import log_context
from holdfast.operations.access import Caller, Principal, Rule
from holdfast.operations.channel import Channels
from holdfast.operations.registry import MOST_FIELDS, ClientMethod, Operation, parse_body
from holdfast.store import Store
from holdfast.types import Session

if TYPE_CHECKING:
    from holdfast.operations.limits import RateLimits
    from holdfast.server.auth import Authenticator

T = TypeVar("T")
RULES: dict[tuple[str, str], Rule] = {}
"""The rule of every route, by method and path."""
CLIENT: dict[tuple[str, str], tuple[ClientMethod, ...]] = {}
"""The methods of handles that use a route, by method and path."""
NO_METHOD: dict[tuple[str, str], str] = {}
"""The reason that no handle has a method for a route, by method and path."""
BODY_LIMIT: Final = "holdfast.body_limit"
"""The key in a request's scope for the size limit of its body."""
_LIMITS: dict[tuple[str, str], str | int] = {}
"""The body limits of routes that do not use `max_body_bytes`, in bytes or as the name of a setting, by method and path."""
_LENIENT: set[tuple[str, str]] = set()
"""The routes that ignore unknown query parameters, by method and path."""
_VALUES: Final = "holdfast.most_values"
"""The key in a request's scope for the maximum number of JSON values in its body. Public routes allow few."""

_ERRORS: dict[Rule, tuple[int, ...]] = {
    "public": (422,),
    "user": (401, 403, 404, 409, 413, 422, 429, 503),
    "shell": (401, 403, 404, 409, 413, 422, 429, 503),
    "admin": (401, 403, 404, 409, 413, 422, 503),
    "read": (401, 403, 404, 409, 422, 429, 503),
    "write": (401, 403, 404, 409, 413, 422, 429, 503),
    "delete": (401, 403, 404, 409, 413, 422, 429, 503),
}
_ERROR = {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorBody"}}}
"""By name: FastAPI would build a validator for each of hundreds of error responses, which takes a quarter of the start."""
_MEANING = {
    401: "Missing or invalid credentials.",
    403: "The credentials do not allow this.",
    404: "Not found, or not visible to you.",
    409: "Conflict with the current state.",
    413: "The body is too large.",
    422: "The request is not valid.",
    429: "The queue is full, or you exceed a limit.",
    503: "The store is not available.",
}


class _JsonRequest(Request):
    """A request whose body is strict JSON."""

    async def json(self) -> Any:
        """Return the value of the body."""
        try:
            return parse_body(await self.body(), self.scope.get(_VALUES, MOST_VALUES))
        except BadInput as error:
            raise HTTPException(400, str(error)) from None


class GuardedRoute(APIRoute):
    """A route that requires a rule."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return a handler that authorizes the request first."""
        handler = super().get_route_handler()
        ((rule, limit),) = {
            (RULES[method, self.path_format], _LIMITS.get((method, self.path_format)))
            for method in self.methods or ()
        }
        is_lenient = any((method, self.path_format) in _LENIENT for method in self.methods or ())
        known = {parameter.alias for parameter in self.dependant.query_params}
        lists = {p.alias for p in self.dependant.query_params if get_origin(p.field_info.annotation) is list}

        async def guarded(request: Request) -> Response:
            authenticator: Authenticator = request.app.state.authenticator
            path = request.path_params
            log_context(lambda: {name: path[name] for name in ("session_id", "run_id") if name in path})
            await authenticator.authorize(request, cast("Rule", rule), path)
            if rule == "public":
                request.scope[_VALUES] = MOST_FIELDS
            elif not (principal := principal_of(request)).is_admin:
                request.app.state.service.limits.use("requests", principal.owner)
            if limit is not None:
                settings = request.app.state.service.settings
                request.scope[BODY_LIMIT] = limit if isinstance(limit, int) else getattr(settings, limit)
            if rule != "public":
                request.app.state.service.used_at = time.monotonic()
            if not is_lenient and (unknown := sorted(set(request.query_params) - known)):
                problem = f"unknown parameter {unknown[0][:100]!r}; this route has: {', '.join(sorted(known)) or 'none'}"
                raise BadInput(problem=problem.encode("utf-8", "replace").decode())
            given = Counter(name for name, _ in request.query_params.multi_items())
            if twice := sorted(name for name in given if given[name] > 1 and name not in lists):
                raise BadInput(problem=f"the parameter {twice[0]!r} is given more than once")
            return await handler(_JsonRequest(request.scope, request.receive))

        return guarded


def new_router(*tags: str) -> APIRouter:
    """Return a router whose routes require a rule."""
    return APIRouter(route_class=GuardedRoute, tags=[*tags])


def route(
    router: APIRouter,
    method: str,
    path: str,
    rule: Rule,
    *client: ClientMethod,
    no_method: str | None = None,
    body_limit: str | int | None = None,
    lenient: bool = False,
    **options: Any,
) -> Callable[[Any], Any]:
    """Add a route with its rule, and the methods of handles that use it, or the reason that there is none. `body_limit` overrides `max_body_bytes`, in bytes or as the name of a setting.

    A `lenient` route ignores unknown query parameters, for compatibility with clients of another server.
    """
    key = method, path.replace(":path}", "}")
    _declare(key, rule, client, no_method)
    if lenient:
        _LENIENT.add(key)
    if body_limit is not None:
        _LIMITS[key] = body_limit
    errors = {status: {"description": _MEANING[status], "content": _ERROR} for status in _ERRORS[rule]}
    options["responses"] = {**errors, **options.get("responses", {})}
    extra: dict[str, Any] = {"x-rule": rule}
    if rule != "public":
        extra["security"] = [{"bearer": []}]
    return router.api_route(path, methods=[method], openapi_extra=extra, **options)


def _declare(
    key: tuple[str, str], rule: Rule, client: tuple[ClientMethod, ...], no_method: str | None
) -> None:
    RULES[key] = rule
    CLIENT[key] = client
    if no_method is not None:
        NO_METHOD[key] = no_method


def add_operation(router: APIRouter, operation: Operation) -> None:
    """Add the route of an operation."""

    async def endpoint(request: Request, **arguments: Any) -> Any:
        result = await operation.call(caller_of(request), **arguments)
        if isinstance(result, str):
            return Response(result.encode("utf-8", "replace"), media_type="application/json")
        if result is None:
            return Response(status_code=operation.status)
        if isinstance(result, Health) and result.status != "ok":
            return JSONResponse(result.model_dump(), 503)
        return result

    result: Any = get_type_hints(operation.call)["return"]
    is_model = isinstance(result, type) and issubclass(result, BaseModel)
    first = Parameter("request", Parameter.POSITIONAL_OR_KEYWORD, annotation=Request)
    parameters = [
        first,
        *(each.replace(kind=Parameter.KEYWORD_ONLY) for each in operation.parameters.values()),
    ]
    endpoint.__signature__ = Signature(parameters, return_annotation=result if is_model else Response)  # pyright: ignore[reportFunctionMemberAccess]
    endpoint.__name__, endpoint.__doc__ = operation.call.__name__, operation.call.__doc__
    options: dict[str, Any] = {
        "status_code": operation.status,
        "tags": [operation.topic],
        **operation.options,
    }
    if result is type(None):
        options["response_class"] = Response
    add = route(
        router,
        operation.method,
        operation.path,
        operation.rule,
        *operation.client,
        no_method=operation.no_method,
        **options,
    )
    add(endpoint)


def socket(router: APIRouter, path: str, rule: Rule, *, no_method: str) -> Callable[[Any], Any]:
    """Add a WebSocket with its rule, which it must check itself: the token may be its first message."""
    _declare(("WEBSOCKET", path), rule, (), no_method)
    return router.websocket(path)


def store_of(request: Request) -> Store:
    """Return the application's store."""
    return request.app.state.service.store


def channels_of(request: Request) -> Channels:
    """Return the live feeds of sessions."""
    return request.app.state.channels


def access_of(request: Request) -> Callable[[Callable[[], None]], AbstractContextManager[None]]:
    """Return a function that watches the access of an open stream, and calls its argument when the access ends.

    Raises `RateLimited` if the owner has too many streams.
    """
    principal = principal_of(request)
    limits: RateLimits = request.app.state.service.limits
    if not principal.is_admin:
        limits.check_streams(principal.owner)

    @contextmanager
    def watch(end: Callable[[], None]) -> Generator[None, None, None]:
        with (
            limits.streaming(principal.owner),
            request.app.state.revocation.watch(request.state.token, principal, end),
        ):
            yield

    return watch


async def while_allowed(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of long work. Raises `Unauthenticated` if the token becomes invalid before it ends."""
    working = asyncio.ensure_future(work)
    ended = False

    def end() -> None:
        nonlocal ended
        ended = working.cancel()

    try:
        with access_of(request)(end):
            return await working
    except asyncio.CancelledError:
        if not ended:
            raise
        raise Unauthenticated(problem="The token has expired or was revoked.") from None


def principal_of(request: Request) -> Principal:
    """Return the principal of the request."""
    return caller_of(request).principal


def session_of(request: Request) -> Session:
    """Return the session of the request, which the principal may see."""
    return caller_of(request).session


def caller_of(request: Request) -> Caller:
    """Return the caller of an operation: the principal of the request, and its session."""
    return request.state.caller
