"""The page: its files, and the exchange of a token for a cookie, so that no later address carries it."""

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
"""Where the query of the page's address is: nowhere else is it seen, since it may have a token."""
_TYPES: Final = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
}
_FOREIGN: Final = frozenset({"cross-site", "same-site"})
"""What browsers send as `Sec-Fetch-Site` with a request that a page of another origin caused."""
Secret = Annotated[str, Field(min_length=1, max_length=10_000)]


@dataclass(frozen=True, slots=True)
class StaticFile:
    """One file of the page."""

    body: bytes
    media_type: str
    tag: str

    def answer(self, request: Request) -> Response:
        """Send it, unless the browser has it already."""
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
"""All there is to serve, by name: what is not in here does not exist, whatever the name looks like."""


class SignIn(RequestBody):
    """A token to keep as a cookie."""

    token: Secret


@route(router, "GET", "/docs", "public", include_in_schema=False)
async def docs(request: Request) -> Response:
    """Show the reference of the HTTP API, made from `/openapi.json`."""
    return FILES["docs.html"].answer(request)


@route(router, "GET", "/", "public", include_in_schema=False)
async def index(request: Request) -> Response:
    """Show the page. With a valid token: keep it as a cookie, and redirect to the address without it.

    A link on another site must not sign somebody in, or replace the token of somebody who is signed in.
    """
    token = QueryParams(request.scope.get(QUERY, b"")).get("token")
    if not token:
        return FILES["index.html"].answer(request)
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
    """Raise `Forbidden` if another site sent this request. Clients other than browsers send neither header."""
    origin = request.headers.get("origin")
    foreign = origin is not None and not is_from(origin, request.headers.get("host"))
    if foreign or request.headers.get("sec-fetch-site") in _FOREIGN:
        raise Forbidden(needs="to come from the server's own page", who="this request")


@route(router, "POST", "/sign-in", "public", body_limit=16 * 1024, include_in_schema=False, status_code=204)
async def sign_in(request: Request, body: SignIn) -> Response:
    """Keep a token as a cookie, if it is good."""
    _check_own_page(request)
    await request.app.state.authenticator.principal(body.token)
    answer = Response(status_code=204)
    _keep(request, answer, body.token)
    return answer


@route(router, "POST", "/sign-out", "public", include_in_schema=False, status_code=204)
async def sign_out(request: Request) -> Response:
    """Forget the cookie."""
    _check_own_page(request)
    answer = Response(status_code=204)
    answer.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict")
    return answer


@route(router, "GET", "/static/{name}", "public", include_in_schema=False)
async def static(request: Request, name: str) -> Response:
    """Send one of the page's files."""
    result = FILES.get(name)
    if result is None:
        raise NotFound(what="file", id=name[:200])
    return result.answer(request)


def _keep(request: Request, answer: Response, token: str) -> None:
    secure = request.url.scheme == "https"
    answer.set_cookie(COOKIE, token, path="/", httponly=True, samesite="strict", secure=secure)
