import pytest

from holdfast import Store
from holdfast.errors import BadInput, NotFound

DIGEST = "ab" * 32


async def test_a_token_is_worth_something_until_it_is_revoked(store: Store):
    made = await store.add_token(DIGEST, owner="you", role="admin", scopes=["shell", "other"])
    found = await store.token(DIGEST)
    assert found == made
    assert (made.owner, made.role, list(made.scopes)) == ("you", "admin", ["shell", "other"])
    assert await store.token("cd" * 32) is None
    revoked = await store.revoke_token(made.id)
    assert await store.revoke_token(made.id) == revoked
    assert await store.token(DIGEST) is None
    assert await store.tokens() == [revoked]


async def test_a_token_expires(store: Store):
    made = await store.add_token(DIGEST, owner="you", lifetime=0.001)
    while await store.token(DIGEST) is not None:
        pass
    assert made.expires_at is not None
    assert made.expires_at > made.created_at


async def test_bad_tokens(store: Store):
    with pytest.raises(BadInput):
        await store.add_token(DIGEST, owner="you", role="king")  # pyright: ignore[reportArgumentType]
    with pytest.raises(BadInput):
        await store.add_token(DIGEST, owner="you", lifetime=-1)
    with pytest.raises(BadInput):
        await store.add_token(DIGEST, owner="", lifetime=1)
    with pytest.raises(NotFound):
        await store.revoke_token("nobody")
