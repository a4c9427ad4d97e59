"""The state that the sessions of a user, or of an app, of Google ADK share.

An event of ADK changes its session, the state of the user and the state of the app together, but a write to the store changes one Holdfast
session. The write of the event therefore decides: before it, its changes are announced in the sessions that hold the state of the user and
of the app, with the kind and the key that the record of the event will have. A change counts once that record is stored.

If the process is killed between the announcement and the event, neither the event nor its changes count: the epoch of the lease under
which the event would have been written is over, so it cannot be written later. If it is killed after the event, all changes count.
The next announcement applies those that count, in their order, and drops those that never will. Nothing is applied twice, since a change is
removed in the same write that applies it.

If the conversation was cleaned or erased before the next announcement, its announced changes count: its events cannot be looked up.
"""

import asyncio
from dataclasses import asdict, dataclass
from typing import Any, Final

from holdfast.errors import SessionNotFound
from holdfast.frameworks.bodies import from_body, to_body
from holdfast.frameworks.framework_store import FrameworkStore
from holdfast.types import Record

_STATE: Final = ("state", "main")


@dataclass(slots=True)
class Change:
    """An announced change. It counts once the session has the record with this kind and key, written under a lease of this epoch."""

    delta: dict[str, Any]
    session_id: str
    epoch: int
    kind: str
    key: str


@dataclass(slots=True)
class _Stored:
    state: dict[str, Any]
    changes: list[Change]


class SharedState:
    """The state of a user or of an app, in a Holdfast session of its own with this name."""

    def __init__(self, store: FrameworkStore, name: str, *, title: str, scope: str) -> None:
        self._store = store
        self._name = name
        self._title = title
        self._scope = scope

    async def read(self) -> dict[str, Any]:
        """Return the state with all changes that count."""
        session_id = await self._store.find_id(self._name)
        if session_id is None:
            return {}
        stored = await self._load(session_id)
        for change, is_stored in await self._decide(stored.changes):
            if is_stored:
                stored.state.update(change.delta)
        return stored.state

    async def announce(self, change: Change) -> None:
        """Announce a change, and apply the earlier ones that count."""
        session_id = await self._store.find_id(self._name)
        if session_id is None:
            metadata = {"scope": self._scope}
            session_id = (await self._store.ensure(self._name, title=self._title, metadata=metadata)).id
        await self._rewrite(session_id, new=[change])

    async def settle(self, ended: str) -> None:
        """Apply the changes of a session that this process holds, before it is erased. Those without a record are dropped."""
        session_id = await self._store.find_id(self._name)
        if session_id is None:
            return
        if any(change.session_id == ended for change in (await self._load(session_id)).changes):
            await self._rewrite(session_id, ended=ended)

    async def _rewrite(self, session_id: str, *, new: list[Change] | None = None, ended: str = "") -> None:
        async with self._store.writing(session_id) as writer:
            stored = writer.known.get("stored") or await self._load(session_id)
            kept: list[Change] = []
            for change, is_stored in await self._decide(stored.changes):
                if is_stored:
                    stored.state.update(change.delta)
                    for earlier in kept:  # it may count later, but this change is the later one
                        earlier.delta = {k: v for k, v in earlier.delta.items() if k not in change.delta}
                elif is_stored is None and change.session_id != ended:
                    kept.append(change)
            stored.changes = kept + (new or [])
            body = to_body({"state": stored.state, "changes": [asdict(change) for change in stored.changes]})
            await writer.write([Record(kind=_STATE[0], key=_STATE[1], body=body)])
            writer.known["stored"] = stored

    async def _load(self, session_id: str) -> _Stored:
        found = await self._store.records(session_id, _STATE[0], limit=1)
        if not found:
            return _Stored(state={}, changes=[])
        value = from_body(found[0].body)
        return _Stored(state=value["state"], changes=[Change(**change) for change in value["changes"]])

    async def _decide(self, changes: list[Change]) -> list[tuple[Change, bool | None]]:
        return list(zip(changes, await asyncio.gather(*map(self._is_stored, changes)), strict=True))

    async def _is_stored(self, change: Change) -> bool | None:
        """Return whether the record of a change is stored; None if it is not, but may be later."""
        try:
            session = await self._store.store.session(change.session_id)
        except SessionNotFound:
            return True
        if session.cleaned_at is not None:
            return True
        found = await self._store.records(
            change.session_id, change.kind, prefix=change.key, limit=1, bodies=False
        )
        return bool(found) or (None if session.epoch == change.epoch else False)
