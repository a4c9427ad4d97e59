"""The page: its files, and sign-in, which keeps the token in a cookie instead of the address."""

import hashlib
from dataclasses import dataclass
from importlib.resources import files
from typing import Annotated, Final

from fastapi import Request, Response
from fastapi.responses import RedirectResponse
from pydantic import Field
from starlette.datastructures import QueryParams

from holdfast.api.models import RequestBody
from holdfast.errors import Forbidden, NotFound, Unauthenticated
from holdfast.server.auth import COOKIE, cookie_of, is_from
from holdfast.server.routes import new_router, route

router = new_router("page")
QUERY: Final = "holdfast.query"
"""The key in a request's scope for the query of the page's address, which may contain a token."""
_TYPES: Final = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
}
_FOREIGN: Final = frozenset({"cross-site", "same-site"})
"""The values of `Sec-Fetch-Site` in requests from other origins."""
Secret = Annotated[str, Field(min_length=1, max_length=10_000)]


@dataclass(frozen=True, slots=True)
class StaticFile:
    """A file of the page."""

    body: bytes
    media_type: str
    tag: str

    def response(self, request: Request) -> Response:
        """Return the file, or 304 if the browser has it."""
        headers = {"etag": self.tag, "cache-control": "no-cache"}
        if request.headers.get("if-none-match") == self.tag:
            return Response(status_code=304, headers=headers)
        return Response(self.body, media_type=self.media_type, headers=headers)


def _read() -> dict[str, StaticFile]:
    results: dict[str, StaticFile] = {}
    for entry in (files("holdfast.server") / "web").iterdir():
        kind = _TYPES.get(entry.name.rpartition(".")[2])
        if kind is not None:
            body = entry.read_bytes()
            results[entry.name] = StaticFile(body, kind, f'"{hashlib.sha256(body).hexdigest()[:32]}"')
    return results


FILES: Final = _read()
"""All files of the page by name. Nothing else can be requested, so no path can leave the folder."""


class SignIn(RequestBody):
    """A token to keep in a cookie."""

    token: Secret


@route(router, "GET", "/docs", "public", no_method="the page of the HTTP API", include_in_schema=False)
async def docs(request: Request) -> Response:
    """Return the reference of the HTTP API, which is built from `/openapi.json`."""
    return FILES["docs.html"].response(request)


@route(router, "GET", "/", "public", no_method="the page", include_in_schema=False)
async def index(request: Request) -> Response:
    """Return the page. With a valid token, keep it in a cookie and redirect to the address without it.

    A link on another site must not sign a user in, or replace the token of a signed-in user.
    """
    token = QueryParams(request.scope.get(QUERY, b"")).get("token")
    if not token:
        return FILES["index.html"].response(request)
    site = request.headers.get("sec-fetch-site")
    if site in _FOREIGN:
        return _redirect("/#/sign-in/foreign")
    if not await _is_valid(request, token):
        return _redirect("/#/sign-in/refused")
    answer = _redirect("/")
    kept = cookie_of(request)
    if site is not None or not kept or not await _is_valid(request, kept):
        _keep(request, answer, token)
    return answer


async def _is_valid(request: Request, token: str) -> bool:
    try:
        await request.app.state.authenticator.principal(token)
    except Unauthenticated:
        return False
    return True


def _redirect(where: str) -> Response:
    return RedirectResponse(where, 303, {"cache-control": "no-store"})


def _check_own_page(request: Request) -> None:
    """Raise `Forbidden` if another site sent this request. Only browsers send these headers."""
    origin = request.headers.get("origin")
    foreign = origin is not None and not is_from(origin, request.headers.get("host"))
    if foreign or request.headers.get("sec-fetch-site") in _FOREIGN:
        raise Forbidden(required="the Origin of the server's own page", principal="this request")


@route(
    router,
    "POST",
    "/sign-in",
    "public",
    no_method="for browsers; a client sends its token",
    body_limit=16 * 1024,
    include_in_schema=False,
    status_code=204,
)
async def sign_in(request: Request, body: SignIn) -> Response:
    """Keep a valid token in a cookie."""
    _check_own_page(request)
    await request.app.state.authenticator.principal(body.token)
    answer = Response(status_code=204)
    _keep(request, answer, body.token)
    return answer


@route(
    router, "POST", "/sign-out", "public", no_method="for browsers", include_in_schema=False, status_code=204
)
async def sign_out(request: Request) -> Response:
    """Delete the cookie."""
    _check_own_page(request)
    answer = Response(status_code=204)
    answer.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict")
    return answer


@route(router, "GET", "/static/{name}", "public", no_method="files of the page", include_in_schema=False)
async def static(request: Request, name: str) -> Response:
    """Return a file of the page."""
    result = FILES.get(name)
    if result is None:
        raise NotFound(what="file", id=name[:200])
    return result.response(request)


def _keep(request: Request, answer: Response, token: str) -> None:
    secure = request.url.scheme == "https"
    answer.set_cookie(COOKIE, token, path="/", httponly=True, samesite="strict", secure=secure)
