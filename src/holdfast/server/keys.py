"""The keys of an identity provider, and the tokens that it signed with them."""

import asyncio
import json
import logging
import math
import ssl
import time
from pathlib import Path
from typing import Any, cast

import httpx2
import jwt

from holdfast.config import Settings
from holdfast.errors import BadSettings, BadText, Unauthenticated
from holdfast.ids import check_name
from holdfast.operations.access import Principal
from holdfast.types import ROLES

_REMOTE_KEYS_SECONDS = 300.0
_FILE_KEYS_SECONDS = 5.0
_LOAD_SECONDS = 5.0
_LATEST = 253_402_300_799
"""The last second of the year 9999, the latest expiry of a token."""
_MAX_KEYS_BYTES = 1024 * 1024
_log = logging.getLogger(__name__)


class Keys:
    """The identity provider's public keys, from a URL or a file, and the tokens they verify.

    Keys are reloaded after a fifth of their lifetime, while requests use the current ones. They are not used after their lifetime:
    a key that the provider has withdrawn stops working then, even if the provider cannot be reached.
    Keys are loaded at most thirty times per lifetime, even if tokens name unknown key ids.
    """

    def __init__(self, settings: Settings, *, lifetime: float | None = None) -> None:
        self._issuer, self._audience = settings.jwt_issuer, settings.jwt_audience
        self._where = settings.jwt_keys or ""
        self._is_remote = self._where.startswith(("https://", "http://"))
        self._lifetime = lifetime or (_REMOTE_KEYS_SECONDS if self._is_remote else _FILE_KEYS_SECONDS)
        self._keys: dict[str | None, jwt.PyJWK] = {}
        self._loaded_at = self._tried_at = -math.inf
        self._loading: asyncio.Task[None] | None = None
        if not self._is_remote:
            try:
                self._keys, self._loaded_at = _signing_keys(Path(self._where).read_bytes()), time.monotonic()
            except (OSError, ValueError, jwt.PyJWTError) as error:
                raise BadSettings(problem=f"jwt_keys is not a valid key set: {error}.") from error

    async def principal(self, token: str) -> tuple[Principal, float]:
        """Return the principal of a token, and for how many seconds it is valid. Raises `Unauthenticated`."""
        try:
            key = await self._key(jwt.get_unverified_header(token).get("kid"))
            claims = await asyncio.to_thread(self._claims, token, key)
        except (
            jwt.PyJWTError,
            TypeError,
            ValueError,
        ) as error:  # also if the key does not fit the token's algorithm
            raise Unauthenticated(problem=f"The token is not valid: {error}.") from None
        role = claims.get("role", "user")
        owner = claims.get("sub")
        try:
            check_name(cast("str", owner), "sub")
        except BadText as error:
            raise Unauthenticated(problem=str(error)) from None
        if role not in ROLES:
            raise Unauthenticated(problem="The token has an unknown `role`.")
        scopes = _scopes(claims["scope"]) if "scope" in claims else None
        lifetime = min(int(claims["exp"]), _LATEST) - time.time()
        return Principal.of(cast("str", owner), role, scopes), lifetime

    async def _key(self, kid: str | None) -> jwt.PyJWK:
        key = self._valid(kid)
        now = time.monotonic()
        if (key is None or now - self._loaded_at > self._lifetime / 5) and (
            now - self._tried_at > self._lifetime / 30 and (self._loading is None or self._loading.done())
        ):
            self._tried_at = now
            self._loading = asyncio.create_task(self._load())
        if key is None and self._loading is not None and not self._loading.done():
            await asyncio.wait([self._loading], timeout=_LOAD_SECONDS)
            key = self._valid(kid)
        if key is None:
            raise Unauthenticated(
                problem="The token is not signed with a current key of the identity provider."
            )
        return key

    def _valid(self, kid: str | None) -> jwt.PyJWK | None:
        return self._keys.get(kid) if time.monotonic() - self._loaded_at < self._lifetime else None

    async def _load(self) -> None:
        began = time.monotonic()
        try:
            async with asyncio.timeout(_LOAD_SECONDS):  # for the whole download
                text = await (
                    self._fetch() if self._is_remote else asyncio.to_thread(Path(self._where).read_bytes)
                )
            self._keys = _signing_keys(text)
            self._loaded_at = began
        except (OSError, ValueError, jwt.PyJWTError, httpx2.HTTPError, httpx2.InvalidURL) as error:
            problem = str(error) or type(error).__name__
            _log.warning("cannot load the keys of the identity provider: %s", problem)

    async def _fetch(self) -> bytes:
        trusted = await asyncio.to_thread(ssl.create_default_context)
        text = bytearray()
        async with (
            httpx2.AsyncClient(verify=trusted, timeout=_LOAD_SECONDS) as client,
            client.stream("GET", self._where) as response,
        ):
            response.raise_for_status()
            async for piece in response.aiter_bytes():
                text += piece
                if len(text) > _MAX_KEYS_BYTES:
                    message = f"the key set has more than {_MAX_KEYS_BYTES} bytes"
                    raise ValueError(message)
        return bytes(text)

    def _claims(self, token: str, key: jwt.PyJWK) -> dict[str, Any]:
        return jwt.decode(
            token,
            key.key,
            algorithms=["RS256", "RS384", "RS512", "ES256", "ES384", "EdDSA", "PS256"],
            audience=self._audience,
            issuer=self._issuer,
            options={"require": ["exp", "sub"]},
        )


def _scopes(claim: Any) -> list[str]:
    """Return the scopes in a claim: names that are separated by spaces, or a list of names."""
    names = claim.split() if isinstance(claim, str) else [] if claim is None else claim
    if not isinstance(names, list) or not all(isinstance(name, str) for name in cast("list[Any]", names)):
        raise Unauthenticated(problem="The claim `scope` of the token is neither a text nor a list of names.")
    return cast("list[str]", names)


def _signing_keys(text: bytes) -> dict[str | None, jwt.PyJWK]:
    try:
        document: Any = json.loads(text)
    except RecursionError:
        document = None
    if not isinstance(document, dict):
        raise jwt.PyJWKSetError("it is not a JSON object")
    result = jwt.PyJWKSet.from_dict(cast("dict[str, Any]", document))
    return {key.key_id: key for key in result.keys if key.public_key_use in {None, "sig"}}
