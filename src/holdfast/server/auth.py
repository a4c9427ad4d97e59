"""Authentication and authorization. Every route has a rule, and every request passes `authorize`.

A session of another owner looks like a session that does not exist.
"""

import hashlib
import hmac
import logging
import secrets
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeAlias
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection, cookie_parser

from holdfast.config import Settings, is_loopback
from holdfast.errors import Forbidden, NotFound, SessionNotFound, Unauthenticated
from holdfast.ids import is_token
from holdfast.store import Store
from holdfast.types import SCOPES, Role, Scope, Session

if TYPE_CHECKING:
    from holdfast.server.keys import Keys

Rule: TypeAlias = Literal["public", "user", "admin", "shell", "read", "write", "delete"]
"""The requirement of a route: nothing, any principal, an administrator, the scope `shell`, or a scope and access to its session or run.

Routes for any principal and for administrators also require the scope `read`, or `write` if they change something.
"""

COOKIE = "holdfast_token"
_LONGEST_COOKIE = 4096
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_OWN: Final = frozenset({"read", "write", "delete"})
_NEEDED: Final[dict[Rule, tuple[Scope, ...]]] = {
    "read": ("read",),
    "write": ("write",),
    "delete": ("delete", "write"),
    "shell": ("shell",),
}
"""The scopes of each rule, of which one is required. Without `delete`, an erasure has the guards of a clean."""
_CACHE_SECONDS = 5.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """The authenticated sender of a request."""

    owner: str
    role: Role = "user"
    scopes: frozenset[str] = frozenset()

    @classmethod
    def of(cls, owner: str, role: Role, scopes: Iterable[str] | None) -> Self:
        """Return the principal of a token, with all scopes that its scopes imply.

        A token without scopes (None) has `read`, `write` and `delete`, and so has one with the scope `shell` alone. `admin` is the
        role, and implies these three. Unknown scopes are ignored, so a token with no other ones has no rights.
        """
        given = frozenset(_OWN if scopes is None else scopes).intersection(SCOPES)
        if "admin" in given or given == frozenset({"shell"}):
            given |= _OWN
        if role == "admin" or "admin" in given:
            return cls(owner=owner, role="admin", scopes=given | {"admin"})
        return cls(owner=owner, role=role, scopes=given)

    @property
    def is_admin(self) -> bool:
        """Whether the principal has access to all sessions."""
        return self.role == "admin"

    @property
    def owner_filter(self) -> str | None:
        """The owner whose records the principal may see; None for all owners."""
        return None if self.is_admin else self.owner

    def may_see(self, session: Session) -> bool:
        """Return whether the principal may see a session."""
        return self.is_admin or session.owner == self.owner


_LOCAL: Final = Principal(owner="local", role="admin", scopes=frozenset(SCOPES))


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
            raise Unauthenticated(problem="The token has characters that no token has.")
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
        """Raise if a request is not allowed; otherwise set token, principal and session in the connection's state.

        `token` is the token that a WebSocket sent as its first message.
        """
        if rule == "public":
            return
        if token is None:
            token = self._token(connection)
        connection.state.token = token
        principal = connection.state.principal = _LOCAL if token is None else await self.principal(token)
        if rule == "admin" and not principal.is_admin:
            raise Forbidden(required="the role admin", principal=principal.owner)
        needed = _NEEDED.get(rule) or _NEEDED["read" if connection.scope["method"] in _SAFE else "write"]
        if principal.scopes.isdisjoint(needed):
            raise Forbidden(required=f"the scope {' or '.join(needed)}", principal=principal.owner)
        if rule in {"read", "write", "delete"}:
            connection.state.session = await self._session(principal, path)

    async def _session(self, principal: Principal, path: Mapping[str, Any]) -> Session:
        if "run_id" in path:
            session_id = (await self.store.run(path["run_id"])).session_id
        else:
            session_id = path["session_id"]
        session = await self.store.session(session_id)
        if not principal.may_see(session):
            raise (
                NotFound(what="run", id=path["run_id"])
                if "run_id" in path
                else SessionNotFound(id=session_id)
            )
        return session


def _check_origin(connection: HTTPConnection) -> None:
    """Raise `Forbidden` if a page of another site sent the cookie."""
    if connection.scope["type"] == "http" and connection.scope["method"] in _SAFE:
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
