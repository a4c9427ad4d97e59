"""Access tokens: the digests of their secrets, and the roles and scopes of their owners."""

import math
from collections.abc import Sequence

from holdfast.errors import BadInput, NotFound
from holdfast.ids import check_choice, check_name, new_id
from holdfast.store.rows import Row, from_row
from holdfast.store.transactions import Transactions, Tx, op, reading, writing
from holdfast.types import ROLES, Role, Token


class TokenMethods(Transactions):
    """The transactions of tokens.sql."""

    async def add_token(
        self,
        digest: str,
        *,
        owner: str,
        role: Role = "user",
        scopes: Sequence[str] = (),
        lifetime: float | None = None,
    ) -> Token:
        """Add a token whose secret has this SHA-256. It is valid for `lifetime` seconds or until it is revoked."""
        return await self._add_token(new_id(), digest, owner, role, scopes, lifetime)

    @writing(repeatable=True)
    def _add_token(
        self, id: str, digest: str, owner: str, role: Role, scopes: Sequence[str], lifetime: float | None
    ) -> Tx[Token]:
        check_name(owner, "owner")
        check_choice(role, ROLES, "role")
        for scope in scopes:
            check_name(scope, "scope")
        if lifetime is not None and not (math.isfinite(lifetime) and lifetime > 0):
            raise BadInput(problem=f"lifetime must be a positive number of seconds, not {lifetime}")
        rows = yield op(
            "add_token",
            id=id,
            digest=digest,
            owner=owner,
            role=role,
            scopes=" ".join(scopes),
            lifetime_us=None if lifetime is None else round(lifetime * 1_000_000),
        )
        return _token(rows[0])

    @reading
    def token(self, digest: str) -> Tx[Token | None]:
        """Return the token of a secret; None if it is unknown, expired or revoked."""
        rows = yield op("valid_token", digest=digest)
        return _token(rows[0]) if rows else None

    @reading
    def tokens(self) -> Tx[list[Token]]:
        """Return all tokens, including expired and revoked ones."""
        rows = yield op("tokens")
        return [_token(row) for row in rows]

    @writing(repeatable=True)
    def revoke_token(self, token_id: str) -> Tx[Token]:
        """Revoke a token. Idempotent. Raises `NotFound`."""
        rows = yield op("revoke_token", id=token_id)
        if not rows:
            raise NotFound(what="token", id=token_id)
        return _token(rows[0])


def _token(row: Row) -> Token:
    return from_row(Token, row, scopes=row["scopes"].split())
