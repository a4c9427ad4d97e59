"""The journal: events in dense order, how they are read and watched, and the drafts."""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractContextManager
from time import monotonic
from typing import Final

from holdfast.errors import BadInput, EventNotFound
from holdfast.store.history import before_run
from holdfast.store.hub import READY, Hub, Signal, drafts, inbox
from holdfast.store.rows import from_row, is_part, page_limit
from holdfast.store.transactions import (
    PAGE_BYTES,
    Statement,
    Transactions,
    Tx,
    bounded,
    lease_lost,
    op,
    reading,
    writing,
)
from holdfast.types import Draft, Event, Lease

_WATCHED: Final[dict[str, Callable[[list[str]], Statement]]] = {
    "": lambda ids: op("watched_heads", session_ids=ids),
    ">": lambda ids: op("watched_inboxes", session_ids=ids),
    "~": lambda ids: op("watched_drafts", session_ids=ids),
    "$": lambda ids: op("watched_commands", session_ids=ids),
}
_PAGE = 500
_AHEAD_SECONDS = 1.0
"""How long the store may lag behind a reader: a new primary of MongoDB may briefly return an older state."""
_LARGEST_SEQ = 2**63 - 1


class JournalMethods(Transactions):
    """The transactions of journal.sql. Each engine implements `write` itself, because of group commit."""

    _hub: Hub

    @reading
    def events(
        self,
        session_id: str,
        *,
        after: int = 0,
        run_id: str | None = None,
        limit: int = _PAGE,
        max_bytes: int = PAGE_BYTES,
    ) -> Tx[list[Event]]:
        """Return the events after number `after`, in order. Raises `SessionNotFound`.

        A page ends with the event that reaches `max_bytes`, 4 MiB by default. Only an empty page means that there are no more events.
        """
        events, _ = yield from self._events(session_id, after, run_id, limit, max_bytes)
        return events

    @reading
    def _some_events(self, session_id: str, after: int) -> Tx[tuple[list[Event], bool]]:
        return (yield from self._events(session_id, after, None, _PAGE, PAGE_BYTES))

    def _events(
        self, session_id: str, after: int, run_id: str | None, limit: int, max_bytes: int
    ) -> Tx[tuple[list[Event], bool]]:
        """Return a page of events, and whether there may be more."""
        if not 0 <= after <= _LARGEST_SEQ:
            raise BadInput(problem=f"after must be 0 or more, not {after}; events are numbered from 1")
        if run_id is not None:
            after = max(after, (yield from before_run(session_id, run_id)))
        wanted = op("events", session_id=session_id, after=after, run_id=run_id, limit=page_limit(limit))
        wanted = bounded(wanted, "payload", "message", "run_id", page_bytes=max_bytes)
        rows = yield from self._of_session(session_id, wanted)
        events = [from_row(Event, row, session_id=session_id) for row in rows]
        return events, is_part(rows, limit)

    async def watch(self, session_id: str, *, after: int = 0) -> AsyncGenerator[Event, None]:
        """Yield every event after number `after`, past and future, exactly once, in order and without gaps.

        Continues until it is closed. Raises `SessionNotFound` if the session does not exist or was deleted, and `EventNotFound` if the
        session has fewer events than that, for example after a restore from a backup.
        """
        ahead_since: float | None = None
        with self._hub.listen(session_id, after) as signal:
            while True:
                # Reset the bell before the read: a commit after the read rings it again.
                signal.bell.clear()
                page, more = await self._some_events(session_id, signal.after)
                for event in page:
                    signal.after = event.seq
                    yield event
                if more:
                    continue
                seq = None if page else await self._seq_before(session_id, signal.after)
                if seq is None:
                    ahead_since = None
                    await signal.bell.wait()
                    continue
                ahead_since = ahead_since or monotonic()
                left = ahead_since + _AHEAD_SECONDS - monotonic()
                if left <= 0:
                    raise EventNotFound(session_id=session_id, seq=seq, number=signal.after)
                await signal.wait(left)

    @reading
    def _seq_before(self, session_id: str, number: int) -> Tx[int | None]:
        """Return the session's last event number if it is lower than `number`, as after a restore."""
        rows = yield op("head", session_id=session_id)
        return next((row["seq"] for row in rows if row["seq"] < number), None)

    async def watch_drafts(self, session_id: str) -> AsyncGenerator[list[Draft], None]:
        """Yield the current drafts, and again whenever they have changed. Continues until it is closed."""
        with self._hub.listen(drafts(session_id), -1) as signal:
            seen: list[Draft] = []
            while True:
                signal.bell.clear()
                signal.after, result = await self._drafts(session_id)
                if result != seen:
                    yield result
                    seen = result
                else:
                    await signal.bell.wait()

    def ready_bell(self) -> AbstractContextManager[Signal]:
        """Listen for sessions that become ready. A hint may be lost or spurious, so also poll."""
        return self._hub.listen(READY, 0)

    def inbox_bell(self, session_id: str) -> AbstractContextManager[Signal]:
        """Listen for submissions to a session. Hints may be lost, as with `ready_bell`."""
        return self._hub.listen(inbox(session_id), 0)

    def _latest_numbers(self, topics: Sequence[str]) -> Tx[dict[str, int]]:
        """Return the number of the latest item of each topic."""
        numbers: dict[str, int] = {}
        for mark, read in _WATCHED.items():
            wanted = [topic for topic in topics if topic != READY and _mark(topic) == mark]
            if wanted:
                rows = yield read([topic.removeprefix(mark) for topic in wanted])
                numbers |= dict.fromkeys(wanted, -1)  # deleted, or empty
                numbers |= {mark + row["session_id"]: row["number"] for row in rows}
        if READY in topics:
            numbers[READY] = (yield op("latest_ready", limited=self.limits_running or None))[0]["number"]
        return numbers

    @writing(changes="lease")
    def put_drafts(self, lease: Lease, drafts: Sequence[Draft]) -> Tx[None]:
        """Replace the current drafts. Takes no event number, is not durable, and raises `LeaseLost` if the lease is stale."""
        for draft in drafts:
            self._check_size(draft.text, "draft")
            rows = yield op(
                "put_draft",
                session_id=lease.session_id,
                epoch=lease.epoch,
                holder=lease.holder,
                run_id=draft.run_id,
                part=draft.part,
                kind=draft.kind,
                body=draft.text,
            )
            if not rows:
                raise lease_lost(lease, "another holder has acquired it, or it was released")

    async def drafts(self, session_id: str) -> list[Draft]:
        """Return the current drafts."""
        _, result = await self._drafts(session_id)
        return result

    @reading
    def _drafts(self, session_id: str) -> Tx[tuple[int, list[Draft]]]:
        rows = yield from self._of_session(session_id, op("drafts", session_id=session_id))
        results = [from_row(Draft, row, text=row["body"]) for row in rows]
        return max((row["at"] for row in rows), default=-1), results


def _mark(topic: str) -> str:
    return topic[0] if topic[0] in ">~$" else ""
