"""Credentials of a session: encrypted with a key from the settings before they are stored, and decrypted only on request.

They are not part of events, messages, logs or forks.
"""

import base64
import os
from collections.abc import Sequence
from typing import Any

from holdfast.errors import BadSettings, CredentialSealed, MissingExtra
from holdfast.store import Store

_KEY_BYTES = 32
_NONCE_BYTES = 12
_VERSION = "1"


def new_key() -> str:
    """Return a new key for `credential_key`."""
    return base64.urlsafe_b64encode(os.urandom(_KEY_BYTES)).decode()


class Credentials:
    """The credentials in a store. `keys` is the setting: the first key encrypts, all of them decrypt."""

    def __init__(self, store: Store, keys: str | None) -> None:
        if not keys:
            raise BadSettings(
                problem="credential_key is not set. Generate one with holdfast.runtime.credentials.new_key()."
            )
        self._store = store
        self._ciphers = [_cipher(key.strip()) for key in keys.split(",")]

    async def set(self, session_id: str, name: str, value: str, *, ttl: float | None = None) -> None:
        """Encrypt and store a credential, for `ttl` seconds if given."""
        nonce = os.urandom(_NONCE_BYTES)
        closed = self._ciphers[0].encrypt(nonce, value.encode(), _bound_to(session_id, name))
        sealed = f"{_VERSION}.{base64.b64encode(nonce + closed).decode()}"
        await self._store.set_credential(session_id, name, sealed, ttl=ttl)

    async def remove(self, session_id: str, name: str) -> None:
        """Delete a credential; do nothing if there is none."""
        await self._store.set_credential(session_id, name, None)

    async def get(self, session_id: str, name: str) -> str | None:
        """Return one credential; None if there is none, or it has expired."""
        credentials = await self._store.credentials(session_id)
        return next(
            (self._open(session_id, name, item.sealed) for item in credentials if item.name == name), None
        )

    async def names(self, session_id: str) -> Sequence[str]:
        """Return the names of a session's credentials."""
        return [item.name for item in await self._store.credentials(session_id)]

    def _open(self, session_id: str, name: str, sealed: str) -> str:
        from cryptography.exceptions import InvalidTag

        version, _, body = sealed.partition(".")
        if version == _VERSION:
            raw = base64.b64decode(body)
            for cipher in self._ciphers:
                try:
                    opened: bytes = cipher.decrypt(
                        raw[:_NONCE_BYTES], raw[_NONCE_BYTES:], _bound_to(session_id, name)
                    )
                except InvalidTag:
                    continue
                return opened.decode()
        raise CredentialSealed(name=name, session_id=session_id)


def _cipher(key: str) -> Any:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError as error:
        raise MissingExtra(extra="credentials") from error
    try:
        raw = base64.b64decode(key, b"-_", validate=True)
    except ValueError:
        raw = b""
    if len(raw) != _KEY_BYTES:
        raise BadSettings(
            problem=f"credential_key must be {_KEY_BYTES} bytes in URL-safe base64. Separate several keys with commas."
        )
    return AESGCM(raw)


def _bound_to(session_id: str, name: str) -> bytes:
    """Return the associated data of the encryption, so that a credential cannot be used in another session or under another name."""
    return f"holdfast credential\n{session_id}\n{name}".encode()
