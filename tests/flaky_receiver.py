"""A receiver of webhooks that fails now and then, and what it must have received."""

import asyncio
import json
import random
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from typing import Any

from standardwebhooks import Webhook

from holdfast.types import TURNS, Event, Submission

_MOST_REFUSALS = 1


class FlakyReceiver:
    """A receiver that verifies each request, and answers a third of them with an error, or not at all."""

    def __init__(self, secret: str) -> None:
        self.answers: Counter[str] = Counter()
        self.arrived: dict[str, dict[str, Any]] = {}
        """The accepted notices, by their ids, in the order in which they were first accepted."""
        self._refused: Counter[str] = Counter()
        self._webhook = Webhook(secret)
        self.port = 0

    @asynccontextmanager
    async def listening(self) -> "AsyncGenerator[FlakyReceiver, None]":
        server = await asyncio.start_server(self._handle, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        async with server:
            yield self

    def notices(self) -> dict[str, list[tuple[str, int]]]:
        """Return the type and the event of each accepted notice about a session, in the order in which they arrived, by session."""
        arrived: defaultdict[str, list[tuple[str, int]]] = defaultdict(list)
        for notice in self.arrived.values():
            if notice["type"] != "worker.lost":
                arrived[notice["data"]["session_id"]].append((notice["type"], notice["data"]["event"]))
        return arrived

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")[1:-2]
            headers = {
                name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head)
            }
            body = await reader.readexactly(int(headers["content-length"]))
            notice = self._webhook.verify(body, headers)
            answer = random.choices(("204 No Content", "500 Oops", ""), (4, 1, 1))[0]
            if self._refused[headers["webhook-id"]] == _MOST_REFUSALS:
                answer = "204 No Content"  # otherwise the sender may wait for an hour
            self._refused[headers["webhook-id"]] += not answer.startswith("204")
            self.answers[answer] += 1
            if answer:
                writer.write(f"HTTP/1.1 {answer}\r\ncontent-length: 0\r\n\r\n".encode())
                await writer.drain()
            if answer.startswith("204"):
                self.arrived.setdefault(headers["webhook-id"], notice)
        except (OSError, asyncio.IncompleteReadError):
            self.answers["cut off"] += 1  # the sender was killed
        finally:
            writer.close()


def notices_of(events: Iterable[Event], submissions: Iterable[Submission]) -> list[tuple[str, int]]:
    """Return the type and the event of each notice that a journal demands, in order."""
    turns = {each.id for each in submissions if each.kind in TURNS}
    wanted: list[tuple[str, int]] = []
    for event in events:
        payload = json.loads(event.payload)
        is_turn = event.kind.startswith("submission_") and payload["submission_id"] in turns
        if event.kind in {"approval_requested", "approval_reminder"}:
            wanted.append(("session.waiting", event.seq))
        elif event.kind == "run_waiting" and any(wait.get("budget") for wait in payload["waits"]):
            wanted.append(("session.budget_reached", event.seq))
        elif event.kind == "submission_done" and is_turn:
            wanted.append(("session.done", event.seq))
        elif event.kind == "submission_failed" and is_turn:
            given_up = payload["state"] == "dead"
            wanted.append(("session.given_up" if given_up else "session.failed", event.seq))
    return wanted
