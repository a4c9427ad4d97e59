"""The sessions of an API server, with the methods of a store that the commands use. `--url` selects it."""

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import fields
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar
from urllib.parse import quote

from holdfast.client.http import HttpTransport, new_http
from holdfast.types import (
    AuditEntry,
    Checkpoint,
    Credential,
    Effect,
    Event,
    Holder,
    Json,
    Lane,
    Page,
    Run,
    Session,
    Submission,
    WhenBusy,
)

if TYPE_CHECKING:
    from holdfast.api.models import Inbox

T = TypeVar("T")
_TIMES = {"at", "held_until", "deadline"}


class Remote:
    """The sessions of one server."""

    def __init__(self, url: str, token: str | None) -> None:
        self._http = new_http(url, token)
        self._transport = HttpTransport(self._http)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        del kind, error, trace
        await self._http.aclose()

    async def _call(self, method: str, path: str, **options: Any) -> Any:
        text = await self._transport.send(method, path, **options)
        return json.loads(text) if text else None

    async def create_session(self, *, agent: str, owner: str, id: str) -> Session:
        """Create a session of the token's owner. Raises `SessionExists`."""
        del owner
        return _session(await self._call("POST", "/api/sessions", json={"agent": agent, "id": id}))

    async def pending_approvals(self, session_id: str) -> list[dict[str, Any]]:
        """Return what a session asks a person now."""
        return (await self._call("GET", f"/api/sessions/{session_id}"))["approvals"]

    async def conversation(self, session_id: str) -> AsyncGenerator[dict[str, Any], None]:
        """Yield the conversation in a session of another framework."""
        cursor: str | None = None
        while True:
            params = _given({"cursor": cursor})
            page = await self._call("GET", f"/api/sessions/{session_id}/conversation", params=params)
            for entry in page["items"]:
                yield entry
            cursor = page["next_cursor"]
            if cursor is None:
                return

    async def problem(self, session_id: str) -> str | None:
        """Return why no worker continues a session; None if one does or nothing waits."""
        return (await self._call("GET", f"/api/sessions/{session_id}"))["problem"]

    async def session(self, session_id: str) -> Session:
        """Return one session."""
        return _session(await self._call("GET", f"/api/sessions/{session_id}"))

    async def sessions(self, **filters: Any) -> Page[Session]:
        """List sessions."""
        page = await self._call("GET", "/api/sessions", params=_given(filters))
        return Page(items=[_session(item) for item in page["items"]], next_cursor=page["next_cursor"])

    async def dismiss(self, session_id: str) -> Session:
        """Dismiss the failure of the last turn."""
        return _session(await self._call("POST", f"/api/sessions/{session_id}/dismiss"))

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
            answer = await self._call("POST", f"/api/sessions/{session_id}/{path}", json=body or None)
        else:
            given = {"kind": kind, "when_busy": when_busy, "idempotency_key": idempotency_key, **body}
            path = f"/api/sessions/{session_id}/submissions"
            answer = await self._call("POST", path, json=_given(given))
        return _submission(answer)

    async def submissions(self, session_id: str, **filters: Any) -> Page[Submission]:
        """List the submissions of a session."""
        path = f"/api/sessions/{session_id}/submissions"
        page = await self._call("GET", path, params=_given(filters))
        return Page(items=[_submission(item) for item in page["items"]], next_cursor=page["next_cursor"])

    async def events(
        self, session_id: str, *, after: int = 0, run_id: str | None = None, limit: int = 500
    ) -> list[Event]:
        """Return a page of events, of the session or of one of its runs."""
        where = {"after": after, "limit": limit}
        path = f"/api/sessions/{session_id}/events" if run_id is None else f"/api/runs/{run_id}/events"
        page = await self._call("GET", path, params=where)
        return [_event(session_id, item) for item in page["items"]]

    async def run(self, run_id: str) -> Run:
        """Return one run."""
        return _run(await self._call("GET", f"/api/runs/{run_id}"))

    async def runs(
        self, *, session_id: str | None = None, parent_id: str | None = None, **filters: Any
    ) -> Page[Run]:
        """List the runs of a session, or the delegates of a run, in the order in which they began."""
        path = f"/api/sessions/{session_id}/runs" if parent_id is None else f"/api/runs/{parent_id}/runs"
        page = await self._call("GET", path, params=_given(filters))
        return Page(items=[_run(item) for item in page["items"]], next_cursor=page["next_cursor"])

    async def find_runs(self, **filters: Any) -> Page[Run]:
        """List the runs of all sessions of the token's owner, newest first."""
        page = await self._call("GET", "/api/runs", params=_given(filters))
        return Page(items=[_run(item) for item in page["items"]], next_cursor=page["next_cursor"])

    async def checkpoints(self, *, run_id: str, **filters: Any) -> Page[Checkpoint]:
        """List the checkpoints of a run, newest first."""
        path = f"/api/runs/{run_id}/checkpoints"
        return _page(Checkpoint, await self._call("GET", path, params=_given(filters)), segment=0)

    async def effects(self, session_id: str, *, run_id: str, **filters: Any) -> Page[Effect]:
        """List the tool calls of a run."""
        del session_id
        page = await self._call("GET", f"/api/runs/{run_id}/effects", params=_given(filters))
        return Page(items=[_effect(item) for item in page["items"]], next_cursor=page["next_cursor"])

    async def settle(self, run_id: str, call_id: str, *, result: Any, error: str | None) -> Effect:
        """Record the outcome of a tool call."""
        body = {"result": result} if error is None else {"error": error}
        path = f"/api/runs/{run_id}/effects/{quote(call_id, safe='')}"
        return _effect(await self._call("POST", path, json=body))

    async def credentials(self, session_id: str) -> list[Credential]:
        """Return the credentials of a session, without their values."""
        page = await self._call("GET", f"/api/sessions/{session_id}/credentials")
        return [_noun(Credential, item, sealed="") for item in page["items"]]

    async def set_credential(self, session_id: str, name: str, value: str, *, ttl: float | None) -> None:
        """Store a credential."""
        body = _given({"value": value, "ttl": ttl})
        await self._call("PUT", f"/api/sessions/{session_id}/credentials/{name}", json=body)

    async def delete_credential(self, session_id: str, name: str) -> None:
        """Delete a credential."""
        await self._call("DELETE", f"/api/sessions/{session_id}/credentials/{name}")

    async def media(self, sha256: str) -> bytes:
        """Return the content with this SHA-256."""
        return await self._transport.media(sha256)

    async def archive_of(self, session_id: str) -> str | None:
        """Return the SHA-256 of the archive of a cleaned session in the media store."""
        return (await self.retention(session_id))["archive"]

    def archive(self, session_id: str, *, gzip: bool = False) -> AsyncGenerator[bytes, None]:
        """Yield the archive of a session. Raises `ArchiveFailed` if it is cut off."""
        return self._transport.archive(session_id, gzip=gzip)

    async def clean(self, session_id: str, **how: Any) -> dict[str, Any]:
        """Delete the content of a session."""
        return await self._call("POST", f"/api/sessions/{session_id}/clean", json=how, is_long=True)

    async def rehydrate(
        self, session_id: str, archive: Path | None = None, *, force: bool = False
    ) -> dict[str, Any]:
        """Restore a cleaned session from an archive file, or from the archive in the media store."""
        restored = await self._transport.rehydrate(session_id, archive, force=force)
        return restored.model_dump()

    async def erase(self, session_id: str, *, children: bool = False) -> dict[str, Any]:
        """Erase a session for good."""
        params = {"children": children}
        return await self._call("DELETE", f"/api/sessions/{session_id}", params=params, is_long=True)

    async def hold(self, session_id: str, on: bool) -> None:
        """Put a session on hold, or release it."""
        await self._call("PATCH", f"/api/sessions/{session_id}", json={"hold": on})

    async def retention(self, session_id: str) -> dict[str, Any]:
        """Return the retention status of a session."""
        return await self._call("GET", f"/api/sessions/{session_id}/retention")

    async def sweep(self, **how: Any) -> dict[str, Any]:
        """Apply the retention policies."""
        return await self._call("POST", "/api/retention/sweep", json=how, is_long=True)

    async def inbox(self) -> "Inbox":
        """Return the sessions that wait for a person."""
        from holdfast.api.models import Inbox

        return await self._transport.call(Inbox, "GET", "/api/inbox")

    async def holders(self) -> list[Holder]:
        """Return all holders."""
        page = await self._call("GET", "/api/workers")
        return [_noun(Holder, item, ttl=0.0) for item in page["items"]]

    async def audit_log(self, **filters: Any) -> Page[AuditEntry]:
        """List the audit, newest first."""
        page = await self._call("GET", "/api/audit", params=_given(filters))
        items = [_noun(AuditEntry, item, detail=json.dumps(item["detail"])) for item in page["items"]]
        return Page(items=items, next_cursor=page["next_cursor"])

    async def watch(self, session_id: str, *, after: int = 0) -> AsyncGenerator[Event, None]:
        """Yield every event, past and future, and reconnect after errors."""
        path = f"/api/sessions/{session_id}/events"
        async with aclosing(self._transport.stream(path, after=after)) as blocks:
            async for kind, item in blocks:
                if kind != "draft":
                    yield _event(session_id, item)


def _noun(kind: type[T], given: Mapping[str, Any], **more: Any) -> T:
    """Return what the server sent as one of our types. JSON content is text there, and times are times."""
    values: dict[str, Any] = dict(more)
    for field in fields(kind):  # pyright: ignore[reportArgumentType]
        if field.name in given and field.name not in more:
            value = given[field.name]
            is_time = field.name.endswith("_at") or field.name in _TIMES
            values[field.name] = datetime.fromisoformat(value) if is_time and value is not None else value
    return kind(**values)


def _page(kind: type[T], page: Mapping[str, Any], **more: Any) -> Page[T]:
    items = [_noun(kind, item, **more) for item in page["items"]]
    return Page(items=items, next_cursor=page["next_cursor"])


def _session(given: dict[str, Any]) -> Session:
    return _noun(Session, given, epoch=0, metadata=json.dumps(given["metadata"]))


def _submission(given: dict[str, Any]) -> Submission:
    return _noun(Submission, given, id=given["submission_id"], payload="{}")


def _run(given: dict[str, Any]) -> Run:
    return _noun(Run, given, metadata=json.dumps(given["metadata"]))


def _effect(given: dict[str, Any]) -> Effect:
    result = given["result"]
    return _noun(Effect, given, result=None if result is None else json.dumps(result))


def _given(filters: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in filters.items() if value is not None}


def _event(session_id: str, given: dict[str, Any]) -> Event:
    message = given.get("message")
    text = None if message is None else json.dumps(message)
    return _noun(Event, given, session_id=session_id, payload=json.dumps(given["payload"]), message=text)
