"""Promise 10. Closed by default: nobody reads or changes what is not theirs, whatever they know of it.

Here a hostile user attacks the running product from outside, with every id of somebody else's session in hand.
"""

import asyncio
import hashlib
import ipaddress
import json
import os
import re
import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import httpx2
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from holdfast import Store
from holdfast.ids import new_id
from holdfast.media import open_media
from holdfast.notices.signature import new_secret
from holdfast.runtime.credentials import new_key
from holdfast.schedules import ScheduleTerms
from holdfast.server.auth import digest, new_token
from holdfast.subscriptions import SubscriptionTerms
from holdfast.types import Batch, Run
from tests.builders import new_session, until
from tests.conftest import Engine
from tests.forking import start_forked
from tests.promises.sessions import fill
from tests.server.fronts import Front, front

pytestmark = pytest.mark.processes
APP = "tests.promises.app:agent"
MARK = "mark-of-content-5c0e"
OWNER, STRANGER, BOSS = new_token(), new_token(), new_token()
REVOKED, EXPIRED = new_token(), new_token()
SHUT = {400, 401, 404, 405, 422, 431}
"""How a door that stays closed answers: neither with something, nor by falling over."""


@dataclass(frozen=True)
class Call:
    """One request, with all that is needed for it to have an effect if it were let through."""

    method: str
    path: str
    body: Any = None
    accept: str = "*/*"


@dataclass(frozen=True)
class House:
    """A server, a session of Ada's that has all kinds of content, and all that a stranger could know of it."""

    server: Front
    known: dict[str, str]

    @property
    def unknown(self) -> dict[str, str]:
        """The same of a session that does not exist."""
        absent = {name: new_id() for name in self.known}
        return absent | {"sha256": hashlib.sha256(b"absent").hexdigest(), "call_id": "call 3"}

    def client(self, token: str | None) -> httpx2.AsyncClient:
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        return httpx2.AsyncClient(base_url=self.server.url, headers=headers, timeout=20)

    async def kept(self) -> bytes:
        """Return all there is of Ada's session."""
        async with self.client(OWNER) as owner:
            path = f"/api/sessions/{self.known['session_id']}"
            answers = [await owner.get(f"{path}/export"), await owner.get(path)]
        assert {answer.status_code for answer in answers} == {200}
        assert MARK.encode() in answers[0].content
        return b"".join(answer.content for answer in answers)


@pytest.fixture
async def known(store: Store) -> dict[str, str]:
    """Make Ada's session, and a token for everyone; return every id that belongs to it."""
    for token, owner in ((OWNER, "ada"), (STRANGER, "mallory")):
        await store.add_token(digest(token), owner=owner, scopes=["shell"])
    await store.add_token(digest(BOSS), owner="boss", role="admin")
    await store.add_token(digest(EXPIRED), owner="ada", scopes=["shell"], lifetime=0.001)
    revoked = await store.add_token(digest(REVOKED), owner="ada", scopes=["shell"])
    await store.revoke_token(revoked.id)
    session_id = await fill(
        store, open_media(store=store), [MARK, "more"], blobs=[MARK.encode() * 99], agent="agent"
    )
    (command,) = (await store.commands(session_id=session_id)).items
    runs = (await store.runs(session_id=session_id)).items
    terms = ScheduleTerms(cron="0 9 * * *", text=MARK)
    schedule = await store.create_schedule(terms, owner="ada", session_id=session_id, actor="ada")
    notices = SubscriptionTerms(url=f"https://example.com/{MARK}", kinds=("done",))
    subscription = await store.create_subscription(notices, owner="ada", actor="ada", secret=new_secret())
    delivery = await store.test_subscription(subscription.id, actor="ada")
    return {
        "session_id": session_id,
        "run_id": next(run.id for run in runs if run.parent_id is None),
        "call_id": "call 2",
        "checkpoint_id": (await store.checkpoints(session_id=session_id)).items[0].id,
        "schedule_id": schedule.id,
        "subscription_id": subscription.id,
        "delivery_id": delivery.id,
        "submission_id": (await store.submissions(session_id)).items[0].id,
        "command_id": command.id,
        "event_id": (await store.outputs(command.id))[0].id,
        "sha256": hashlib.sha256(MARK.encode() * 99).hexdigest(),
        "consumer": "reader",
        "name": "github",
    }


@pytest.fixture
async def house(engine: Engine, known: dict[str, str]) -> AsyncGenerator[House, None]:
    key = new_key()
    async with front(engine.url, "--role", "api", "--enable-shell", credential_key=key) as server:
        yield House(server, known)


def bodies(known: dict[str, str]) -> dict[tuple[str, str], Any]:
    """What to send to the routes that take something, by the end of their path."""
    session = {"session_id": known["session_id"]}
    place = {"checkpoint_id": known["checkpoint_id"]}
    return {
        ("POST", "/sessions"): {"agent": "agent", "id": known["session_id"]},
        ("PATCH", "/{session_id}"): {"title": "taken over", "hold": True},
        ("POST", "/schedules"): {"cron": "* * * * *", "text": "taken over", **session},
        ("PATCH", "/{schedule_id}"): {"text": "taken over", "paused": True},
        ("POST", "/subscriptions"): {"url": "https://example.com", "kinds": ["done"], "owner": "ada"},
        ("PATCH", "/{subscription_id}"): {"url": "https://example.com", "paused": True},
        ("POST", "/secret"): {},
        ("POST", "/submissions"): {"text": "hello"},
        ("POST", "/{name}"): {"data": 1},
        ("POST", "/approvals"): {"call_id": known["call_id"], "digest": "0" * 64, "approved": True},
        ("POST", "/tool-results"): {"call_id": known["call_id"], "digest": "0" * 64, "result": 1},
        ("POST", "/interrupt"): {"submission_id": known["submission_id"]},
        ("POST", "/rewind"): place,
        ("POST", "/chat"): {
            "id": known["session_id"],
            "messages": [{"id": "m", "role": "user", "parts": [{"type": "text", "text": "hello"}]}],
        },
        ("POST", "/ag-ui"): {
            "threadId": known["session_id"],
            "runId": "r",
            "messages": [{"id": "m", "role": "user", "content": "hello"}],
        },
        ("POST", "/retry"): {"submission_id": known["submission_id"]},
        ("POST", "/undo-effects"): {"submission_id": known["submission_id"]},
        ("POST", "/fork"): place,
        ("PUT", "/budgets"): {"per": "owner", "name": "ada", "requests": 0},
        ("PUT", "/state"): {"body": "taken over", "expected_version": 1},
        ("PUT", "/{consumer}"): {"seq": 1},
        ("PUT", "/{name}"): {"value": "taken over"},
        ("POST", "/{call_id}"): {"result": "taken over"},
        ("POST", "/clean"): {"idle_days": 0, "force": True},
        ("POST", "/sweep"): {},
        ("POST", "/start_bash_command"): {"command": "true", **session},
        ("POST", "/execute_bash_command"): {"command": "true", **session},
    }


async def calls(house: House, known: dict[str, str]) -> list[Call]:
    """Return a call of every route that the running server says it has, what destroys most at the end."""
    async with house.client(None) as nobody:
        paths = (await nobody.get("/openapi.json")).json()["paths"]
    sent = bodies(known)
    queries = {
        "/api/sessions": f"?owner=ada&search={MARK}",
        "/api/sessions/{session_id}/records": "?kind=item",
        "/api/audit": f"?session_id={known['session_id']}",
        "/api/runs": f"?session_id={known['session_id']}",
        "/api/bash/bash_events/search": f"?command_id__eq={known['command_id']}",
        "/api/bash/bash_events/": f"?event_ids={known['event_id']}",
    }
    found: list[Call] = []
    for template, methods in paths.items():
        for method, operation in methods.items():
            if operation["x-rule"] == "public":
                continue
            verb = method.upper()
            body = sent.get((verb, "/" + template.rpartition("/")[2]))
            query = queries.get(template, "") if verb == "GET" else ""
            path = template.format(**{name: quote(value) for name, value in known.items()})
            assert body is not None or "application/json" not in str(operation.get("requestBody")), template
            found.append(Call(verb, path + query, body))
    events = f"/api/sessions/{known['session_id']}/events"
    found += [Call("GET", events, accept="text/event-stream"), Call("GET", f"{events}?format=vercel")]
    assert len(found) > 45
    order = ["HEAD", "GET", "PUT", "PATCH", "POST", "DELETE"]
    return sorted(found, key=lambda call: order.index(call.method))


async def ask(client: httpx2.AsyncClient, call: Call) -> tuple[int, str, str]:
    """Return the status, the head and the body; of what is let through, which may never end, the beginning."""
    headers = {"accept": call.accept}
    async with client.stream(call.method, call.path, json=call.body, headers=headers) as answer:
        head = "\n".join(sorted(f"{k}: {v}" for k, v in answer.headers.items() if k != "date"))
        streams = answer.headers.get("content-type", "").startswith("text/event-stream")
        if streams:
            return answer.status_code, head, await anext(aiter(answer.aiter_text()))
        return answer.status_code, head, (await answer.aread()).decode("utf-8", "replace")


def without(text: str, ids: dict[str, str]) -> str:
    for value in ids.values():
        text = text.replace(value, "X")
    return text


async def test_every_route_is_closed_to_who_is_not_known(house: House):
    """Also to who has only what the store keeps of a token, or takes an id for one."""
    before = await house.kept()
    every = await calls(house, house.known)
    worthless = (None, new_token(), REVOKED, EXPIRED, digest(BOSS), house.known["session_id"], "null")
    for token in worthless:
        async with house.client(token) as client:
            answers = await asyncio.gather(*(ask(client, call) for call in every))
        for call, (status, _, body) in zip(every, answers, strict=True):
            assert (status, MARK in body) == (401, False), (token, call, status)
    assert await house.kept() == before


async def test_a_stranger_who_knows_every_id_gets_nothing(house: House):
    """Neither content nor a change, and not even whether it exists. The owner gets all of it with the same calls."""
    before = await house.kept()
    unknown = house.unknown | {name: house.known[name] for name in ("consumer", "name")}
    every = await calls(house, house.known)
    async with house.client(STRANGER) as stranger:
        for call, absent in zip(every, await calls(house, unknown), strict=True):
            status, head, body = await ask(stranger, call)
            assert MARK not in body, call
            if call.body and (call.body.get("id") or call.body.get("threadId")):
                assert status == 409, body  # an id is taken, whoever has it: nothing else is told
                continue
            assert status in ({404} if _names(call, house.known) else {200, 403}), (call, status, body)
            other = await ask(stranger, absent)
            if status == 404:
                there = (status, without(head, house.known), without(body, house.known))
                assert there == (other[0], without(other[1], unknown), without(other[2], unknown)), call
            assert status == other[0], call
    assert await house.kept() == before
    async with house.client(OWNER) as owner:
        for call in every:
            status, _, body = await ask(owner, call)
            refused = call.path.startswith(("/api/audit", "/api/retention/")) or call.path.endswith("/clean")
            refused = refused or (call.method, call.path) == ("PUT", "/api/budgets")
            assert status in ({403} if refused else {200, 201, 202, 204, 409}), (call, status, body)


def _names(call: Call, known: dict[str, str]) -> bool:
    """Say whether a call is about one thing, which it names; a list or a search finds nothing instead."""
    asked = urlsplit(call.path).path + json.dumps(call.body)
    return any(quote(value) in asked for name, value in known.items() if name not in {"consumer", "name"})


async def test_tricks_open_nothing(house: House):
    """Heads and paths that proxies, frameworks and careless code have been fooled with."""
    before = await house.kept()
    session = f"/api/sessions/{house.known['session_id']}"
    async with house.client(STRANGER) as stranger:
        own = (await stranger.post("/api/sessions", json={"agent": "agent"})).json()["id"]
    mine = f"Authorization: Bearer {STRANGER}"
    heads = [
        *(
            "Authorization:",
            "Authorization: Bearer",
            "Authorization: Bearer  ",
            "Authorization: Bearer a.b.c",
        ),
        *(f"Authorization: Bearer {'x' * 60_000}", f"Authorization: Bearer {'x' * 90_000}"),
        *("Authorization: Bearer \xff\xfe\x80", f"Authorization: Digest {OWNER}", f"Authorization: {OWNER}"),
        *("X-Session-API-Key: \xff", "Cookie: holdfast_token=", "Cookie: holdfast_token=\xff; a=b"),
        *(f"{mine}\r\nAuthorization: Bearer admin", f"Authorization: Bearer admin\r\n{mine}"),
        *(f"{mine}\r\n{name}: ada" for name in ("X-Forwarded-User", "Remote-User", "X-Owner", "From")),
        *(f"{mine}\r\n{name}: admin" for name in ("Role", "X-Role", "Cookie")),
        f"{mine}\r\nX-Forwarded-For: 127.0.0.1\r\nHost: localhost\r\nOrigin: {house.server.url}",
        f"{mine}\r\nX-Original-URL: /health\r\nX-Rewrite-URL: /health",
    ]
    asked = [(f"GET {session} HTTP/1.1", head) for head in heads]
    asked += [
        (f"POST {session}/interrupt HTTP/1.1", f"{mine}\r\nX-HTTP-Method-Override: GET"),
        (f"GET {session} HTTP/1.1", f"{mine}\r\nX-HTTP-Method-Override: DELETE"),
        *(
            (f"{method} {session} HTTP/1.1", mine)
            for method in ("HEAD", "OPTIONS", "TRACE", "get", "CONNECT")
        ),
    ]
    # A token in an address would be in the logs of every proxy: it is worth nothing there.
    names = ("token", "session_api_key", "access_token", "authorization")
    asked += [(f"GET {session}?{name}={OWNER} HTTP/1.1", "A: b") for name in names]
    paths = (
        *(f"/{session}", f"{session}/", f"{session}//", f"{session}.json", f"{session};a=b", f"{session}%00"),
        *(session.upper(), session.replace("/api", "/API"), session.replace("/sessions/", "//sessions//")),
        *(
            f"{place}/..{session}"
            for place in ("/health", "/static", "/static/app.js", f"/api/sessions/{own}")
        ),
        *(f"{place}/%2e%2e{session}" for place in ("/health", "/static", f"/api/sessions/{own}")),
        f"/api/sessions/{own}/../{house.known['session_id']}",
        f"/api/sessions/{own}%2f..%2f{house.known['session_id']}",
        f"/api/sessions/{own}%2c{house.known['session_id']}",
        *("/static/..%2fauth.py", "/static/%2e%2e/auth.py", "/static//etc/passwd", "/static/....//auth.py"),
        *(f"http://127.0.0.1{session}", f"/api/runs/{house.known['session_id']}", f"{session}/events/"),
    )
    asked += [(f"GET {path} HTTP/1.1", head) for path in paths for head in (mine, "A: b")]
    for line, head in asked:
        status, body = await _say(
            house.server, f"{line}\r\nHost: {urlsplit(house.server.url).netloc}\r\n{head}"
        )
        assert status in ({401} if OWNER in line + head else SHUT), (line, head[:99], status, body[:200])
        assert MARK not in body, (line, head[:99])
    assert await house.kept() == before


async def _say(server: Front, head: str) -> tuple[int, str]:
    """Send a request as it is written here, which no client would send, and return the status and all of the answer."""
    address = urlsplit(server.url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    writer.write(f"{head}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n".encode("latin-1"))
    answer = b""
    with suppress(ConnectionResetError):  # it has answered, and reads no further
        async with asyncio.timeout(10):
            while piece := await reader.read(65536):
                answer += piece
    writer.close()
    return int(answer.split(b" ", 2)[1]), answer.decode("latin-1")


async def test_the_log_of_commands_is_closed(house: House):
    """The WebSocket: nothing for who is not known, and of others' commands nothing for who is."""
    before = await house.kept()
    address = f"{house.server.url.replace('http', 'ws', 1)}/sockets/bash-events?resend_mode=all"
    for token, status in ((new_token(), 401), (REVOKED, 401), (EXPIRED, 401), (BOSS, 403)):
        with pytest.raises(InvalidStatus) as refused:
            await connect(address, additional_headers={"Authorization": f"Bearer {token}"})
        assert refused.value.response.status_code == status
    async with connect(address) as nobody:
        await nobody.send(json.dumps({"command": "true", "session_id": house.known["session_id"]}))
        with pytest.raises(ConnectionClosed):
            await asyncio.wait_for(nobody.recv(), 10)
    async with connect(address, additional_headers={"Authorization": f"Bearer {STRANGER}"}) as stranger:
        await stranger.send(json.dumps({"command": "true", "session_id": house.known["session_id"]}))
        await stranger.send(json.dumps({"command": "echo the end"}))
        heard = ""
        async with asyncio.timeout(20):
            while "the end\\n" not in heard:
                heard += str(await stranger.recv())
    assert "session_not_found" in heard
    assert MARK not in heard
    assert await house.kept() == before
    async with connect(address, additional_headers={"Authorization": f"Bearer {OWNER}"}) as owner:
        assert MARK in str(await asyncio.wait_for(owner.recv(), 10))


async def test_what_overrides_a_guard_needs_an_administrator(house: House, store: Store):
    before = await house.kept()
    session = f"/api/sessions/{house.known['session_id']}"
    child = await new_session(store, owner="mallory")
    lease = await store.acquire(child, await store.join("test", ttl=60))
    await store.write(lease, Batch(runs=[Run(id="delegate", parent_id=house.known["run_id"])]))
    await store.release(lease)
    async with house.client(OWNER) as owner, house.client(BOSS) as boss:
        for call in (
            Call("POST", f"{session}/clean", {"force": True}),
            Call("POST", f"{session}/clean", {"force": True, "dry_run": True}),
            Call("POST", f"{session}/clean", {"idle_days": 0}),
            Call("POST", "/api/retention/sweep", {"dry_run": True}),
            Call("POST", "/api/sessions", {"agent": "agent", "owner": "mallory"}),
            Call("GET", "/api/audit"),
        ):
            status, _, body = await ask(owner, call)
            assert (status, "the role admin" in body) == (403, True), (call, body)
        asked = Call("POST", f"{session}/clean", {"idle_days": 7, "role": "admin"})
        assert (await ask(owner, asked))[0] == 422
        assert await house.kept() == before
        assert (await ask(boss, Call("PATCH", session, {"hold": True})))[0] == 200
        for token in (owner, boss):  # a hold is to be lifted, not overridden
            assert (await ask(token, Call("DELETE", session)))[0] == 409
        assert (await ask(boss, Call("PATCH", session, {"hold": False})))[0] == 200
        assert (await ask(boss, Call("POST", f"{session}/clean", {"force": True})))[0] == 200
        assert (await ask(owner, Call("GET", f"{session}/export")))[0] == 409
        assert (await boss.get("/api/audit", params={"session_id": house.known["session_id"]})).json()[
            "items"
        ]
        assert (await ask(owner, Call("DELETE", f"{session}?children=true")))[0] == 200
        assert (await store.session(child)).owner == "mallory"  # a child of another owner stays


async def test_ids_of_others_in_ones_own_session_open_nothing(engine: Engine, known: dict[str, str]):
    """A stranger has workers do it: with checkpoints, sessions and media of Ada's, named in a session of his own."""
    async with front(engine.url, APP) as server:
        house = House(server, known)
        before = await house.kept()
        async with house.client(STRANGER) as stranger, house.client(BOSS) as boss:
            own = f"/api/sessions/{(await stranger.post('/api/sessions', json={'agent': 'agent'})).json()['id']}"
            place = {"checkpoint_id": known["checkpoint_id"]}
            await _have_done(stranger, own, {"text": f"media+sha256://{known['sha256']}#text"})
            await _have_done(stranger, own, {"kind": "rewind", **place})
            refused = await stranger.post(f"{own}/retry", json={"submission_id": known["submission_id"]})
            assert refused.status_code == 404
            await _have_done(stranger, own, {"kind": "fork", **place})
            await _have_done(stranger, own, {"kind": "fork", "session_id": known["session_id"]})
            await _have_done(stranger, own, {"kind": "fork"})
            output = await stranger.get(f"{own}/commands/{known['command_id']}/output")
            assert output.status_code == 404
            await _has_nothing(stranger, known)
            # The reference that the text above only looked like, written into an archive of his own.
            archive = (await stranger.get(f"{own}/export")).content
            assert (await boss.post(f"{own}/clean", json={"force": True})).status_code == 200
            refused = await stranger.post(f"{own}/rehydrate", content=_forged(archive))
            if refused.status_code == 204:
                await _have_done(stranger, own, {"kind": "fork"})
            await _has_nothing(stranger, known)
            assert refused.status_code == 422, refused.text
            assert (await stranger.post(f"{own}/rehydrate", content=archive)).status_code == 200
        assert await house.kept() == before


async def _have_done(client: httpx2.AsyncClient, session: str, what: dict[str, str]) -> None:
    """Submit something and wait until it has ended, however."""
    assert (await client.post(f"{session}/submissions", json=what)).status_code == 202

    async def ended() -> bool:
        items = (await client.get(f"{session}/submissions")).json()["items"]
        return all(item["state"] not in {"queued", "claimed"} for item in items)

    await until(ended)


async def _has_nothing(client: httpx2.AsyncClient, known: dict[str, str]) -> None:
    """See that there is nothing of Ada's in any session of theirs, nor by way of one."""
    assert (await client.get(f"/api/media/{known['sha256']}")).status_code == 404
    for session in (await client.get("/api/sessions")).json()["items"]:
        assert session["owner"] == "mallory"
        for part in ("export", "events", "messages"):
            assert MARK not in (await client.get(f"/api/sessions/{session['id']}/{part}")).text


def _forged(archive: bytes) -> bytes:
    """Return the archive with real references in it, and an end that fits."""
    *lines, last = archive.replace(b"media+sha256:~//", b"media+sha256://").splitlines(keepends=True)
    assert b"".join(lines) != archive[: -len(last)]
    end = json.loads(last)
    end["end"]["sha256"] = hashlib.sha256(b"".join(lines)).hexdigest()
    return b"".join([*lines, json.dumps(end, separators=(",", ":")).encode(), b"\n"])


async def test_without_options_it_is_for_its_user_on_this_machine(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """It listens on loopback only and asks for the token that it printed; other users of the machine find no secret."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    mask = os.umask(0)
    try:
        with (tmp_path / "log").open("wb") as log:
            async with front(engine.url, APP, stderr=log) as server, server.client() as client:
                assert re.fullmatch(r"hf_[\w-]{43}", server.token)
                session = await client.create_session("agent")
                await client.submit(session["id"], "hello")
                async for event in client.stream(session["id"]):
                    if event["kind"] == "submission_done":
                        break
                front_process, *workers = _family(server.process.pid)
                assert workers
                listening = [
                    *_listening(front_process),
                    *(found for pid in workers for found in _listening(pid)),
                ]
                assert [str(found) for found in listening] == ["127.0.0.1"]
                async with httpx2.AsyncClient(base_url=server.url) as nobody:
                    assert (await nobody.get("/api/sessions")).status_code == 401
                    assert (await nobody.get("/", params={"token": server.token})).status_code == 303
                for pid in workers:  # any user can read how a process was started
                    assert engine.url not in Path(f"/proc/{pid}/cmdline").read_text()
                files = [file for file in tmp_path.rglob("*") if file.is_file()]
                assert not [file for file in files if server.token.encode() in file.read_bytes()]
                own = [file for file in files if file.name.startswith("store.db")]
                assert bool(own) == (engine.name == "sqlite")
                assert {file.stat().st_mode & 0o077 for file in own} <= {0}
    finally:
        os.umask(mask)


def _family(pid: int) -> Iterator[int]:
    """Yield a process and all that it has started."""
    yield pid
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        yield from _family(int(child))


def _listening(pid: int) -> Iterator[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    """Yield the addresses that a process listens on, as the system knows them."""
    opened = {str(entry.readlink()) for entry in Path(f"/proc/{pid}/fd").iterdir()}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *_, inode = line.split()[:10]
            if state == "0A" and f"socket:[{inode}]" in opened:
                words = [
                    bytes.fromhex(local.partition(":")[0][n : n + 8])[::-1]
                    for n in range(0, len(local) - 5, 8)
                ]
                yield ipaddress.ip_address(b"".join(words))


async def test_beyond_this_machine_nobody_comes_in_without_a_token(tmp_path: Path):
    """Without authentication it does not start there, however it is told; with it, the token is asked for there, too."""
    store = f"sqlite:///{tmp_path}/store.db"

    async def refused(*options: str, **settings: str) -> None:
        process = await start_forked(
            *(sys.executable, "-m", "holdfast", "serve", "--role", "api", "--port", "0", *options),
            cwd=tmp_path,
            env=os.environ | {"HOLDFAST_STORE": store, **settings},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await asyncio.wait_for(process.communicate(), 30)
        assert (process.returncode, out, b"only listens on loopback" in err) == (2, b"", True), (out, err)

    await asyncio.gather(
        refused("--no-auth", "--host", "0.0.0.0"),
        refused("--no-auth", "--host", ""),
        refused(HOLDFAST_AUTH="none", HOLDFAST_HOST="::"),
    )
    assert not [*tmp_path.iterdir()]
    async with front(store, "--role", "api", "--host", "0.0.0.0") as server:
        for token, status in ((new_token(), 401), (server.token, 200)):
            headers = {"host": "localhost", "authorization": f"Bearer {token}"}
            async with httpx2.AsyncClient(base_url=server.url, headers=headers) as client:
                assert (await client.get("/api/sessions")).status_code == status
