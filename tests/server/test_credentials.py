"""Credentials over HTTP and the command line: they go in, and never come out."""

import asyncio
import logging
from pathlib import Path
from typing import Any

import httpx2
import pytest
from typer.testing import CliRunner

from holdfast.cli import app as commands
from holdfast.config import load_settings
from holdfast.media import open_media
from holdfast.retention import write_archive
from holdfast.runtime.credentials import Credentials, new_key
from holdfast.server import create_app
from holdfast.server.auth import digest
from holdfast.store import Store, open_store
from tests.raw_client import AsyncClient
from tests.server.serving import serving

SECRET = "a-token-that-nobody-may-see"


async def test_a_credential_can_be_set_listed_and_deleted_but_not_read(
    store: Store, tokens: dict[str, str], caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.DEBUG)
    key = new_key()
    await store.create_session(agent="a", owner="owner", id="s")
    app = create_app(load_settings(credential_key=key), store)
    transport = httpx2.ASGITransport(app, raise_app_exceptions=False)
    headers = {"authorization": f"Bearer {tokens['owner']}"}
    async with httpx2.AsyncClient(transport=transport, base_url="http://test", headers=headers) as http:
        path = "/api/sessions/s/credentials"
        answers = [
            await http.put(f"{path}/github", json={"value": SECRET, "ttl": 60}),
            await http.put(f"{path}/other", json={"value": "x"}),
            await http.get(path),
            await http.get("/api/sessions/s"),
            await http.put(f"{path}/github", json={"value": [SECRET]}),
            await http.put(f"{path}/github", json={"value": SECRET, "ttl": SECRET}),
        ]
        assert [answer.status_code for answer in answers] == [204, 204, 200, 200, 422, 422]
        assert not [answer for answer in answers if SECRET in answer.text]
        listed = answers[2].json()["items"]
        assert [(item["name"], item["expires_at"] is None) for item in listed] == [
            ("github", False),
            ("other", True),
        ]
        assert set(listed[0]) == {"name", "expires_at"}
        assert await Credentials(store, key).get("s", "github") == SECRET
        for _ in range(2):
            assert (await http.delete(f"{path}/github")).status_code == 204
        assert [item["name"] for item in (await http.get(path)).json()["items"]] == ["other"]
    archive = b"".join([piece async for piece in write_archive(store, open_media(store=store), "s")])
    assert SECRET.encode() not in archive
    assert b"other" not in archive
    assert SECRET not in caplog.text


async def test_without_a_key_the_server_cannot_store_credentials(store: Store, http: httpx2.AsyncClient):
    await store.create_session(agent="a", owner="owner", id="s")
    refused = await http.put("/api/sessions/s/credentials/github", json={"value": SECRET})
    assert (refused.status_code, "credential_key" in refused.json()["error"]["message"]) == (501, True)
    assert SECRET not in refused.text


@pytest.mark.parametrize("over", ["store", "url"])
async def test_credentials_on_the_command_line(tmp_path: Path, over: str):
    key = new_key()
    database = f"sqlite:///{tmp_path}/s.db"
    async with open_store(database) as store:
        await store.create_session(agent="a", owner="owner", id="s")
        await store.add_token(digest("hf_owner"), owner="owner")
        async with serving(create_app(load_settings(credential_key=key), store)) as url:
            environment = (
                {"HOLDFAST_STORE": database, "HOLDFAST_CREDENTIAL_KEY": key}
                if over == "store"
                else {"HOLDFAST_URL": url, "HOLDFAST_TOKEN": "hf_owner"}
            )

            async def holdfast(*arguments: str, say: str = "") -> Any:
                run = CliRunner(env=environment).invoke
                return await asyncio.to_thread(run, commands, ["credentials", *arguments], say)

            made = await holdfast("set", "s", "github", "--ttl", "60", say=f"{SECRET}\n")
            assert (made.exit_code, made.stdout) == (0, "Credential github of session s is set.\n")
            assert await Credentials(store, key).get("s", "github") == SECRET
            shown = await holdfast("list", "s", "--json")
            assert '"name": "github", "expires_at": "2' in shown.stdout
            assert "sealed" not in shown.stdout
            assert "github" in (await holdfast("list", "s")).stdout
            assert (await holdfast("delete", "s", "github")).exit_code == 0
            async with AsyncClient(url, "hf_owner") as client:
                assert await client.credentials("s") == []
