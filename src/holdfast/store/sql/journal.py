"""The journal: events in dense order, how they are read and watched, and the drafts beside them."""

from collections.abc import AsyncGenerator, Sequence

from holdfast.errors import BadInput
from holdfast.store.hub import Hub
from holdfast.store.sql.core import SqlCore, Tx, lease_lost, moment, page_limit, reading, sql, writing
from holdfast.types import Draft, Event, Lease

_PAGE = 500
_LARGEST_SEQ = 2**63 - 1


class Journal(SqlCore):
    """The transactions of journal.sql. `write` itself belongs to the engines, for the sake of group commit."""

    _hub: Hub

    @reading
    def events(
        self, session_id: str, *, after: int = 0, run_id: str | None = None, limit: int = _PAGE
    ) -> Tx[list[Event]]:
        if not 0 <= after <= _LARGEST_SEQ:
            raise BadInput(problem=f"events are numbered from 1; none can come after {after}")
        wanted = sql("events", session_id=session_id, after=after, run_id=run_id, limit=page_limit(limit))
        rows = yield from self._of_session(session_id, wanted)
        return [
            Event(
                session_id=session_id,
                seq=row["seq"],
                kind=row["kind"],
                run_id=row["run_id"],
                step=row["step"],
                at=moment(row["at"]),
                payload=row["payload"],
                message=row["message"],
            )
            for row in rows
        ]

    async def watch(self, session_id: str, *, after: int = 0) -> AsyncGenerator[Event, None]:
        with self._hub.listen(session_id, after) as signal:
            while True:
                # The bell is reset before the read: what is committed after the read rings it again.
                signal.bell.clear()
                page = await self.events(session_id, after=signal.after, limit=_PAGE)
                for event in page:
                    signal.after = event.seq
                    yield event
                if len(page) < _PAGE:
                    await signal.bell.wait()

    @writing
    def put_drafts(self, lease: Lease, drafts: Sequence[Draft]) -> Tx[None]:
        for draft in drafts:
            self._check_size(draft.text, "draft")
            rows = yield sql(
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
                raise lease_lost(lease, "another holder took it, or it was released")

    @reading
    def drafts(self, session_id: str) -> Tx[list[Draft]]:
        rows = yield from self._of_session(session_id, sql("drafts", session_id=session_id))
        return [
            Draft(run_id=row["run_id"], part=row["part"], kind=row["kind"], text=row["body"]) for row in rows
        ]
