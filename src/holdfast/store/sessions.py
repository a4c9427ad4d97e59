"""Sessions, and the audit log."""

import json
from collections.abc import Sequence
from itertools import count

from holdfast.errors import (
    BadText,
    Conflict,
    Forbidden,
    SessionCleaned,
    SessionErased,
    SessionExists,
    SessionNotFound,
)
from holdfast.ids import check_choice, check_id, check_name, check_text, check_title, new_id
from holdfast.store.rows import from_cursor, from_row, page_limit, to_page
from holdfast.store.transactions import Transactions, Tx, bounded, op, reading, writing
from holdfast.types import STATUSES, AuditEntry, Json, Page, Session, Status

_LARGEST_METADATA = 64 * 1024
_METADATA_WEIGHT = 4


class SessionMethods(Transactions):
    """The transactions of sessions.sql."""

    @writing()
    def create_session(
        self,
        *,
        agent: str,
        owner: str,
        id: str | None = None,
        title: str = "",
        metadata: Json = "{}",
        exist_ok: bool = False,
    ) -> Tx[Session]:
        """Create an idle session. Raises `SessionExists` if the id is taken, and `SessionErased` if it belonged to an erased session.

        With `exist_ok` it returns the existing session if that has the same owner, else it raises `SessionNotFound`.
        """
        session_id = new_id() if id is None else check_id(id, "session id")
        check_name(agent, "agent")
        check_name(owner, "owner")
        check_title(title)
        self._check_metadata(metadata)
        is_new = yield from self._new_session(session_id, agent, owner, title, metadata)
        if not is_new and not exist_ok:
            raise SessionExists(id=session_id)
        session = yield from self._session(session_id)
        if session.owner != owner:
            raise SessionNotFound(id=session_id)
        return session

    def _new_session(self, session_id: str, agent: str, owner: str, title: str, metadata: Json) -> Tx[bool]:
        """Create a session unless its id exists; return whether it was created. Raises `SessionErased`."""
        created = yield op(
            "create_session",
            id=session_id,
            agent=agent,
            owner=owner,
            title=title,
            title_folded=title.casefold(),
            metadata=metadata,
        )
        if (
            yield op("tombstone", session_id=session_id)
        ):  # after the insert, which may have waited for an erasure
            raise SessionErased(id=session_id)
        if created:
            yield op("create_head", id=session_id, agent=agent, owner=owner)
        return bool(created)

    def _check_metadata(self, metadata: Json) -> None:
        self._check_object(metadata, "metadata")
        if len(metadata) > _LARGEST_METADATA:
            problem = f"has {len(metadata)} characters; the limit is {_LARGEST_METADATA}"
            raise BadText(what="metadata", problem=problem, size=len(metadata), limit=_LARGEST_METADATA)

    @reading
    def session(self, session_id: str) -> Tx[Session]:
        """Return one session. Raises `SessionNotFound`."""
        return (yield from self._session(session_id))

    def _session(self, session_id: str) -> Tx[Session]:
        rows = yield op("sessions", id=check_id(session_id, "session id"), limit=1)
        if not rows:
            raise SessionNotFound(id=session_id)
        return from_row(Session, rows[0])

    @reading
    def sessions(
        self,
        *,
        owner: str | None = None,
        agent: str | None = None,
        status: Status | None = None,
        search: str | None = None,
        cursor: str | None = None,
        limit: int = 50,
    ) -> Tx[Page[Session]]:
        """List sessions, most recently active first. `search` matches part of the title, ignoring case."""
        active_before, id_before = from_cursor(cursor, int, str)
        if status is not None:
            check_choice(status, STATUSES, "session status")
        for text, what in ((owner, "owner"), (agent, "agent"), (search, "search")):
            check_text("" if text is None else text, what)
        wanted = op(
            "sessions",
            owner=owner,
            agent=agent,
            status=status,
            stored=status if status not in {"idle", "queued"} else None,
            queued=status == "queued" or None,
            search=search.casefold() if search else None,
            active_before=active_before,
            id_before=id_before,
            limit=page_limit(limit),
        )
        # Metadata is parsed by every reader, which makes it more expensive than other content.
        rows = yield bounded(wanted, "title", "waiting_for", "error", *["metadata"] * _METADATA_WEIGHT)
        return to_page(rows, limit, [from_row(Session, row) for row in rows], "active_at", "id")

    @writing(changes="session_id", repeatable=True)
    def dismiss(self, session_id: str) -> Tx[Session]:
        """Dismiss the failure of the last turn, and return the session. A session that is not failed stays unchanged."""
        yield from self._refuse_cleaned(session_id)
        yield op("dismiss_failure", session_id=session_id)
        return (yield from self._session(session_id))

    @reading
    def numbered_session(self, base: str, *, owner: str, agent: str) -> Tx[tuple[str, Session | None]]:
        """Return the owner's session with this agent whose id is `base`, or `base` with a number, such as `base-2`.

        If there is none, returns the first such id that was never used. Skips sessions of other owners and agents. One statement
        reads all candidates.
        """
        rows = yield op("numbered_sessions", low=check_id(base, "session id"), high=f"{base}.")
        taken = {row["id"]: (row["owner"], row["agent"]) for row in rows}
        own = [each for each, facts in taken.items() if facts == (owner, agent) and _is_numbered(base, each)]
        if own:
            session = yield from self._session(min(own, key=lambda each: (len(each), each)))
            return session.id, session
        ids = (f"{base}-{number}" if number else base for number in count())
        return next(each for each in ids if each not in taken), None

    async def mark_watched(self, session_ids: Sequence[str]) -> None:
        """Record that these sessions are being watched now. Missing sessions are ignored."""
        if session_ids:
            await self._watched(sorted(session_ids))

    @writing(repeatable=True)
    def _watched(self, session_ids: list[str]) -> Tx[None]:
        yield op("mark_watched", session_ids=session_ids)

    @reading
    def seconds_unwatched(self, session_id: str) -> Tx[float]:
        """Return for how many seconds the session has been neither watched nor sent a submission."""
        rows = yield op("seconds_unwatched", id=check_id(session_id, "session id"))
        if not rows:
            raise SessionNotFound(id=session_id)
        return rows[0]["microseconds"] / 1_000_000

    async def update_session(
        self,
        session_id: str,
        *,
        title: str | None = None,
        hold: bool | None = None,
        metadata: Json | None = None,
        actor: str | None = None,
        is_admin: bool = True,
    ) -> Session:
        """Change the given values and leave the others unchanged. Raises `SessionNotFound`.

        A hold stops a clean that has not deleted anything yet; once it has, it raises `SessionCleaned`.

        With an `actor`, setting or lifting a hold is audited in the same transaction. Only an administrator can lift a hold that an
        administrator set: without `is_admin` that raises `Forbidden`.
        """
        audit = None if actor is None or hold is None else (new_id(), check_name(actor, "actor"))
        return await self._update_session(session_id, title, hold, metadata, audit, is_admin)

    @writing(changes="session_id", repeatable=True)
    def _update_session(
        self,
        session_id: str,
        title: str | None,
        hold: bool | None,
        metadata: Json | None,
        audit: tuple[str, str] | None,
        is_admin: bool,
    ) -> Tx[Session]:
        if title is not None:
            check_title(title)
        if metadata is not None:
            self._check_metadata(metadata)
        if title is not None or metadata is not None:
            yield from self._refuse_cleaned(session_id)
        if hold:
            yield from self._stop_cleaning(session_id)
        elif hold is False and not is_admin:
            yield from self._lock_head(check_id(session_id, "session id"))
            if (yield op("admin_hold", id=session_id)):
                raise Forbidden(
                    required="an administrator, because an administrator set this hold",
                    principal="this owner",
                )
        yield op(
            "update_session",
            id=session_id,
            title=title,
            title_folded=None if title is None else title.casefold(),
            hold=None if hold is None else int(hold),
            admin_hold=int(hold) if hold is not None and is_admin else None,
            metadata=metadata,
        )
        session = yield from self._session(session_id)
        if audit is not None:
            audit_id, actor = audit
            action = "hold" if hold else "lift hold"
            yield op("add_audit", id=audit_id, actor=actor, action=action, session_id=session_id, detail="{}")
        return session

    async def set_agent(self, session_id: str, agent: str, *, actor: str) -> None:
        """Let another agent continue a session, with an audit entry. Its earlier runs keep the agent that they had.

        Raises `SessionNotFound`, `SessionCleaned`, and `Conflict` while a process holds the session.
        """
        await self._set_agent(session_id, check_name(agent, "agent"), (new_id(), check_name(actor, "actor")))

    @writing(changes="session_id", wakes=True, repeatable=True)
    def _set_agent(self, session_id: str, agent: str, audit: tuple[str, str]) -> Tx[None]:
        head = yield from self._refuse_cleaned(session_id)
        before = (yield from self._session(session_id)).agent
        if before == agent:
            return
        if head.holder is not None:
            raise Conflict(
                problem=f"session {session_id} is in use, so its agent cannot be changed. Try again when it is free"
            )
        yield op("update_session", id=session_id, agent=agent)
        yield op("name_head", session_id=session_id)
        audit_id, actor = audit
        detail = json.dumps({"before": before, "after": agent})
        yield op(
            "add_audit", id=audit_id, actor=actor, action="set agent", session_id=session_id, detail=detail
        )

    def _stop_cleaning(self, session_id: str) -> Tx[None]:
        """Stop a clean that has not deleted anything yet; once it has, raise `SessionCleaned`."""
        head = yield from self._lock_head(check_id(session_id, "session id"))
        if head.status == "cleaning":
            session = yield from self._session(session_id)
            if session.cleaned_at is not None:
                raise SessionCleaned(id=session_id)
            yield op("stop_cleaning", session_id=session_id)

    async def audit(self, *, actor: str, action: str, session_id: str | None, detail: Json) -> None:
        """Append an entry to the audit log. Entries are never changed or removed."""
        await self._audit(new_id(), actor, action, session_id, detail)

    @writing(repeatable=True)
    def _audit(self, id: str, actor: str, action: str, session_id: str | None, detail: Json) -> Tx[None]:
        check_name(actor, "actor")
        check_name(action, "action")
        self._check_json(detail, "detail")
        yield op("add_audit", id=id, actor=actor, action=action, session_id=session_id, detail=detail)

    @reading
    def has_sessions(self, owner: str, number: int) -> Tx[bool]:
        """Return whether an owner has this number of sessions that are not cleaned, or more."""
        (row,) = yield op("some_sessions", owner=owner, limit=number)
        return row["number"] >= number

    @reading
    def audit_log(
        self, *, session_id: str | None = None, cursor: str | None = None, limit: int = 50
    ) -> Tx[Page[AuditEntry]]:
        """List the audit entries, newest first."""
        (id_before,) = from_cursor(cursor, str)
        wanted = op("audit", session_id=session_id, id_before=id_before, limit=page_limit(limit))
        rows = yield bounded(wanted, "detail")
        return to_page(rows, limit, [from_row(AuditEntry, row) for row in rows], "id")


def _is_numbered(base: str, session_id: str) -> bool:
    number = session_id.removeprefix(base)
    return not number or (number[0] == "-" and number[1:].isdecimal() and number[1] != "0")
