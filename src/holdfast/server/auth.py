"""Authentication. Every route has a rule, and every request passes `Authenticator.authorize`."""

import hashlib
import hmac
import logging
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection, cookie_parser

from holdfast.config import Settings, is_loopback
from holdfast.errors import Forbidden, Unauthenticated
from holdfast.ids import is_token
from holdfast.operations.access import SAFE, Caller, Principal, Rule, Service, authorize
from holdfast.store import Store

if TYPE_CHECKING:
    from holdfast.server.keys import Keys

COOKIE = "holdfast_token"
_LONGEST_COOKIE = 4096
_CACHE_SECONDS = 5.0
_log = logging.getLogger(__name__)


_LOCAL: Final = Principal.local()
_ANYONE: Final = Principal(owner="")


def new_token() -> str:
    """Return a new random token."""
    return f"hf_{secrets.token_urlsafe(32)}"


def digest(token: str) -> str:
    """Return the digest of a token, which is stored instead of it."""
    return hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()


@dataclass(slots=True)
class Authenticator:
    """Authenticates requests by a token of Holdfast or of the identity provider."""

    settings: Settings
    store: Store
    admin_token: str | None = None
    _seen: dict[str, tuple[float, Principal]] = field(default_factory=dict[str, tuple[float, Principal]])
    _keys: "Keys | None" = None

    def __post_init__(self) -> None:
        if self.settings.token is not None:
            self.admin_token = self.settings.token.get_secret_value()
        if self.settings.jwt_keys is not None:
            from holdfast.server.keys import Keys  # imports a client and cryptography

            self._keys = Keys(self.settings)

    def _token(self, connection: HTTPConnection) -> str | None:
        """Return the token of a request; None if authentication is off. Raises `Unauthenticated` if there is no token."""
        if self.settings.auth == "none":
            _check_local(connection)
            return None
        header = connection.headers.get("authorization", "")
        scheme, _, token = header.partition(" ")
        if scheme.lower() == "bearer" and token:
            return token.strip()
        if key := connection.headers.get("x-session-api-key"):
            return key
        if connection.scope["type"] == "websocket" and (
            key := connection.query_params.get("session_api_key")
        ):
            return key  # browsers cannot set headers of a WebSocket
        if cookie := cookie_of(connection):
            _check_origin(connection)
            return cookie
        raise Unauthenticated(problem="Missing or invalid credentials.")

    async def principal(self, token: str) -> Principal:
        """Return the principal of a token. Raises `Unauthenticated`."""
        if not is_token(token):
            raise Unauthenticated(problem="The token contains invalid characters.")
        key = digest(token)
        if self.admin_token is not None and hmac.compare_digest(key, digest(self.admin_token)):
            return _LOCAL
        cached = self._seen.get(key)
        if cached is not None and time.monotonic() < cached[0]:
            return cached[1]
        self._seen.pop(key, None)
        if token.count(".") == 2 and self._keys is not None:  # noqa: PLR2004 - the parts of a JWT
            principal, lifetime = await self._keys.principal(token)
        else:
            principal, lifetime = await self._stored(key), _CACHE_SECONDS
        if len(self._seen) > 10_000:  # noqa: PLR2004 - only to bound it
            self._seen.clear()
        self._seen[key] = time.monotonic() + min(lifetime, _CACHE_SECONDS), principal
        return principal

    async def _stored(self, key: str) -> Principal:
        result = await self.store.token(key)
        if result is None:
            raise Unauthenticated(problem="The token is unknown, has expired or was revoked.")
        return Principal.of(result.owner, result.role, result.scopes or None)

    async def authorize(
        self, connection: HTTPConnection, rule: Rule, path: Mapping[str, Any], *, token: str | None = None
    ) -> None:
        """Raise if a request is not allowed; otherwise set its token and its caller in the connection's state.

        `token` is the token that a WebSocket sent as its first message.
        """
        service: Service = connection.app.state.service
        principal, session = _ANYONE, None
        if rule != "public":
            if token is None:
                token = self._token(connection)
            connection.state.token = token
            principal = _LOCAL if token is None else await self.principal(token)
            method: str = connection.scope.get("method", "GET")
            session = await authorize(service, principal, method, rule, path)
        connection.state.caller = Caller(
            service=service,
            principal=principal,
            found=session,
            trace=connection.headers.get("traceparent"),
        )


def _check_origin(connection: HTTPConnection) -> None:
    """Raise `Forbidden` if a page of another site sent the cookie."""
    if connection.scope["type"] == "http" and connection.scope["method"] in SAFE:
        return
    if not is_from(connection.headers.get("origin", ""), connection.headers.get("host")):
        raise Forbidden(required="the Origin of the server's own page", principal="this request")


def _check_local(connection: HTTPConnection) -> None:
    """Raise `Forbidden` for requests of other sites' pages in a local browser: cross-site, or by DNS rebinding."""
    host, origin = connection.headers.get("host", ""), connection.headers.get("origin")
    try:
        is_local = is_loopback(urlsplit(f"//{host}").hostname or "")
    except ValueError:  # not a valid host
        is_local = False
    if not is_local or not (origin is None or is_from(origin, host)):
        raise Forbidden(required="the Host and Origin of this machine", principal="this request")


def is_from(origin: str, host: str | None) -> bool:
    """Return whether an `Origin` is this server, as the request's `Host` names it."""
    return origin.partition("://")[2] == host


def cookie_of(connection: HTTPConnection) -> str | None:
    """Return the token in the cookie. Long cookies are ignored, because Python's parser for quoted values takes quadratic time."""
    for pair in connection.headers.get("cookie", "").split(";"):
        if pair.partition("=")[0].strip() == COOKIE and len(pair) <= _LONGEST_COOKIE:
            return cookie_parser(pair).get(COOKIE) or None
    return None
