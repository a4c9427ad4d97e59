"""Routes: each has a rule, which is checked before the body is read, and documented errors."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Final, TypeVar, cast, get_origin

from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from holdfast.errors import BadInput, BadText, Unauthenticated
from holdfast.jsontext import MOST_VALUES, has_lone_surrogates, parse_json
from holdfast.logs import log_context
from holdfast.server.auth import Authenticator, Principal, Rule
from holdfast.server.channel import Channels
from holdfast.store import Store
from holdfast.types import Session

T = TypeVar("T")
RULES: dict[tuple[str, str], Rule] = {}
"""The rule of every route, by method and path."""
BODY_LIMIT: Final = "holdfast.body_limit"
"""The key in a request's scope for the size limit of its body."""
_LIMITS: dict[tuple[str, str], str | int] = {}
"""The body limits of routes that do not use `max_body_bytes`, in bytes or as the name of a setting, by method and path."""
_LENIENT: set[tuple[str, str]] = set()
"""The routes that ignore unknown query parameters, by method and path."""
_MAX_FIELDS: Final = 100
_VALUES: Final = "holdfast.most_values"
"""The key in a request's scope for the maximum number of JSON values in its body. Public routes allow few."""

_ERRORS: dict[Rule, tuple[int, ...]] = {
    "public": (422,),
    "user": (401, 403, 404, 409, 413, 422, 429, 503),
    "shell": (401, 403, 404, 409, 413, 422, 503),
    "admin": (401, 403, 409, 413, 422, 503),
    "read": (401, 403, 404, 409, 422, 503),
    "write": (401, 403, 404, 409, 413, 422, 429, 503),
    "delete": (401, 403, 404, 409, 413, 422, 503),
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
    429: "The queue is full.",
    503: "The store is not available.",
}


class _JsonRequest(Request):
    """A request whose body is strict JSON in UTF-8, with the same limit on nesting as stored JSON."""

    async def json(self) -> Any:
        """Return the value of the body."""
        try:
            text = (await self.body()).decode("utf-8-sig")
            value = parse_json(text, "request body", most_values=self.scope.get(_VALUES, MOST_VALUES))
        except UnicodeDecodeError:
            raise HTTPException(400, "The request body is not UTF-8.") from None
        except BadText as error:
            raise HTTPException(400, f"The request body {error.facts['problem']}.") from None
        if has_lone_surrogates(text, value):
            raise HTTPException(400, "The request body contains a lone surrogate, which is not valid text.")
        if _has_many_fields(value):
            # Each unknown field would become an error in the response.
            raise HTTPException(400, f"The request body has more than {_MAX_FIELDS} fields.")
        return value


def _has_many_fields(value: object) -> bool:
    return isinstance(value, dict) and len(cast("dict[str, Any]", value)) > _MAX_FIELDS


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
                request.scope[_VALUES] = _MAX_FIELDS
            if limit is not None:
                settings = request.app.state.settings
                request.scope[BODY_LIMIT] = limit if isinstance(limit, int) else getattr(settings, limit)
            if rule != "public":
                request.app.state.used_at = time.monotonic()
            if not is_lenient and (unknown := sorted(set(request.query_params) - known)):
                problem = f"unknown parameter {unknown[0][:100]!r}; this route has: {', '.join(sorted(known)) or 'none'}"
                raise BadInput(problem=problem.encode("utf-8", "replace").decode())
            given = Counter(name for name, _ in request.query_params.multi_items())
            if twice := sorted(name for name in given if given[name] > 1 and name not in lists):
                raise BadInput(problem=f"the parameter {twice[0]!r} is given more than once")
            return await handler(_JsonRequest(request.scope, request.receive))

        return guarded


def new_router(tag: str) -> APIRouter:
    """Return a router whose routes require a rule."""
    return APIRouter(route_class=GuardedRoute, tags=[tag])


def route(
    router: APIRouter,
    method: str,
    path: str,
    rule: Rule,
    *,
    body_limit: str | int | None = None,
    lenient: bool = False,
    **options: Any,
) -> Callable[[Any], Any]:
    """Add a route with its rule. `body_limit` overrides `max_body_bytes`, in bytes or as the name of a setting.

    A `lenient` route ignores unknown query parameters, for compatibility with clients of another server.
    """
    key = method, path.replace(":path}", "}")
    RULES[key] = rule
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


def socket(router: APIRouter, path: str, rule: Rule) -> Callable[[Any], Any]:
    """Add a WebSocket with its rule, which it must check itself: the token may be its first message."""
    RULES["WEBSOCKET", path] = rule
    return router.websocket(path)


def store_of(request: Request) -> Store:
    """Return the application's store."""
    return request.app.state.store


def channels_of(request: Request) -> Channels:
    """Return the live feeds of sessions."""
    return request.app.state.channels


def access_of(request: Request) -> Callable[[Callable[[], None]], AbstractContextManager[None]]:
    """Return a function that watches the access of an open stream, and calls its argument when the access ends."""
    return partial(request.app.state.revocation.watch, request.state.token, request.state.principal)


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
    return request.state.principal


def session_of(request: Request) -> Session:
    """Return the session of the request, which the principal may see."""
    return request.state.session
