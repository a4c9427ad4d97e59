"""Promise 10, closed by default: every route against everyone who might knock."""

import asyncio
import json
import threading
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeAlias

import httpx2
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm
from starlette.routing import WebSocketRoute

from holdfast import Store
from holdfast.config import load_settings
from holdfast.errors import BadSettings
from holdfast.media import open_media
from holdfast.retention import clean, erase
from holdfast.server import auth, create_app, keys
from holdfast.server.routes import RULES
from holdfast.store import open_store
from holdfast.types import Batch, Run
from tests.builders import until
from tests.promises.sessions import fill
from tests.server.examples import example_bodies


def routes(app: Any) -> list[tuple[str, str]]:
    """Return every route of the document: what is not in there is not open to anybody."""
    found = [(method.upper(), path) for path, methods in app.openapi()["paths"].items() for method in methods]
    assert len(found) > 25
    return found


def test_every_route_has_a_rule(app: Any):
    page = {
        ("GET", "/"),
        ("GET", "/docs"),
        ("GET", "/static/{name}"),
        ("POST", "/sign-in"),
        ("POST", "/sign-out"),
    }
    sockets = {("WEBSOCKET", "/sockets/bash-events")}  # who may is tried in test_sockets.py
    assert set(routes(app)) == set(RULES) - page - sockets
    assert {("WEBSOCKET", path) for path in _sockets(app.routes)} == sockets
    assert {RULES[route] for route in page} == {"public"}  # what they give away is tested in test_page.py
    for path, methods in app.openapi()["paths"].items():
        for method, operation in methods.items():
            assert operation["x-rule"] == RULES[method.upper(), path]


def _sockets(found: Any) -> set[str]:
    """Return the paths of all WebSockets, also of routers within."""
    inner = [getattr(route, "original_router", route) for route in found]
    below = {path for route in inner if hasattr(route, "routes") for path in _sockets(route.routes)}
    return below | {route.path for route in inner if isinstance(route, WebSocketRoute)}


@pytest.mark.parametrize("state", ["idle", "running", "cleaned", "erased"])
async def test_a_stranger_cannot_tell_a_foreign_session_from_none(
    app: Any, store: Store, http: httpx2.AsyncClient, tokens: dict[str, str], state: str
):
    media = open_media(store=store)
    session_id = await fill(store, media, ["hello"])
    run_id = (await store.runs(session_id=session_id)).items[0].id
    command_id = (await store.commands(session_id=session_id)).items[0].id
    if state == "running":
        await store.acquire(session_id, await store.join("worker"))
    elif state == "cleaned":
        await clean(store, media, session_id, actor="test", force=True)
    elif state == "erased":
        await erase(store, media, session_id, actor="test")
    others = {
        "consumer": "reader",
        "call_id": "call 2",
        "submission_id": "no-submission",
        "sha256": "0" * 64,
        "event_id": "0" * 32,
        "name": "key",
    }
    theirs = {"session_id": session_id, "run_id": run_id, "command_id": command_id}
    none = {"session_id": "no-session", "run_id": "no-run", "command_id": str(uuid.UUID(int=0))}
    compared, examples = 0, example_bodies(app)
    for method, template in routes(app):
        rule = RULES[method, template]
        if not any(f"{{{name}}}" in template for name in theirs):
            continue
        token = tokens["shell" if rule == "shell" else "other"]
        bodies = (
            (examples.get((method, template)), {"unknown": 1})
            if method in {"POST", "PUT", "PATCH"}
            else (None,)
        )
        for body in bodies:
            answers: list[tuple[int, str]] = []
            for names in (theirs, none):
                answer = await http.request(
                    method,
                    template.format(**others, **names),
                    json=body,
                    headers={"authorization": f"Bearer {token}"},
                )
                text = answer.text
                for name in names:
                    text = text.replace(names[name], name)
                answers.append((answer.status_code, text))
            compared += 1
            assert answers[0] == answers[1], (method, template)
            assert answers[0][0] in ({404, 422} if body == {"unknown": 1} else {404}), (method, template)
    assert compared > 30


async def test_the_matrix(app: Any, store: Store, http: httpx2.AsyncClient, tokens: dict[str, str]):
    """Nobody, an expired token and a stranger get nothing; a stranger cannot even tell what exists."""
    await store.create_session(agent="agent", owner="owner", id="theirs")
    lease = await store.acquire("theirs", await store.join("test"))
    await store.write(lease, Batch(runs=[Run(id="their-run")]))
    await store.release(lease)
    checked, examples = 0, example_bodies(app)
    for method, template in routes(app):
        rule = RULES[method, template]
        names = {
            "session_id": "theirs",
            "run_id": "their-run",
            "consumer": "reader",
            "call_id": "call",
            "submission_id": "submission",
            "schedule_id": "theirs",
            "subscription_id": "theirs",
            "delivery_id": "theirs",
            "sha256": "0" * 64,
            "command_id": "0" * 32,
            "event_id": "0" * 32,
            "name": "key",
        }
        path = template.format(**names)
        missing = template.format(**names | {"session_id": "nothing", "run_id": "no-run"})
        body = examples.get((method, template))

        async def ask(where: str, who: str | None, method: str = method, body: Any = body) -> httpx2.Response:
            token = {} if who is None else {"authorization": f"Bearer {tokens[who]}"}
            http.headers.pop("authorization", None)
            return await http.request(method, where, json=body, headers=token)

        if rule == "public":
            assert (await ask(path, None)).status_code < 400, path
            continue
        checked += 1
        assert (await ask(path, None)).status_code == 401, path
        assert (await ask(path, "expired")).status_code == 401, path
        if rule in {"read", "write", "delete"}:
            foreign, absent = await ask(path, "other"), await ask(missing, "other")
            assert (foreign.status_code, absent.status_code) == (404, 404), path
            theirs = foreign.text.replace("theirs", "X").replace("their-run", "X")
            assert theirs == absent.text.replace("nothing", "X").replace("no-run", "X"), path
        if rule == "shell":
            assert (await ask(path, "owner")).status_code == 403, path
            assert (await ask(path, "admin")).status_code == 403, path
            assert (await ask(path, "shell")).status_code not in {401, 403, 500}, path
            continue
        if rule == "admin":
            assert (await ask(path, "owner")).status_code == 403, path
        else:
            assert (await ask(path, "owner")).status_code not in {401, 403, 500}, path
        assert (await ask(path, "admin")).status_code not in {401, 403, 500}, path
    assert checked > 20


SCOPED = {
    "reader": {"read"},
    "writer": {"read", "write"},
    "deleter": {"delete"},
    "shell": {"read", "write", "delete", "shell"},  # scopes that name no right on sessions imply all of them
    "auditor": {"read", "admin"},
    "chief": {"read", "write", "delete", "admin"},
}


async def test_the_matrix_of_scopes(app: Any, store: Store, http: httpx2.AsyncClient, tokens: dict[str, str]):
    """Every route against tokens with some of the scopes: those without the one that it needs get 403, whatever they name."""
    names = {
        "session_id": "none",
        "run_id": "none",
        "consumer": "me",
        "call_id": "call",
        "submission_id": "submission",
        "schedule_id": "none",
        "subscription_id": "none",
        "delivery_id": "none",
    }
    names |= {"sha256": "0" * 64, "command_id": "0" * 32, "event_id": "0" * 32, "name": "key"}
    allowed, examples = 0, example_bodies(app)
    for method, template in routes(app):
        rule = RULES[method, template]
        if rule == "public":
            continue
        needed = {
            "read": {"read"},
            "write": {"write"},
            "delete": {"write", "delete"},
            "shell": {"shell"},
        }.get(rule, {"read"} if method == "GET" else {"write"})
        for who, scopes in SCOPED.items():
            answer = await http.request(
                method,
                template.format(**names),
                json=examples.get((method, template)),
                headers={"authorization": f"Bearer {tokens[who]}"},
            )
            may = bool(scopes & needed) and (rule != "admin" or "admin" in scopes)
            assert (answer.status_code == 403) == (not may), (method, template, who, answer.text)
            allowed += may
    assert allowed > 100


OWN = ["delete", "read", "write"]


@pytest.mark.parametrize(
    ("claims", "scopes"),
    [
        ({}, OWN),
        ({"scope": "read"}, ["read"]),
        ({"scope": "read write openid"}, ["read", "write"]),
        ({"scope": ["read", "write"]}, ["read", "write"]),
        ({"scope": "shell"}, [*OWN, "shell"]),
        ({"scope": "admin"}, ["admin", *OWN]),
        ({"scope": "openid profile"}, None),
        ({"scope": ["openid"]}, None),
        ({"scope": "READ"}, None),
        ({"scope": "read,write"}, None),
        ({"scope": ""}, None),
        ({"scope": []}, None),
        ({"scope": None}, None),
        ({"scope": "openid", "role": "admin"}, None),
    ],
)
async def test_a_jwt_whose_scopes_are_all_unknown_grants_nothing(
    provider: "Provider", claims: dict[str, Any], scopes: list[str] | None
):
    async with jwt_client(provider, claims) as client:
        answer = await client.get("/api/me")
        if scopes is None:
            assert answer.status_code == 403
            assert (await client.get("/api/sessions")).status_code == 403
            assert (await client.post("/api/sessions", json={"agent": "agent"})).status_code == 403
            assert (await client.get("/api/audit")).status_code == 403
        else:
            assert answer.json()["scopes"] == sorted(scopes)
            assert (answer.json()["role"] == "admin") == ("admin" in scopes)
            made = await client.post("/api/sessions", json={"agent": "agent"})
            assert made.status_code == (201 if "write" in scopes else 403)


@pytest.mark.parametrize("scope", [{"read": True}, 7, ["read", 7], True])
async def test_a_jwt_whose_scopes_are_no_names_is_refused(provider: "Provider", scope: Any):
    async with jwt_client(provider, {"scope": scope}) as client:
        assert (await client.get("/api/me")).status_code == 401


@asynccontextmanager
async def jwt_client(
    provider: "Provider", claims: dict[str, Any]
) -> AsyncGenerator[httpx2.AsyncClient, None]:
    """Yield a client whose token has these claims."""
    provider.add("good")
    whole = {"sub": "jane", "aud": "holdfast", "exp": int(time.time()) + 600, **claims}
    token = jwt.encode(whole, provider.keys["good"], algorithm="ES256", headers={"kid": "good"})
    async with open_store("sqlite://:memory:") as store:
        app = create_app(load_settings(jwt_keys=provider.url, jwt_audience="holdfast"), store)
        async with httpx2.AsyncClient(
            transport=httpx2.ASGITransport(app, raise_app_exceptions=False),
            base_url="http://test",
            headers={"authorization": f"Bearer {token}"},
        ) as client:
            yield client


async def test_lists_show_only_what_is_yours(store: Store, http: httpx2.AsyncClient):
    await store.create_session(agent="agent", owner="owner", id="mine")
    await store.create_session(agent="agent", owner="other", id="theirs")
    for query in ("", "?owner=other"):
        found = (await http.get(f"/api/sessions{query}")).json()
        assert [item["id"] for item in found["items"]] == ["mine"]
    stolen = await http.post("/api/sessions", json={"agent": "agent", "owner": "other"})
    assert stolen.status_code == 403


async def test_without_authentication_foreign_pages_get_nothing(store: Store):
    """Open doors are for this machine: not for a page that its browser shows, nor for a name that leads here."""
    app = create_app(load_settings(auth="none"), store, ["agent"])
    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:8350") as http:
        body = {"agent": "agent"}
        for foreign in (
            {"origin": "http://evil.example"},
            {"origin": "null"},
            {"origin": "http://127.0.0.1:80"},
            {"host": "evil.example:8350", "origin": "http://evil.example:8350"},
            {"host": "evil.example"},
            {"host": "127.0.0.1.evil.example"},
            {"host": "["},
        ):
            assert (await http.post("/api/sessions", json=body, headers=foreign)).status_code == 403, foreign
            assert (await http.get("/api/sessions", headers=foreign)).status_code == 403, foreign
        for own in (
            {},
            {"origin": "http://127.0.0.1:8350"},
            {"host": "localhost:8350"},
            {"host": "[::1]:8350"},
        ):
            assert (await http.post("/api/sessions", json=body, headers=own)).status_code == 201, own


async def test_a_cookie_needs_the_pages_own_origin(
    store: Store, http: httpx2.AsyncClient, tokens: dict[str, str]
):
    del http.headers["authorization"]
    http.cookies.set("holdfast_token", tokens["owner"])
    assert (await http.get("/api/sessions")).status_code == 200
    body = {"agent": "agent"}
    assert (await http.post("/api/sessions", json=body)).status_code == 403
    for no_origin in ("http://[", "", "test", "null"):
        refused = await http.post("/api/sessions", json=body, headers={"origin": no_origin})
        assert refused.status_code == 403
    foreign = await http.post("/api/sessions", json=body, headers={"origin": "http://evil"})
    assert foreign.status_code == 403
    own = await http.post("/api/sessions", json=body, headers={"origin": "http://test"})
    assert own.status_code == 201
    assert "access-control-allow-origin" not in own.headers


async def test_tokens_of_an_identity_provider(store: Store, tmp_path: Path):
    key = ec.generate_private_key(ec.SECP256R1())
    public = json.loads(ECAlgorithm.to_jwk(key.public_key()))
    keys = tmp_path / "keys.json"
    keys.write_text(json.dumps({"keys": [public | {"kid": "one", "alg": "ES256", "use": "sig"}]}))
    settings = load_settings(jwt_keys=str(keys), jwt_audience="holdfast", jwt_issuer="us")
    application = create_app(settings, store)
    now = int(time.time())
    good = {"sub": "jane", "aud": "holdfast", "iss": "us", "exp": now + 60}

    def token(claims: dict[str, Any], with_key: Any = key, kid: str = "one", algorithm: str = "ES256") -> str:
        return jwt.encode(claims, with_key, algorithm=algorithm, headers={"kid": kid})

    async def status(given: str) -> int:
        async with httpx2.AsyncClient(
            transport=httpx2.ASGITransport(application), base_url="http://test"
        ) as client:
            answer = await client.get("/api/me", headers={"authorization": f"Bearer {given}"})
            if answer.status_code == 200:
                assert answer.json()["owner"] == "jane"
            return answer.status_code

    assert await status(token(good)) == 200
    assert await status(token(good | {"exp": now - 60})) == 401
    assert await status(token(good | {"aud": "others"})) == 401
    assert await status(token(good | {"iss": "them"})) == 401
    assert await status(token(good | {"role": "king"})) == 401
    assert await status(token(good, ec.generate_private_key(ec.SECP256R1()))) == 401
    assert await status(token(good, kid="two")) == 401
    assert await status(token(good, "secret" * 8, algorithm="HS256")) == 401
    assert await status("a.b.c") == 401
    with pytest.raises(BadSettings):
        load_settings(jwt_keys=str(keys))
    with pytest.raises(BadSettings):
        create_app(load_settings(jwt_keys=str(tmp_path / "none"), jwt_audience="x"), store)


class Provider:
    """An identity provider: signs tokens, and publishes its keys over HTTP."""

    def __init__(self) -> None:
        self.keys: dict[str, Any] = {}
        self.asked = 0
        self.answers = threading.Event()
        self.answers.set()
        self.trickles = False
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                provider.asked += 1
                provider.answers.wait(10)
                body = json.dumps(provider.document()).encode()
                self.send_response(200)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                with suppress(OSError):  # the server did not wait for it
                    for byte in body if provider.trickles else b"":
                        self.wfile.write(bytes([byte]))
                        time.sleep(0.1)
                    self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                del format, args

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/keys"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def document(self) -> dict[str, Any]:
        public = {kid: json.loads(ECAlgorithm.to_jwk(key.public_key())) for kid, key in self.keys.items()}
        return {"keys": [found | {"kid": kid, "use": "sig"} for kid, found in public.items()]}

    def add(self, kid: str) -> str:
        """Publish a new key and return a token that is signed with it."""
        self.keys[kid] = ec.generate_private_key(ec.SECP256R1())
        return self.sign(kid, self.keys[kid])

    def sign(self, kid: str, key: Any = None) -> str:
        claims = {"sub": "jane", "aud": "holdfast", "exp": int(time.time()) + 600}
        key = key or ec.generate_private_key(ec.SECP256R1())
        return jwt.encode(claims, key, algorithm="ES256", headers={"kid": kid})

    def stop(self) -> None:
        self.answers.set()
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def provider() -> Generator[Provider, None, None]:
    provider = Provider()
    yield provider
    provider.stop()


Status: TypeAlias = Callable[[str], Awaitable[int]]


@asynccontextmanager
async def trusting(keys: str) -> AsyncGenerator[Status, None]:
    """Make an application that trusts a provider; yield what it answers to a token."""
    async with open_store("sqlite://:memory:") as store:
        app = create_app(load_settings(jwt_keys=keys, jwt_audience="holdfast"), store)
        transport = httpx2.ASGITransport(app, raise_app_exceptions=False)
        async with httpx2.AsyncClient(transport=transport, base_url="http://test") as client:

            async def status(token: str) -> int:
                headers = {"authorization": f"Bearer {token}"}
                return (await client.get("/api/me", headers=headers)).status_code

            yield status


def short(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Have keys live for so long, and tokens be checked anew each time."""
    monkeypatch.setattr(keys, "_REMOTE_KEYS_SECONDS", seconds)
    monkeypatch.setattr(keys, "_FILE_KEYS_SECONDS", seconds)
    monkeypatch.setattr(auth, "_CACHE_SECONDS", 0.0)


async def refused(status: Status, token: str) -> None:
    """Wait until a token is refused."""

    async def is_refused() -> bool:
        return await status(token) == 401

    await until(is_refused, 30)


async def accepted(status: Status, token: str) -> None:
    """Wait until a token is accepted: keys that live for so short a time may expire while they are loaded."""

    async def is_accepted() -> bool:
        return await status(token) == 200

    await until(is_accepted, 30)


async def test_a_withdrawn_signing_key_is_refused_after_its_lifetime(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
):
    short(monkeypatch, 0.3)
    old = provider.add("old")
    async with trusting(provider.url) as status:
        await accepted(status, old)
        new = provider.add("new")
        del provider.keys["old"]
        await refused(status, old)
        await accepted(status, new)


async def test_a_signing_key_that_left_the_file_is_refused(
    provider: Provider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    short(monkeypatch, 0.3)
    keys = tmp_path / "keys.json"
    old = provider.add("old")
    keys.write_text(json.dumps(provider.document()))
    async with trusting(str(keys)) as status:
        await accepted(status, old)
        new = provider.add("new")
        del provider.keys["old"]
        keys.write_text(json.dumps(provider.document()))
        await refused(status, old)
        await accepted(status, new)
        keys.write_text("{")
        await refused(status, new)


async def test_unknown_key_ids_do_not_cause_a_fetch_each(provider: Provider):
    good = provider.add("good")
    async with trusting(provider.url) as status:
        assert await status(good) == 200
        strangers = [provider.sign(f"unknown-{number}") for number in range(30)]
        assert set(await asyncio.gather(*map(status, strangers))) == {401}
        assert {await status(stranger) for stranger in strangers} == {401}
        assert await status(good) == 200
        assert provider.asked <= 2


async def test_an_unreachable_provider_neither_blocks_requests_nor_keeps_keys_valid(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
):
    short(monkeypatch, 5.0)
    good = provider.add("good")
    async with trusting(provider.url) as status:
        assert await status(good) == 200
        monkeypatch.setattr(keys, "_LOAD_SECONDS", 1.0)
        provider.answers.clear()  # it accepts connections, and answers nothing
        asked = provider.asked
        while provider.asked == asked:
            assert await status(good) == 200  # while the key is being loaded again, too
            await asyncio.sleep(0.005)
        async with asyncio.timeout(10):
            assert await status(provider.sign("unknown")) == 401
        await refused(status, good)
        async with asyncio.timeout(10):
            assert await asyncio.gather(*(status(good) for _ in range(50))) == [401] * 50
        provider.answers.set()
        await accepted(status, good)


async def test_keys_that_arrive_byte_by_byte_do_not_block_the_next_load(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
):
    short(monkeypatch, 3.0)
    monkeypatch.setattr(keys, "_LOAD_SECONDS", 0.3)
    good = provider.add("good")
    async with trusting(provider.url) as status:
        provider.trickles = True
        while not provider.asked:  # a busy machine may give up before it has asked
            assert await status(good) == 401
        provider.trickles = False
        await accepted(status, good)


@pytest.mark.parametrize(
    "document", ["", "[]", "null", '{"keys": 1}', '{"keys": [1]}', '{"keys": []}', "[" * 9999]
)
async def test_a_bad_set_of_keys_is_refused(tmp_path: Path, document: str):
    file = tmp_path / "keys.json"
    file.write_text(document)
    async with open_store("sqlite://:memory:") as store:
        with pytest.raises(BadSettings):
            create_app(load_settings(jwt_keys=str(file), jwt_audience="holdfast"), store)


async def test_a_token_that_names_a_key_of_another_kind_is_refused(provider: Provider):
    good = provider.add("good")
    other = jwt.encode(
        {"sub": "jane", "aud": "holdfast", "exp": int(time.time()) + 600},
        rsa.generate_private_key(public_exponent=65537, key_size=2048),
        algorithm="RS256",
        headers={"kid": "good"},
    )
    async with trusting(provider.url) as status:
        assert await status(good) == 200
        assert await status(other) == 401


@pytest.mark.parametrize("token", [b"\xff\xfe", b"\xff.\xfe.\xfd", "€".encode(), b"a\x01b", b"..", b"a.b.c"])
async def test_an_odd_token_is_refused_like_an_unknown_one(http: httpx2.AsyncClient, token: bytes):
    http.headers.pop("authorization", None)
    for headers in ({b"authorization": b"Bearer " + token}, {b"x-session-api-key": token}):
        assert (await http.get("/api/me", headers=headers)).status_code == 401
    assert (await http.get("/api/me", headers={b"cookie": b"holdfast_token=" + token})).status_code == 401
    signed_in = await http.post("/sign-in", json={"token": token.decode("latin-1")})
    assert signed_in.status_code == 401
    assert (await http.get("/", params={"token": token.decode("latin-1")})).status_code == 303


async def test_a_token_of_the_settings_that_no_header_can_have_is_refused(store: Store):
    for token in ("€", "a\nb", "tökén"):
        with pytest.raises(BadSettings, match="printable ASCII"):
            load_settings(token=token)


@pytest.mark.parametrize("sub", ["\ud800", "a\x00b", "", "x" * 300, 7, None])
async def test_a_jwt_whose_subject_cannot_own_a_session_is_refused(provider: "Provider", sub: Any):
    async with jwt_client(provider, {"sub": sub}) as client:
        assert (await client.get("/api/sessions")).status_code == 401
        assert (await client.post("/api/sessions", json={"agent": "agent"})).status_code == 401


async def test_a_bad_id_has_its_own_code(http: httpx2.AsyncClient):
    for made in (
        await http.post("/api/sessions", json={"agent": "agent", "id": "a b"}),
        await http.get("/api/sessions/a%20b"),
        await http.get("/api/runs", params={"session_id": "x" * 129}),
        await http.get("/api/runs", params={"session_id": ""}),
    ):
        error = made.json()["error"]
        assert (made.status_code, error["code"], error["facts"]["what"]) == (
            422,
            "bad_id",
            error["facts"]["what"],
        )
        assert "Use 1 to 128 letters" in error["message"]
