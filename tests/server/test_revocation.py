"""Streams that are open when a token is revoked or expires are closed."""

import asyncio
import hashlib
import json
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any

import httpx2
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from holdfast import Store
from holdfast.config import load_settings
from holdfast.errors import StoreBusy, Unauthenticated
from holdfast.media import open_media
from holdfast.operations.access import Principal
from holdfast.retention import clean
from holdfast.server import auth, create_app, durable_streams, revocation, sockets
from holdfast.server.auth import digest
from holdfast.server.retention import Imports
from holdfast.server.revocation import Revocation
from holdfast.shell import ShellService
from holdfast.store import open_store
from tests.builders import until
from tests.promises.sessions import fill
from tests.server.serving import serving

TOKEN = "hf_to-be-revoked"
KEY = ec.generate_private_key(ec.SECP256R1())
BEARER = {"authorization": f"Bearer {TOKEN}"}
EVENTS = "/api/sessions/mine/events"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(revocation, "CHECK_SECONDS", 0.05)
    monkeypatch.setattr(auth, "_CACHE_SECONDS", 0.05)


@pytest.fixture
async def memory() -> AsyncGenerator[Store, None]:
    async with open_store("sqlite://:memory:") as store:
        await store.create_session(agent="agent", owner="owner", id="mine")
        await store.submit("mine", "message", '{"text": "hi"}')
        yield store


@pytest.fixture
async def client(memory: Store, tmp_path: Path) -> AsyncGenerator[httpx2.AsyncClient, None]:
    public = json.loads(ECAlgorithm.to_jwk(KEY.public_key()))
    keys = tmp_path / "keys.json"
    keys.write_text(json.dumps({"keys": [public | {"kid": "one", "alg": "ES256", "use": "sig"}]}))
    settings = load_settings(jwt_keys=str(keys), jwt_audience="holdfast")
    async with ShellService(memory, cwd=tmp_path) as shell:
        app = create_app(settings, memory, shell=shell)
        async with serving(app) as url, httpx2.AsyncClient(base_url=url, timeout=10) as http:
            yield http


def signed() -> str:
    """Return a JWT that is valid for a minute."""
    claims = {"sub": "owner", "aud": "holdfast", "exp": int(time.time()) + 60, "scope": "shell"}
    return jwt.encode(claims, KEY, algorithm="ES256", headers={"kid": "one"})


class InAnHour(datetime):
    """The time by which every `signed` token has expired."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> datetime:  # pyright: ignore[reportIncompatibleMethodOverride]
        return datetime.now(tz) + timedelta(hours=1)


async def read_to_end(
    client: httpx2.AsyncClient, path: str, token: str, *, opened: asyncio.Event | None = None
) -> str:
    headers = {"authorization": f"Bearer {token}", "accept": "text/event-stream"}
    text = ""
    async with asyncio.timeout(30), client.stream("GET", path, headers=headers) as answer:
        assert answer.status_code == 200
        if opened is not None:
            opened.set()
        async for chunk in answer.aiter_text():
            text += chunk
    assert (await client.get(path, headers=headers)).status_code == 401
    return text


@pytest.mark.parametrize("query", ["", "?format=vercel", "?format=ag-ui"])
async def test_a_revoked_token_ends_its_event_streams(memory: Store, client: httpx2.AsyncClient, query: str):
    made = await memory.add_token(digest(TOKEN), owner="owner")
    opened = asyncio.Event()
    reading = asyncio.create_task(read_to_end(client, EVENTS + query, TOKEN, opened=opened))
    await opened.wait()
    await memory.revoke_token(made.id)
    assert "unauthenticated" in await reading


async def test_a_revoked_token_ends_its_long_polls(
    memory: Store, client: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(durable_streams, "_POLL_SECONDS", 3600.0)
    waiting, watch = asyncio.Event(), memory.watch

    def noted(*given: Any, **options: Any) -> Any:
        waiting.set()
        return watch(*given, **options)

    monkeypatch.setattr(memory, "watch", noted)
    made = await memory.add_token(digest(TOKEN), owner="owner")
    path = "/api/streams/mine?offset=now&live=long-poll"
    polling = asyncio.create_task(client.get(path, headers=BEARER))
    await waiting.wait()
    await memory.revoke_token(made.id)
    answer = await polling
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "unauthenticated")


async def test_an_archive_of_a_revoked_token_does_not_wait_for_its_turn(
    memory: Store, client: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
):
    media = open_media(store=memory)
    await clean(memory, media, "mine", actor="test", force=True)
    made = await memory.add_token(digest(TOKEN), owner="owner")
    waiting = asyncio.Event()

    @asynccontextmanager
    async def never(imports: Imports, owner: str) -> AsyncGenerator[None, None]:
        del imports, owner
        waiting.set()
        await asyncio.Event().wait()
        yield

    monkeypatch.setattr(Imports, "turn", never)
    sending = asyncio.create_task(client.post("/api/sessions/mine/rehydrate", headers=BEARER, content=b"x"))
    await waiting.wait()
    await memory.revoke_token(made.id)
    assert (await sending).status_code == 401


@pytest.mark.parametrize("query", ["", "?format=vercel"])
async def test_an_expired_jwt_ends_its_event_streams(
    client: httpx2.AsyncClient, query: str, monkeypatch: pytest.MonkeyPatch
):
    opened = asyncio.Event()
    reading = asyncio.create_task(read_to_end(client, EVENTS + query, signed(), opened=opened))
    await opened.wait()
    monkeypatch.setattr("jwt.api_jwt.datetime", InAnHour)
    assert "unauthenticated" in await reading


async def test_a_revoked_token_ends_the_output_of_a_shell_command(memory: Store, client: httpx2.AsyncClient):
    made = await memory.add_token(digest(TOKEN), owner="owner", scopes=["shell"])
    started = await client.post(
        "/api/bash/start_bash_command",
        json={"command": "sleep 60"},
        headers={"authorization": f"Bearer {TOKEN}"},
    )
    opened = asyncio.Event()
    path = f"/api/bash/{started.json()['id']}/output"
    reading = asyncio.create_task(read_to_end(client, path, TOKEN, opened=opened))
    await opened.wait()
    await memory.revoke_token(made.id)
    assert "unauthenticated" in await reading


async def read_slowly(client: httpx2.AsyncClient, path: str, opened: asyncio.Event) -> int:
    """Download something and return its size."""
    size = 0
    async with asyncio.timeout(30), client.stream("GET", path, headers=BEARER) as answer:
        assert answer.status_code == 200
        async for piece in answer.aiter_raw(65536):
            opened.set()
            size += len(piece)
            await asyncio.sleep(0.01)
    return size


@pytest.mark.parametrize("what", ["media", "export"])
async def test_a_revoked_token_ends_its_downloads(memory: Store, client: httpx2.AsyncClient, what: str):
    made = await memory.add_token(digest(TOKEN), owner="ada")
    content = bytes(range(256)) * 200_000
    session_id = await fill(memory, open_media(store=memory), ["hi"], blobs=[content])
    sha256 = hashlib.sha256(content).hexdigest()
    path = f"/api/media/{sha256}" if what == "media" else f"/api/sessions/{session_id}/export"
    opened = asyncio.Event()
    reading = asyncio.create_task(read_slowly(client, path, opened))
    await opened.wait()
    await memory.revoke_token(made.id)
    with pytest.raises(httpx2.TransportError):
        await reading


async def test_a_revoked_token_ends_its_upload_of_an_archive(memory: Store, client: httpx2.AsyncClient):
    made = await memory.add_token(digest(TOKEN), owner="ada")
    media = open_media(store=memory)
    session_id = await fill(memory, media, ["hi"])
    await clean(memory, media, session_id, actor="test", force=True)
    opened = asyncio.Event()

    async def endless() -> AsyncGenerator[bytes, None]:
        while True:
            yield b"x" * 1000
            opened.set()
            await asyncio.sleep(0.01)

    path = f"/api/sessions/{session_id}/rehydrate"
    sending = asyncio.create_task(client.post(path, content=endless(), headers=BEARER))
    await opened.wait()
    await memory.revoke_token(made.id)
    async with asyncio.timeout(30):
        with suppress(httpx2.TransportError):  # the server closes the connection of a client that still sends
            assert (await sending).status_code == 401


async def test_a_revoked_token_gets_no_output_of_a_command_that_it_executes(
    memory: Store, client: httpx2.AsyncClient
):
    made = await memory.add_token(digest(TOKEN), owner="owner", scopes=["shell"])
    path = "/api/bash/execute_bash_command"
    answering = asyncio.create_task(client.post(path, json={"command": "sleep 60"}, headers=BEARER))

    async def is_running() -> bool:
        return bool((await memory.commands()).items)

    await until(is_running)
    await memory.revoke_token(made.id)
    assert (await answering).status_code == 401


async def test_an_expired_jwt_ends_its_socket(client: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sockets, "_CHECK_SECONDS", 0.05)
    address = str(client.base_url).replace("http://", "ws://").rstrip("/") + "/sockets/bash-events"
    headers = {"authorization": f"Bearer {signed()}"}
    async with asyncio.timeout(30), connect(address, additional_headers=headers) as socket:
        monkeypatch.setattr("jwt.api_jwt.datetime", InAnHour)
        with pytest.raises(ConnectionClosed):
            await socket.recv()
        assert socket.close_code == 4001


async def test_ten_thousand_streams_of_one_token_are_one_check():
    principal = Principal(owner="owner")
    asked: list[str] = []
    closed: list[int] = []

    async def principal_of(token: str) -> Principal:
        asked.append(token)
        if len(asked) == 2:
            raise StoreBusy(url="memory", seconds=5)
        if len(asked) > 3:
            raise Unauthenticated(problem="It was revoked.")
        assert not closed
        return principal

    watching = Revocation(principal_of)
    streams: list[Any] = [
        watching.watch("token", principal, lambda n=n: closed.append(n)) for n in range(10_000)
    ]
    for stream in streams:
        stream.__enter__()

    async def all_closed() -> bool:
        return len(closed) == len(streams)

    await until(all_closed, 5)
    assert asked == ["token"] * 4
    for stream in streams:
        stream.__exit__(None, None, None)


async def test_a_stream_ends_when_its_token_stands_for_somebody_else():
    closed: list[str] = []

    async def principal_of(token: str) -> Principal:
        return Principal(owner=token, role="user")

    watching = Revocation(principal_of)
    with (
        watching.watch("same", Principal(owner="same"), lambda: closed.append("same")),
        watching.watch("less", Principal(owner="less", role="admin"), lambda: closed.append("less")),
    ):

        async def one_closed() -> bool:
            return bool(closed)

        await until(one_closed, 5)
    assert closed == ["less"]
