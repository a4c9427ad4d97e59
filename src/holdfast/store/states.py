"""Agent states, credentials and cursors: data of a session as a whole."""

import json
import math

from holdfast.errors import BadInput, EventNotFound, VersionConflict
from holdfast.ids import check_id, check_name
from holdfast.store.rows import from_cursor, from_row, page_limit, to_page
from holdfast.store.sessions import SessionMethods
from holdfast.store.transactions import Tx, op, reading, refuse_closed, writing
from holdfast.types import Credential, Cursor, Json, Page, State

_LONGEST_TTL = 10 * 366 * 24 * 60 * 60


class StateMethods(SessionMethods):
    """The transactions of states.sql."""

    @reading
    def state(self, session_id: str, *, name: str | None = None) -> Tx[State]:
        """Return the agent state, or the one with this name; version 0 with body `null` if it was never set."""
        yield from self._session(session_id)
        return (yield from self._state(session_id, name))

    @reading
    def state_versions(self, session_id: str) -> Tx[dict[str | None, int]]:
        """Return the versions of a session's states by name; the unnamed agent state has the key None."""
        rows = yield from self._of_session(session_id, op("state_versions", session_id=session_id))
        return {row["name"]: row["version"] for row in sorted(rows, key=lambda row: row["name"] or "")}

    def _state(self, session_id: str, name: str | None) -> Tx[State]:
        if name is None:
            rows = yield op("state", session_id=session_id)
        else:
            rows = yield op("named_state", session_id=session_id, name=check_name(name, "state name"))
        return from_row(State, rows[0]) if rows else State(version=0, body="null")

    @writing(changes="session_id")
    def set_state(
        self, session_id: str, body: Json, *, expected_version: int, name: str | None = None
    ) -> Tx[State]:
        """Replace the agent state if it is at version `expected_version`, else raise `VersionConflict`. Writes an event.

        Each `name` is a separate state with its own version, for sessions with several agents.
        """
        self._check_json(body, "state")
        yield from self._refuse_cleaned(session_id)
        state = yield from self._state(session_id, name)
        if state.version != expected_version:
            raise VersionConflict(
                session_id=session_id, version=state.version, expected_version=expected_version
            )
        version = expected_version + 1
        if name is None:
            yield op("set_state", session_id=session_id, version=version, body=body)
        else:
            yield op("set_named_state", session_id=session_id, name=name, version=version, body=body)
        numbered = yield op("number_event", session_id=session_id)
        yield op(
            "insert_event",
            session_id=session_id,
            seq=numbered[0]["seq"],
            kind="state_changed",
            run_id=None,
            step=None,
            payload=json.dumps({"version": version} if name is None else {"version": version, "name": name}),
        )
        return State(version=version, body=body)

    @writing(changes="session_id", repeatable=True)
    def set_credential(
        self, session_id: str, name: str, sealed: str | None, *, ttl: float | None = None
    ) -> Tx[None]:
        """Store an encrypted credential, for `ttl` seconds if given, replacing the previous one; None deletes it. Writes no event."""
        check_id(name, "credential name")
        if ttl is not None and not (math.isfinite(ttl) and 0 < ttl <= _LONGEST_TTL):
            raise BadInput(problem=f"ttl must be a positive number of seconds, not {ttl}")
        head = yield from self._lock_head(session_id)
        refuse_closed(session_id, head)
        yield op("drop_credentials", session_id=session_id, name=name)
        if sealed is not None:
            self._check_size(sealed, "credential")
            ttl_us = None if ttl is None else round(ttl * 1_000_000)
            yield op("set_credential", session_id=session_id, name=name, sealed=sealed, ttl_us=ttl_us)

    @reading
    def credentials(self, session_id: str) -> Tx[list[Credential]]:
        """Return the credentials that have not expired, encrypted. Raises `SessionNotFound`."""
        rows = yield from self._of_session(session_id, op("credentials", session_id=session_id))
        return [from_row(Credential, row) for row in rows]

    @writing(changes="session_id", repeatable=True)
    def set_cursor(self, session_id: str, consumer: str, seq: int) -> Tx[Cursor]:
        """Move a consumer's cursor forward, never backward. Return its position."""
        check_id(consumer, "consumer")
        head = yield from self._refuse_cleaned(session_id)
        if not 0 <= seq <= head.seq:
            raise EventNotFound(session_id=session_id, seq=head.seq, number=seq)
        yield op("set_cursor", session_id=session_id, consumer=consumer, seq=seq)
        (row,) = yield op("cursor", session_id=session_id, consumer=consumer)
        return from_row(Cursor, row)

    @reading
    def cursors(self, session_id: str, *, cursor: str | None = None, limit: int = 200) -> Tx[Page[Cursor]]:
        """List the cursors of the consumers of a session, by the consumer's name."""
        (after,) = from_cursor(cursor, str)
        wanted = op("cursors", session_id=session_id, after=after, limit=page_limit(limit))
        rows = yield from self._of_session(session_id, wanted)
        return to_page(rows, limit, [from_row(Cursor, row) for row in rows], "consumer")
