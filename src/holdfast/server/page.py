"""The page: its files, and the exchange of a token for a cookie, so that no later address carries it."""

import hashlib
from dataclasses import dataclass
from importlib.resources import files
from typing import Annotated, Final

from fastapi import Request, Response
from fastapi.responses import RedirectResponse
from pydantic import Field
from starlette.datastructures import QueryParams

from holdfast.errors import NotFound, Unauthenticated
from holdfast.server.auth import COOKIE
from holdfast.server.routes import new_router, route
from holdfast.server.wire import Given

router = new_router("page")
QUERY: Final = "holdfast.query"
"""Where the query of the page's address is: nowhere else is it seen, since it may have a token."""
_TYPES: Final = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
}
Secret = Annotated[str, Field(min_length=1, max_length=10_000)]


@dataclass(frozen=True, slots=True)
class File:
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


def _read() -> dict[str, File]:
    found: dict[str, File] = {}
    for entry in (files("holdfast.server") / "web").iterdir():
        kind = _TYPES.get(entry.name.rpartition(".")[2])
        if kind is not None:
            body = entry.read_bytes()
            found[entry.name] = File(body, kind, f'"{hashlib.sha256(body).hexdigest()[:32]}"')
    return found


FILES: Final = _read()
"""All there is to serve, by name: what is not in here does not exist, whatever the name looks like."""


class SignIn(Given):
    """A token to keep as a cookie."""

    token: Secret


@route(router, "GET", "/", "public", include_in_schema=False)
async def index(request: Request) -> Response:
    """Show the page. With a token: keep it as a cookie if it is good, and come again without it."""
    token = QueryParams(request.scope.get(QUERY, b"")).get("token")
    if not token:
        return FILES["index.html"].answer(request)
    try:
        await request.app.state.doorkeeper.principal(token)
    except Unauthenticated:
        return RedirectResponse("/#/sign-in/refused", 303, {"cache-control": "no-store"})
    answer = RedirectResponse("/", 303, {"cache-control": "no-store"})
    _keep(request, answer, token)
    return answer


@route(router, "POST", "/sign-in", "public", include_in_schema=False, status_code=204)
async def sign_in(request: Request, body: SignIn) -> Response:
    """Keep a token as a cookie, if it is good."""
    await request.app.state.doorkeeper.principal(body.token)
    answer = Response(status_code=204)
    _keep(request, answer, body.token)
    return answer


@route(router, "POST", "/sign-out", "public", include_in_schema=False, status_code=204)
async def sign_out() -> Response:
    """Forget the cookie."""
    answer = Response(status_code=204)
    answer.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict")
    return answer


@route(router, "GET", "/static/{name}", "public", include_in_schema=False)
async def static(request: Request, name: str) -> Response:
    """Send one of the page's files."""
    found = FILES.get(name)
    if found is None:
        raise NotFound(what="file", id=name[:200])
    return found.answer(request)


def _keep(request: Request, answer: Response, token: str) -> None:
    secure = request.url.scheme == "https"
    answer.set_cookie(COOKIE, token, path="/", httponly=True, samesite="strict", secure=secure)
