"""Who is asking, and may they? Every route has a rule here, and every request goes through `authorize`.

A session that belongs to somebody else is answered like one that does not exist.
"""

import asyncio
import hashlib
import hmac
import json
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias
from urllib.parse import urlsplit

import jwt
from starlette.requests import HTTPConnection

from holdfast.config import Settings, is_loopback
from holdfast.errors import BadSettings, Forbidden, NotFound, SessionNotFound, Unauthenticated
from holdfast.store import Store
from holdfast.types import ROLES, Role, Session

Rule: TypeAlias = Literal["public", "user", "admin", "shell", "read", "write", "delete"]
"""What a route needs: nothing, any principal, an administrator, the scope `shell`, or a right on the session or run that
it names."""

COOKIE = "holdfast_token"
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_CACHE_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """Who is asking."""

    owner: str
    role: Role = "user"
    scopes: frozenset[str] = frozenset()

    @property
    def is_admin(self) -> bool:
        """Whether all sessions are open to them."""
        return self.role == "admin"

    @property
    def sees(self) -> str | None:
        """Whose things exist for them; None for everybody's."""
        return None if self.is_admin else self.owner

    def may_see(self, session: Session) -> bool:
        """Say whether a session exists for them."""
        return self.is_admin or session.owner == self.owner


def new_token() -> str:
    """Return a secret that cannot be guessed."""
    return f"hf_{secrets.token_urlsafe(32)}"


def digest(token: str) -> str:
    """Return what is kept of a secret."""
    return hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()


@dataclass(slots=True)
class Doorkeeper:
    """Finds out who is asking: by a token of ours, or by one of the identity provider."""

    settings: Settings
    store: Store
    admin_token: str | None = None
    _seen: dict[str, tuple[float, Principal]] = field(default_factory=dict[str, tuple[float, Principal]])
    _keys: "Keys | None" = None

    def __post_init__(self) -> None:
        if self.settings.token is not None:
            self.admin_token = self.settings.token.get_secret_value()
        if self.settings.jwt_keys is not None:
            self._keys = Keys(self.settings)

    async def who(self, connection: HTTPConnection) -> Principal:
        """Return who is asking. Raises `Unauthenticated`."""
        if self.settings.auth == "none":
            _check_at_home(connection)
            return Principal(owner="local", role="admin", scopes=frozenset({"shell"}))
        header = connection.headers.get("authorization", "")
        scheme, _, token = header.partition(" ")
        if scheme.lower() == "bearer" and token:
            return await self.principal(token.strip())
        if key := connection.headers.get("x-session-api-key"):
            return await self.principal(key)
        if connection.scope["type"] == "websocket" and (
            key := connection.query_params.get("session_api_key")
        ):
            return await self.principal(key)  # where a browser's socket can have it
        if cookie := connection.cookies.get(COOKIE):
            _check_origin(connection)
            return await self.principal(cookie)
        raise Unauthenticated(problem="Nobody is known to be asking.")

    async def principal(self, token: str) -> Principal:
        """Return whom a token stands for. Raises `Unauthenticated`."""
        if self.admin_token is not None and hmac.compare_digest(digest(token), digest(self.admin_token)):
            return Principal(owner="local", role="admin", scopes=frozenset({"shell"}))
        if token.count(".") == 2 and self._keys is not None:  # noqa: PLR2004 - the parts of a JWT
            return await self._keys.principal(token)
        key = digest(token)
        known = self._seen.get(key)
        if known is not None and time.monotonic() - known[0] < _CACHE_SECONDS:
            return known[1]
        found = await self.store.token(key)
        if found is None:
            self._seen.pop(key, None)
            raise Unauthenticated(problem="This token is not known, has expired or was revoked.")
        principal = Principal(owner=found.owner, role=found.role, scopes=frozenset(found.scopes))
        if len(self._seen) > 10_000:  # noqa: PLR2004 - bounded, that is all
            self._seen.clear()
        self._seen[key] = time.monotonic(), principal
        return principal

    async def authorize(
        self, connection: HTTPConnection, rule: Rule, path: Mapping[str, Any], *, token: str | None = None
    ) -> None:
        """Let through who may; put the principal and the session into the connection's state.

        `token` is one that came after the request, as the first message of a socket.
        """
        if rule == "public":
            return
        known = self.who(connection) if token is None else self.principal(token)
        principal = connection.state.principal = await known
        if rule == "admin" and not principal.is_admin:
            raise Forbidden(needs="the role admin", who=principal.owner)
        if rule == "shell" and "shell" not in principal.scopes:
            raise Forbidden(needs="the scope shell", who=principal.owner)
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
    """Refuse a cookie that a foreign page sent along."""
    if connection.scope["type"] == "http" and connection.scope["method"] in _SAFE:
        return
    if not _is_from(connection.headers.get("origin", ""), connection.headers.get("host")):
        raise Forbidden(needs="to come from the server's own page", who="this request")


def _check_at_home(connection: HTTPConnection) -> None:
    """Refuse what a foreign page has the browser of this machine send: across sites, or by a name that leads here."""
    host, origin = connection.headers.get("host", ""), connection.headers.get("origin")
    try:
        at_home = is_loopback(urlsplit(f"//{host}").hostname or "")
    except ValueError:  # this is no address
        at_home = False
    if not at_home or not (origin is None or _is_from(origin, host)):
        raise Forbidden(needs="to come from this machine and no foreign page", who="this request")


def _is_from(origin: str, host: str | None) -> bool:
    return origin.partition("://")[2] == host


class Keys:
    """The identity provider's public keys, from a URL or a file, and the tokens they verify."""

    def __init__(self, settings: Settings) -> None:
        self._issuer, self._audience = settings.jwt_issuer, settings.jwt_audience
        self._where = settings.jwt_keys or ""
        self._remote: jwt.PyJWKClient | None = None
        self._local: dict[str | None, Any] = {}
        if self._where.startswith(("https://", "http://")):
            self._remote = jwt.PyJWKClient(self._where, cache_keys=True, timeout=5)
            return
        try:
            found = jwt.PyJWKSet.from_dict(json.loads(Path(self._where).read_text()))
        except (OSError, ValueError, jwt.PyJWTError) as error:
            raise BadSettings(problem=f"jwt_keys names no set of keys: {error}.") from error
        self._local = {key.key_id: key for key in found.keys}

    async def principal(self, token: str) -> Principal:
        """Return whom a token stands for. Raises `Unauthenticated`."""
        try:
            claims = await asyncio.to_thread(self._claims, token)
        except (jwt.PyJWTError, KeyError) as error:
            raise Unauthenticated(problem=f"This token is not valid: {error}.") from None
        role = claims.get("role", "user")
        owner = claims.get("sub")
        if role not in ROLES or not isinstance(owner, str) or not owner:
            raise Unauthenticated(problem="This token names no `sub`, or an unknown `role`.")
        scopes = str(claims.get("scope", "")).split()
        return Principal(owner=owner, role=role, scopes=frozenset(scopes))

    def _claims(self, token: str) -> dict[str, Any]:
        if self._remote is not None:
            key: Any = self._remote.get_signing_key_from_jwt(token)
        else:
            key = self._local[jwt.get_unverified_header(token).get("kid")]
        return jwt.decode(
            token,
            key.key,
            algorithms=["RS256", "RS384", "RS512", "ES256", "ES384", "EdDSA", "PS256"],
            audience=self._audience,
            issuer=self._issuer,
            options={"require": ["exp", "sub"]},
        )
