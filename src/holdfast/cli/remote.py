"""Sessions of a server, as the commands know those of a store: what `--url` talks to instead of `--store`."""

import json
from collections.abc import AsyncGenerator
from datetime import datetime
from types import TracebackType
from typing import Any, Self

from holdfast.client import AsyncClient, ServerError
from holdfast.errors import SessionExists
from holdfast.types import (
    Event,
    Json,
    Lane,
    Page,
    Session,
    Submission,
    WhenBusy,
)


class Remote:
    """The sessions of one server."""

    def __init__(self, url: str, token: str | None) -> None:
        self.client = AsyncClient(url, token)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.client.__aexit__(kind, error, trace)

    async def create_session(self, *, agent: str, owner: str, id: str) -> Session:
        """Create a session of the token's owner. Raises `SessionExists`."""
        del owner
        try:
            return _session(await self.client.create_session(agent, id=id))
        except ServerError as error:
            if error.facts["code"] == "session_exists":
                raise SessionExists(id=id) from error
            raise

    async def asked(self, session_id: str) -> list[dict[str, Any]]:
        """Return what a session asks a person now."""
        return (await self.client.session(session_id))["asked"]

    async def problem(self, session_id: str) -> str | None:
        """Return why no worker continues a session; None if one does or nothing waits."""
        return (await self.client.session(session_id))["problem"]

    async def session(self, session_id: str) -> Session:
        """Return one session."""
        return _session(await self.client.session(session_id))

    async def sessions(self, **filters: Any) -> Page[Session]:
        """List sessions."""
        given = {name: value for name, value in filters.items() if value is not None}
        page = await self.client.sessions(**given)
        return Page(items=[_session(item) for item in page["items"]], next_cursor=page["next_cursor"])

    async def submit(
        self,
        session_id: str,
        kind: str,
        payload: Json = "{}",
        *,
        lane: Lane = "main",
        when_busy: WhenBusy = "queue",
        idempotency_key: str | None = None,
    ) -> Submission:
        """Ask something of a session."""
        del lane  # the server knows
        body: dict[str, Any] = json.loads(payload)
        path = {"interrupt": "interrupt", "approval": "approvals"}.get(kind)
        if path is not None:
            answer = await self.client.request(
                "POST", f"/api/sessions/{session_id}/{path}", json=body or None
            )
        else:
            given = {"kind": kind, "when_busy": when_busy, "idempotency_key": idempotency_key, **body}
            answer = await self.client.submit(session_id, **given)
        return _submission(answer)

    async def submissions(self, session_id: str, **filters: Any) -> Page[Submission]:
        """List what was asked of a session."""
        given = {name: value for name, value in filters.items() if value is not None}
        page = await self.client.request("GET", f"/api/sessions/{session_id}/submissions", params=given)
        return Page(items=[_submission(item) for item in page["items"]], next_cursor=page["next_cursor"])

    async def events(self, session_id: str, *, after: int = 0, limit: int = 500) -> list[Event]:
        """Return a page of events."""
        where = {"after": after, "limit": limit}
        page = await self.client.request("GET", f"/api/sessions/{session_id}/events", params=where)
        return [_event(session_id, item) for item in page["items"]]

    async def watch(self, session_id: str, *, after: int = 0) -> AsyncGenerator[Event, None]:
        """Yield every event, past and future, whatever breaks on the way."""
        async for item in self.client.stream(session_id, after=after):
            yield _event(session_id, item)


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def _session(given: dict[str, Any]) -> Session:
    facts: dict[str, Any] = {name: given[name] for name in Session.__slots__ if name in given}
    for name in ("held_until", "created_at", "active_at", "cleaned_at"):
        facts[name] = _time(given[name])
    facts["epoch"], facts["metadata"] = 0, json.dumps(given["metadata"])
    return Session(**facts)


def _submission(given: dict[str, Any]) -> Submission:
    facts: dict[str, Any] = {name: given[name] for name in Submission.__slots__ if name in given}
    for name in ("created_at", "started_at", "ended_at"):
        facts[name] = _time(given[name])
    facts["id"], facts["payload"] = given["submission_id"], "{}"
    return Submission(**facts)


def _event(session_id: str, given: dict[str, Any]) -> Event:
    message = given.get("message")
    return Event(
        session_id=session_id,
        seq=given["seq"],
        kind=given["kind"],
        run_id=given["run_id"],
        step=given["step"],
        at=datetime.fromisoformat(given["at"]),
        payload=json.dumps(given["payload"]),
        message=None if message is None else json.dumps(message),
    )
