"""Signatures of webhooks, and their secrets, as Standard Webhooks specifies them (https://www.standardwebhooks.com)."""

import base64
import binascii
import hashlib
import hmac
import re
import secrets as random
from collections.abc import Sequence

from holdfast.errors import BadInput

_PREFIX = "whsec_"
_SHORTEST, _LONGEST = 24, 64
_CREATED_BYTES = 32
_ID = re.compile(r"[A-Za-z0-9_:@=+~-]{1,128}")
"""No period: the signed content separates its parts with periods."""


def new_secret() -> str:
    """Return a new random secret for a receiver."""
    return _PREFIX + base64.b64encode(random.token_bytes(_CREATED_BYTES)).decode()


def parse_secret(secret: str) -> bytes:
    """Return the key in a secret. Raises `BadInput` if the secret does not have the standard form. The error does not contain it."""
    try:
        key = base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not secret.startswith(_PREFIX) or not _SHORTEST <= len(key) <= _LONGEST:
        raise BadInput(
            problem=f"a webhook secret is `{_PREFIX}` and {_SHORTEST} to {_LONGEST} random bytes in Base64, with padding"
        )
    return key


def sign(id: str, timestamp: int, body: bytes, secrets: Sequence[str]) -> dict[str, str]:
    """Return the headers that sign a webhook, with one signature for each secret.

    While a secret is rotated, pass the new and the previous one. Raises `BadInput` if the id or a secret is malformed.
    """
    if not _ID.fullmatch(id):
        raise BadInput(problem=f"webhook id {id!r}: use 1 to 128 letters, digits and _ : @ = + ~ -")
    if not secrets:
        raise BadInput(problem="a webhook needs at least one secret")
    content = b".".join((id.encode(), str(timestamp).encode(), body))
    digests = [hmac.digest(parse_secret(secret), content, hashlib.sha256) for secret in secrets]
    return {
        "webhook-id": id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(f"v1,{base64.b64encode(digest).decode()}" for digest in digests),
    }
