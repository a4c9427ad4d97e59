from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from holdfast import Store
from holdfast.config import load_settings
from holdfast.server import create_app
from holdfast.server.auth import digest
from holdfast.shell import ShellService

TOKENS = {
    "owner": "hf_owner",
    "other": "hf_other",
    "admin": "hf_admin",
    "shell": "hf_shell",
    "reader": "hf_reader",
    "writer": "hf_writer",
    "deleter": "hf_deleter",
    "auditor": "hf_auditor",
    "chief": "hf_chief_scope",
    "expired": "hf_expired",
}


@pytest.fixture
async def tokens(store: Store) -> dict[str, str]:
    """A token for everyone in the matrix; the sessions of the tests belong to `owner`."""
    await store.add_token(digest(TOKENS["owner"]), owner="owner")
    await store.add_token(digest(TOKENS["other"]), owner="other")
    await store.add_token(digest(TOKENS["admin"]), owner="boss", role="admin")
    await store.add_token(digest(TOKENS["shell"]), owner="sheller", scopes=["shell"])
    await store.add_token(digest(TOKENS["reader"]), owner="owner", scopes=["read"])
    await store.add_token(digest(TOKENS["writer"]), owner="owner", scopes=["read", "write"])
    await store.add_token(digest(TOKENS["deleter"]), owner="owner", scopes=["delete"])
    await store.add_token(digest(TOKENS["auditor"]), owner="auditor", role="admin", scopes=["read"])
    await store.add_token(digest(TOKENS["chief"]), owner="chief", scopes=["admin"])
    revoked = await store.add_token(digest(TOKENS["expired"]), owner="owner")
    await store.revoke_token(revoked.id)
    return TOKENS


@pytest.fixture
async def app(store: Store, tmp_path: Path) -> AsyncGenerator[Any, None]:
    async with ShellService(store, cwd=tmp_path) as shell:
        yield create_app(load_settings(max_body_bytes=100_000), store, shell=shell)


@pytest.fixture
async def http(app: Any, tokens: dict[str, str]) -> AsyncGenerator[httpx2.AsyncClient, None]:
    """A client of the application in this process, as the owner of sessions."""
    headers = {"authorization": f"Bearer {tokens['owner']}"}
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(app, raise_app_exceptions=False),
        base_url="http://test",
        headers=headers,
    ) as client:
        yield client
