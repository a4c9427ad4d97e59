"""Sessions of Google ADK in a Holdfast store.

An ADK session is one Holdfast session with these records:

- `event`: one event, with a numbered key.
- `session`: the session's own state, and the revision and the time of the last event.
- `created`: the key that stands for the write that created it.

The state of each user and of each app is in a Holdfast session of its own. An event and its changes to these states are stored together or not
at all, although they are separate writes: `holdfast.frameworks.adk_state` describes how. `temp:` state is never stored.
"""

import asyncio
import copy
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from holdfast.errors import SessionCleaned
from holdfast.frameworks.adk_state import Change, SharedState
from holdfast.frameworks.bodies import from_body, to_body
from holdfast.frameworks.framework_store import FrameworkStore, RecordWriter, check_version
from holdfast.ids import new_id
from holdfast.store import Store
from holdfast.types import Record

check_version("google-adk", extra="adk", at_least=(2, 13), below=(2, 14))

from google.adk.errors import StaleSessionError  # noqa: E402 - after the check
from google.adk.errors.already_exists_error import AlreadyExistsError  # noqa: E402
from google.adk.errors.session_not_found_error import SessionNotFoundError  # noqa: E402
from google.adk.events import Event  # noqa: E402
from google.adk.platform import time as platform_time  # noqa: E402
from google.adk.platform import uuid as platform_uuid  # noqa: E402
from google.adk.sessions import BaseSessionService, Session, State  # noqa: E402
from google.adk.sessions._session_util import extract_json_safe_state_delta  # noqa: E402
from google.adk.sessions.base_session_service import GetSessionConfig, ListSessionsResponse  # noqa: E402

T = TypeVar("T")
R = TypeVar("R")
_EVENT, _SESSION, _CREATED = "event", "session", "created"
_REVISION, _STATE = "revision", "state"
"""The keys of the records of kind `session`. The revision is read first: if the state is newer, the session is stale."""
_STALE: Final = (
    "The session has been modified in storage since it was loaded. Reload it before you append more events."
)
_AT_ONCE: Final = 8
"""How many sessions are read at the same time."""


@dataclass(frozen=True, slots=True)
class _Name:
    """The name of a session in ADK. The names in the store are JSON, so that no two of them can be equal."""

    app: str
    user: str
    id: str

    @property
    def stored(self) -> str:
        return json.dumps(["session", self.app, self.user, self.id])


@dataclass(frozen=True, slots=True)
class _Head:
    """The facts of a session that change with each event. The revision is the key of the last event."""

    revision: str
    time: float
    state: dict[str, Any]


class HoldfastSessionService(BaseSessionService):
    """A `BaseSessionService` of Google ADK, with all of its optional methods. Any thread and any event loop can use it.

    `store` is a URL, the path of a SQLite file, or an open store.
    """

    def __init__(self, store: str | Path | Store, *, owner: str = "local") -> None:
        self._store = FrameworkStore(store, framework="adk", owner=owner)

    async def close(self) -> None:
        """Disconnect. The sessions stay in the store."""
        await asyncio.to_thread(self._store.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def create_session(
        self,
        *,
        app_name: str,
        user_id: str,
        state: dict[str, Any] | None = None,
        session_id: str | None = None,
    ) -> Session:
        """Create a session, with a new id if none is given. Raises `AlreadyExistsError`."""
        name = _Name(app_name, user_id, platform_uuid.new_uuid() if session_id is None else session_id)
        deltas = extract_json_safe_state_delta(state or {})
        return await self._store.call(self._create(name, deltas, platform_time.get_time()))

    async def get_session(
        self, *, app_name: str, user_id: str, session_id: str, config: GetSessionConfig | None = None
    ) -> Session | None:
        """Return a session with the events that the config selects; None if there is none. Raises `SessionCleaned`."""
        name = _Name(app_name, user_id, session_id)
        return await self._store.call(self._get(name, config or GetSessionConfig()))

    async def list_sessions(self, *, app_name: str, user_id: str | None = None) -> ListSessionsResponse:
        """List the sessions of a user, or of all users, without their events. The last one was updated last."""
        return ListSessionsResponse(sessions=await self._store.call(self._list(app_name, user_id)))

    async def delete_session(self, *, app_name: str, user_id: str, session_id: str) -> None:
        """Erase a session. The states of the user and of the app stay. Raises `RetentionRefused` if the session is on hold."""
        await self._store.call(self._delete(_Name(app_name, user_id, session_id)))

    async def get_user_state(self, *, app_name: str, user_id: str) -> dict[str, Any]:
        """Return the state that the sessions of a user share, without the prefix `user:`."""
        return await self._store.call(self._user(app_name, user_id).read())

    async def append_event(self, session: Session, event: Event) -> Event:
        """Store an event with its changes of the state. Both are durable when this returns. A partial event is not stored.

        Raises `StaleSessionError` if the stored session has events that this one does not have, and `SessionNotFoundError`. An event that is
        appended again, unchanged, is stored once.
        """
        if event.partial:
            return event
        is_known = any(known.id == event.id for known in session.events)
        if is_known and await self._store.call(self._has(session, _dumped(event))):
            return event
        self._apply_temp_state(session, event)
        event = self._trim_temp_delta_state(event)
        deltas = extract_json_safe_state_delta(event.actions.state_delta)
        await self._store.call(self._append(session, event.timestamp, deltas, _dumped(event)))
        return self._commit_event_to_session(session, event)

    # On the event loop of the store

    def _user(self, app: str, user: str) -> SharedState:
        name, title = json.dumps(["user", app, user]), f"State of user {user} of {app}"
        return SharedState(self._store, name, title=title, scope="user")

    def _app(self, app: str) -> SharedState:
        name, title = json.dumps(["app", app]), f"State of app {app}"
        return SharedState(self._store, name, title=title, scope="app")

    async def _create(self, name: _Name, deltas: dict[str, dict[str, Any]], time: float) -> Session:
        facts = {"scope": "session", "app": name.app, "user": name.user}
        stored = await self._store.ensure(name.stored, title=name.id, metadata=facts)
        async with self._store.writing(stored.id) as writer:
            if await self._head(stored.id, writer) is not None:
                raise AlreadyExistsError(f"Session with id {name.id} already exists.")
            head = _Head(revision=_key(0), time=time, state=deltas["session"])
            await self._write(
                writer, name, deltas, head, Record(kind=_CREATED, key=head.revision, body="null")
            )
        return _session(name, head, *await self._shared(name))

    async def _append(
        self, session: Session, time: float, deltas: dict[str, dict[str, Any]], dumped: dict[str, Any]
    ) -> None:
        name = _Name(session.app_name, session.user_id, session.id)
        stored_id = await self._store.find_id(name.stored)
        if stored_id is None:
            raise SessionNotFoundError(f"Session {session.id} not found.")
        async with self._store.writing(stored_id) as writer:
            head = await self._head(stored_id, writer)
            if head is None:
                raise SessionNotFoundError(f"Session {session.id} not found.")
            if await self._is_stale(stored_id, head, session):
                raise StaleSessionError(_STALE)
            record = Record(kind=_EVENT, key=_key(_number(head.revision) + 1), body=to_body(dumped))
            state = {**head.state, **deltas["session"]}
            await self._write(writer, name, deltas, _Head(record.key, time, state), record)
            # While the session is held, so that the next event of another task is not refused as stale.
            session.last_update_time = time
            session._storage_update_marker = record.key  # noqa: SLF001 - as the services of ADK do

    async def _write(
        self,
        writer: RecordWriter,
        name: _Name,
        deltas: dict[str, dict[str, Any]],
        head: _Head,
        record: Record,
    ) -> None:
        """Announce the changes of the shared states, and write the record that makes them count."""
        for shared, delta in (
            (self._app(name.app), deltas["app"]),
            (self._user(name.app, name.user), deltas["user"]),
        ):
            if delta:
                lease = writer.lease
                await shared.announce(Change(delta, lease.session_id, lease.epoch, record.kind, record.key))
        revision = to_body({"revision": head.revision, "time": head.time})
        records = [record, Record(kind=_SESSION, key=_REVISION, body=revision)]
        if deltas["session"] or record.kind == _CREATED:
            records.append(Record(kind=_SESSION, key=_STATE, body=to_body(head.state)))
        await writer.write(records)
        writer.known["head"] = head

    async def _is_stale(self, stored_id: str, head: _Head, session: Session) -> bool:
        """Compare as `DatabaseSessionService` does: by the revision; without one, by the time and then by the last event."""
        marker = session._storage_update_marker  # noqa: SLF001
        if marker is not None:
            return marker != head.revision
        if head.time <= session.last_update_time:
            return False
        latest = await self._store.records(stored_id, _EVENT, reverse=True, limit=1)
        known = session.events[-1].id if session.events else None
        return known != (from_body(latest[0].body)["id"] if latest else None)

    async def _has(self, session: Session, dumped: dict[str, Any]) -> bool:
        stored_id = await self._store.find_id(_Name(session.app_name, session.user_id, session.id).stored)
        if stored_id is None:
            return False
        return any(
            from_body(record.body) == dumped for record in await self._store.records(stored_id, _EVENT)
        )

    async def _head(self, stored_id: str, writer: RecordWriter | None = None) -> _Head | None:
        """Return the head of a session; None if a process was killed before it had created the session completely."""
        if writer is not None and "head" in writer.known:
            return writer.known["head"]
        found = {
            record.key: from_body(record.body) for record in await self._store.records(stored_id, _SESSION)
        }
        return _Head(**found[_REVISION], state=found[_STATE]) if found else None

    async def _shared(self, name: _Name) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the states of the app and of the user."""
        return await asyncio.gather(self._app(name.app).read(), self._user(name.app, name.user).read())

    async def _get(self, name: _Name, config: GetSessionConfig) -> Session | None:
        stored_id = await self._store.find_id(name.stored)
        head = None if stored_id is None else await self._head(stored_id)
        if stored_id is None or head is None:
            return None
        recent, after = config.num_recent_events, config.after_timestamp
        limit = recent if after is None or recent == 0 else None
        latest = await self._store.records(stored_id, _EVENT, reverse=True, limit=limit)
        events = [Event.model_validate(from_body(record.body)) for record in reversed(latest)]
        if after is not None:
            events = [event for event in events if event.timestamp >= after]
            events = events[-recent:] if recent else events
        session = _session(name, head, *await self._shared(name))
        session.events = events
        return session

    async def _list(self, app: str, user: str | None) -> list[Session]:
        found: list[tuple[_Name, str]] = []
        async for stored in self._store.all_sessions():
            scope, *parts = json.loads(json.loads(stored.metadata)["name"])
            if scope == "session" and parts[0] == app and user in {None, parts[1]}:
                found.append((_Name(*parts), stored.id))
        if not found:
            return []
        app_state = await self._app(app).read()
        users = sorted({name.user for name, _ in found})
        states = await _by_few(lambda each: self._user(app, each).read(), users)
        user_states = dict(zip(users, states, strict=True))
        heads = await _by_few(self._head, [stored_id for _, stored_id in found])
        sessions = [
            _session(name, head, app_state, user_states[name.user])
            for (name, _), head in zip(found, heads, strict=True)
            if head is not None
        ]
        return sorted(sessions, key=lambda session: (session.last_update_time, session.user_id, session.id))

    async def _delete(self, name: _Name) -> None:
        try:
            stored_id = await self._store.find_id(name.stored)
        except SessionCleaned:
            stored_id = None
        if stored_id is not None:
            async with self._store.writing(stored_id):
                for shared in (self._app(name.app), self._user(name.app, name.user)):
                    await shared.settle(stored_id)
        await self._store.erase(name.stored)


def _session(name: _Name, head: _Head, app_state: dict[str, Any], user_state: dict[str, Any]) -> Session:
    """Return a session without its events, and with a copy of the merged state."""
    state = {
        **head.state,
        **{State.APP_PREFIX + key: value for key, value in app_state.items()},
        **{State.USER_PREFIX + key: value for key, value in user_state.items()},
    }
    session = Session(
        id=name.id,
        app_name=name.app,
        user_id=name.user,
        state=copy.deepcopy(state),
        last_update_time=head.time,
    )
    session._storage_update_marker = head.revision  # noqa: SLF001
    return session


def _dumped(event: Event) -> dict[str, Any]:
    return event.model_dump(mode="json", exclude_none=True)


def _key(number: int) -> str:
    """Return a key that sorts by number and is used once, so that a change that refers to it cannot refer to another event."""
    return f"{number:012}-{new_id()}"


def _number(key: str) -> int:
    return int(key.partition("-")[0])


async def _by_few(read: Callable[[T], Awaitable[R]], items: Sequence[T]) -> list[R]:
    results: list[R] = []
    for start in range(0, len(items), _AT_ONCE):
        results += await asyncio.gather(*map(read, items[start : start + _AT_ONCE]))
    return results
