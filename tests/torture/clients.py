"""The clients: some submit until they are answered, some stream and come back whenever the stream breaks, one approves.

They are honest: what was not answered is not counted as accepted, and is sent again under the same key.
"""

import asyncio
import hashlib
import json
import random
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2

from tests.raw_client import AsyncClient, ServerError, ServerUnavailable
from tests.torture.app import POLICIES, call_id

_ANSWER_SECONDS = 6.0
_SILENCE_SECONDS = 5.0


@dataclass
class Sent:
    """One submission: what was asked, and what was answered."""

    session_id: str
    key: str
    plan: list[list[tuple[str, float]]]
    submission_id: str | None = None
    tries: int = 0
    deliver_at: datetime | None = None

    @property
    def text(self) -> str:
        return f"{self.key} {json.dumps(self.plan)}"


@dataclass
class Fork:
    """One fork that was asked for, and the answer."""

    session_id: str
    key: str
    submission_id: str | None = None


@dataclass
class Tally:
    """What clients have met on the way."""

    answers: Counter[int] = field(default_factory=Counter[int])
    unreachable: int = 0
    reconnects: int = 0
    duplicates_sent: int = 0
    approvals: int = 0
    interrupts: int = 0
    signals: int = 0
    budgets: int = 0
    retries: Counter[str] = field(default_factory=Counter[str])
    wrong: list[str] = field(default_factory=list[str])
    """Answers that no fault excuses."""


def new_plan(chance: random.Random) -> list[list[tuple[str, float]]]:
    """Choose what a turn does: some steps, of one call or several at once, some of them slow."""
    steps: list[list[tuple[str, float]]] = []
    for _ in range(chance.choice([0, 1, 1, 2, 2, 3])):
        calls: list[tuple[str, float]] = []
        for _ in range(chance.choice([1, 1, 2, 3])):
            (tool,) = chance.choices(list(POLICIES), [34, 4, 18, 8, 17, 9, 10, 8, 5, 5])
            most = 0.1 if tool == "stall" else chance.choice([0, 0.05, 0.3, 1.2])
            calls.append((tool, round(chance.uniform(0, most), 3)))
        steps.append(calls)
    return steps


class Clients:
    """Everybody who talks to the fronts, and what they know."""

    def __init__(self, seed: int, urls: Sequence[str], token: str, sessions: Sequence[str]) -> None:
        self.tally = Tally()
        self.sent: list[Sent] = []
        self.forks: list[Fork] = []
        self.readers = [Reader(self, session, random.Random(f"{seed} {session}")) for session in sessions]
        self.urls = urls
        self.open = 0
        """How many submissions were accepted and have not been seen to end."""
        self.stopping = asyncio.Event()
        self.interrupted: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        """The sessions and ids of turns that were seen to be interrupted."""
        self.signalling: set[asyncio.Task[None]] = set()
        self._token = token
        self._chance = random.Random(f"clients {seed}")
        self._fronts = [AsyncClient(url, token, timeout=_ANSWER_SECONDS) for url in urls]
        limits = httpx2.Limits(max_connections=None)
        headers = {"authorization": f"Bearer {token}", "accept": "text/event-stream"}
        self.streams = httpx2.AsyncClient(headers=headers, limits=limits)

    async def close(self) -> None:
        for each in self._fronts:
            await each.__aexit__(None, None, None)
        await self.streams.aclose()

    async def create(self, *, budgets: bool = False) -> None:
        """Create the sessions, a third of them with an agent whose model streams, and a third with one that has no model.

        With `budgets`, a quarter of them have one that is soon used up.
        """
        for number, reader in enumerate(self.readers):
            agent = ("plain", "talker", "function")[number % 3]
            await self._until_answered("POST", "/api/sessions", {"agent": agent, "id": reader.session_id})
            if budgets and number % 4 == 0:
                await self._set_budget(reader.session_id, self._chance.randint(0, 3))

    async def _set_budget(self, session_id: str, requests: int) -> None:
        await self._until_answered(
            "PUT", "/api/budgets", {"per": "session", "name": session_id, "requests": requests}
        )
        self.tally.budgets += 1

    async def raise_budgets(self) -> None:
        """Raise the budgets that sessions wait for, a little each time."""
        while True:
            await asyncio.sleep(0.5)
            with suppress(ServerUnavailable, ServerError):
                front = self._chance.choice(self._fronts)
                asleep = (await front.sessions(status="sleeping", limit=100))["items"]
                for session_id in (s["id"] for s in asleep if "budget of" in (s["waiting_for"] or "")):
                    query = f"/api/budgets?per=session&name={session_id}"
                    (budget,) = (await front.request("GET", query))["items"]
                    await self._set_budget(
                        session_id, budget["used"]["requests"] + self._chance.randint(1, 4)
                    )

    async def submit(self, *, at_most_open: int) -> None:
        """Submit to one session after the other, as long as not too much is open."""
        while not self.stopping.is_set():
            if self.open >= at_most_open:
                await asyncio.sleep(0.05)
                continue
            session = self._chance.choice(self.readers).session_id
            sent = Sent(session, f"k{len(self.sent)}", new_plan(self._chance))
            if self._chance.random() < 0.1:
                sent.deliver_at = datetime.now(UTC) + timedelta(seconds=self._chance.uniform(0.5, 4))
            self.sent.append(sent)
            self.open += 1
            await self._send(sent)
            for number, calls in enumerate(sent.plan):
                for place, (tool, _) in enumerate(calls):
                    if tool == "hear":
                        signalling = self._signal(session, call_id(sent.key, number, place))
                        self.signalling.add(asyncio.create_task(signalling))
            if self._chance.random() < 0.05:
                await self._fork(session)
            await asyncio.sleep(self._chance.uniform(0, 0.2))

    async def _send(self, sent: Sent) -> None:
        at = {} if sent.deliver_at is None else {"deliver_at": sent.deliver_at.isoformat()}
        body = {"text": sent.text, "idempotency_key": sent.key, **at}
        path = f"/api/sessions/{sent.session_id}/submissions"
        answer = await self._until_answered("POST", path, body, sent)
        sent.submission_id = answer["submission_id"]
        if self._chance.random() < 0.1:  # somebody presses the button twice
            self.tally.duplicates_sent += 1
            second = await self._until_answered("POST", path, body)
            if second["submission_id"] != sent.submission_id:
                self.tally.wrong.append(
                    f"{sent.key} was accepted twice, as {sent.submission_id} and {second}"
                )

    async def _signal(self, session_id: str, name: str) -> None:
        """Send a signal, before or after its session waits for it; now and then twice."""
        path, body = f"/api/sessions/{session_id}/signals/{name}", {"data": name, "idempotency_key": name}
        await asyncio.sleep(self._chance.uniform(0, 2))
        for _ in range(self._chance.choice([1, 1, 2])):
            await self._until_answered("POST", path, body)
        self.tally.signals += 1

    async def _fork(self, session_id: str) -> None:
        fork = Fork(session_id, f"f{len(self.forks)}")
        self.forks.append(fork)
        body = {"kind": "fork", "idempotency_key": fork.key}
        answer = await self._until_answered("POST", f"/api/sessions/{session_id}/submissions", body)
        fork.submission_id = answer["submission_id"]

    async def _until_answered(
        self, method: str, path: str, body: dict[str, Any], sent: Sent | None = None
    ) -> dict[str, Any]:
        pause = 0.1
        while True:
            if sent is not None:
                sent.tries += 1
            try:
                answer = await self._chance.choice(self._fronts).request(method, path, json=body)
            except ServerUnavailable:
                self.tally.unreachable += 1
            except ServerError as error:
                status = int(str(error.facts["status"]))
                self.tally.answers[status] += 1
                if error.facts["code"] == "session_exists":
                    return {}
                if status not in {429, 503}:
                    self.tally.wrong.append(f"{method} {path}: {error}")
            else:
                self.tally.answers[200] += 1
                return answer
            await asyncio.sleep(self._chance.uniform(pause / 2, pause))
            pause = min(2 * pause, 1.5)

    async def approve(self) -> None:
        """Say yes to whatever is asked, again and again: an answer may get lost, and a second one does no harm."""
        while True:
            with suppress(ServerUnavailable, ServerError):
                front = self._chance.choice(self._fronts)
                for waiting in (await front.sessions(status="waiting", limit=100))["items"]:
                    session = await front.session(waiting["id"])
                    for call in session["approvals"]:
                        await front.approve(session["id"], call)
                        self.tally.approvals += 1
            await asyncio.sleep(0.5)

    async def interrupt(self) -> None:
        """Interrupt a turn now and then."""
        while not self.stopping.is_set():
            await asyncio.sleep(self._chance.uniform(0.2, 1.0))
            with suppress(ServerUnavailable, ServerError):
                front = self._chance.choice(self._fronts)
                status = self._chance.choice(["running", "running", "sleeping"])
                running = (await front.sessions(status=status, limit=20))["items"]
                if running:
                    session_id = self._chance.choice(running)["id"]
                    await front.request("POST", f"/api/sessions/{session_id}/interrupt")
                    self.tally.interrupts += 1

    async def retry(self) -> None:
        """Retry turns that were interrupted: two people press the button at once. What is refused stays as it is."""
        while True:
            session_id, submission_id = await self.interrupted.get()
            await asyncio.gather(*(self._retry(session_id, submission_id) for _ in range(2)))

    async def _retry(self, session_id: str, submission_id: str) -> None:
        path, body = f"/api/sessions/{session_id}/retry", {"submission_id": submission_id}
        while True:
            try:
                await self._chance.choice(self._fronts).request("POST", path, json=body)
            except ServerUnavailable:
                self.tally.unreachable += 1
            except ServerError as error:
                code = str(error.facts["code"])
                if code == "turn_not_retriable":
                    self.tally.retries["refused"] += 1
                    return
                if int(str(error.facts["status"])) not in {429, 503}:
                    self.tally.wrong.append(f"POST {path}: {error}")
                    return
            else:
                self.tally.retries["accepted"] += 1
                return
            await asyncio.sleep(self._chance.uniform(0.1, 0.5))


class Reader:
    """Follows one session over all fronts, and checks that every number comes once, in order."""

    def __init__(self, clients: Clients, session_id: str, chance: random.Random) -> None:
        self.session_id = session_id
        self.seen: list[tuple[int, str]] = []
        """The number and the digest of every event, as it came."""
        self.gaps: list[str] = []
        self.duplicates: list[str] = []
        self.last = 0
        self._open: set[str] = set()  # messages that were seen to be queued and not to end
        self._clients = clients
        self._chance = chance

    async def read(self) -> None:
        tally = self._clients.tally
        pause = 0.1
        while True:
            url = self._chance.choice(self._clients.urls)
            left = self._chance.randint(10, 300)
            try:
                async with self._clients.streams.stream(
                    "GET",
                    f"{url}/api/sessions/{self.session_id}/events",
                    headers={"last-event-id": str(self.last)},
                    timeout=httpx2.Timeout(_SILENCE_SECONDS),
                ) as response:
                    tally.answers[response.status_code] += 1
                    if response.status_code == 200:
                        pause = 0.1
                        async for number, kind, data in _blocks(response):
                            self._take(number, kind, data)
                            left -= 1
                            if left <= 0:
                                break
                    elif response.status_code != 503:
                        said = (await response.aread())[:200]
                        tally.wrong.append(f"stream of {self.session_id}: {response.status_code} {said!r}")
            except (httpx2.TransportError, httpx2.StreamError):
                tally.unreachable += 1
            tally.reconnects += 1
            await asyncio.sleep(self._chance.uniform(pause / 2, pause))
            pause = min(2 * pause, 5)

    def _take(self, number: int | None, kind: str, data: bytes) -> None:
        if number is None:  # a draft, or the end of the stream
            return
        if number <= self.last:
            self.duplicates.append(f"{self.session_id}: {number} after {self.last}")
            return
        if number != self.last + 1:
            self.gaps.append(f"{self.session_id}: {number} after {self.last}")
        event = json.loads(data)
        if (event["seq"], event["kind"]) != (number, kind):
            self._clients.tally.wrong.append(f"{self.session_id}: id {number} {kind} with {data[:100]!r}")
        self.last = number
        self.seen.append((number, digest(data)))
        if kind == "submission_queued" and event["payload"]["kind"] == "message":
            self._open.add(event["payload"]["submission_id"])
        elif kind in {"submission_done", "submission_failed"}:
            submission_id = event["payload"]["submission_id"]
            if submission_id in self._open:
                self._open.remove(submission_id)
                self._clients.open -= 1
            if event["payload"].get("reason") == "interrupted":
                self._clients.interrupted.put_nowait((self.session_id, submission_id))


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


async def _blocks(response: httpx2.Response) -> AsyncGenerator[tuple[int | None, str, bytes], None]:
    """Yield the blocks of an event stream. What was cut off in the middle of one was never said."""
    waiting = b""
    async for piece in response.aiter_bytes():
        waiting += piece
        while b"\n\n" in waiting:
            block, _, waiting = waiting.partition(b"\n\n")
            number, kind, data = None, "", list[bytes]()
            for line in block.split(b"\n"):
                name, _, value = line.partition(b": ")
                if name == b"id":
                    number = int(value)
                elif name == b"event":
                    kind = value.decode()
                elif name == b"data":
                    data.append(value)
            if data:
                yield number, kind, b"\n".join(data)
