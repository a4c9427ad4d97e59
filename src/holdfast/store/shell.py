"""Shell commands and their output: a log that is searched by time, followed by number, and purged from its oldest entries."""

import math
from collections.abc import AsyncGenerator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from holdfast.commands import COMMAND_STATES, SHELL_KINDS, Command, CommandState, Output, ShellKind
from holdfast.errors import BadInput, CommandLost, Conflict, NotFound
from holdfast.ids import check_choice, check_id, check_name, check_uuid
from holdfast.store.hub import Hub
from holdfast.store.hub import outputs as topic
from holdfast.store.rows import (
    CutRows,
    Row,
    Rows,
    from_cursor,
    from_row,
    is_part,
    page_limit,
    to_cursor,
)
from holdfast.store.transactions import Transactions, Tx, bounded, op, reading, refuse_closed, writing
from holdfast.types import Page

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LARGEST = 2**63 - 1
_PAGE = 100


class ShellMethods(Transactions):
    """The transactions of shell.sql. The id of a command wakes the tasks that follow it."""

    _hub: Hub

    @writing(repeatable=True)
    def start_command(self, command: Command) -> Tx[Command]:
        """Record a command that is about to run, once. Its session, if any, must exist and not be cleaned."""
        key = check_uuid(command.id, "command")
        self._check_size(command.command, "command")
        self._check_size(command.cwd or "", "folder")
        check_name(command.owner, "owner")
        self._check_size(command.call_id or "", "call id")
        if command.session_id is not None:
            head = yield from self._lock_head(check_id(command.session_id, "session id"))
            refuse_closed(command.session_id, head)
        yield op(
            "insert_command",
            id=key,
            session_id=command.session_id,
            owner=command.owner,
            call_id=command.call_id,
            command=command.command,
            cwd=command.cwd,
            timeout_us=None if command.timeout is None else round(command.timeout * 1_000_000),
            holder=check_id(command.holder, "holder"),
            host=check_name(command.host, "host"),
            pid=command.pid,
            pid_started=command.pid_started,
        )
        stored = yield from self._command(key)
        if (stored.holder, stored.command) != (command.holder, command.command):
            raise Conflict(problem=f"command {key} already exists")
        return stored

    async def write_outputs(self, command: Command, outputs: Sequence[Output]) -> Command:
        """Append to a running command's output and set its state, exit code and sizes.

        `command.outputs` is the number of outputs written before, so that the same call may be sent twice. Returns the updated
        command. Raises `CommandLost` if it has ended, does not exist, or has another holder or count.
        """
        return await self._write_outputs(check_uuid(command.id, "command"), command, outputs)

    @writing(changes="id", repeatable=True)
    def _write_outputs(self, id: str, command: Command, outputs: Sequence[Output]) -> Tx[Command]:
        check_choice(command.state, COMMAND_STATES, "command state")
        if not outputs:
            raise BadInput(
                problem="there is no output to write; pass at least one, also for the end of a command"
            )
        if (command.state == "running") != (command.exit_code is None):
            raise BadInput(problem="a command must have an exit code when it has ended, and none before")
        ids = [check_uuid(output.id, "output") for output in outputs]
        for output in outputs:
            self._check_size(output.stdout or "", "output")
            self._check_size(output.stderr or "", "output")
        rows = yield op(
            "number_outputs",
            id=id,
            holder=command.holder,
            before=command.outputs,
            count=len(outputs),
            state=command.state,
            ends=None if command.state == "running" else True,
            exit_code=command.exit_code,
            stdout_bytes=command.stdout_bytes,
            stderr_bytes=command.stderr_bytes,
            left_out_bytes=command.left_out_bytes,
            damaged=int(command.damaged),
        )
        if not rows:
            return (yield from self._written_before(id, command, ids))
        first_at = rows[0]["last_at"] - len(outputs) + 1
        for number, output in enumerate(outputs):
            yield op(
                "insert_output",
                command_id=id,
                number=command.outputs + number,
                session_id=rows[0]["session_id"],
                owner=rows[0]["owner"],
                id=ids[number],
                stdout=output.stdout,
                stderr=output.stderr,
                exit_code=output.exit_code,
                damaged=int(output.damaged),
                at=first_at + number,
            )
        return _command(rows[0])

    def _written_before(self, id: str, command: Command, ids: Sequence[str]) -> Tx[Command]:
        """Return the command if these outputs are already stored, because a response was lost; else raise `CommandLost`."""
        rows = yield op("commands", id=id, limit=1)
        if not rows:
            raise CommandLost(id=id, reason="its record was deleted")
        stored = _command(rows[0])
        if stored.holder == command.holder and stored.outputs == command.outputs + len(ids):
            last = yield op("outputs_by_id", ids=ids[-1:])
            if last:
                return stored
        if stored.ended_at is not None:
            raise CommandLost(id=id, reason=f"it is already recorded as {stored.state}")
        raise CommandLost(id=id, reason="another service has written to it")

    async def stop_command(self, command_id: str) -> Command:
        """Request that a command be stopped. A command that has ended is left unchanged. Raises `NotFound`."""
        return await self._stop_command(check_uuid(command_id, "command"))

    @writing(changes="id", repeatable=True)
    def _stop_command(self, id: str) -> Tx[Command]:
        yield op("request_stop", id=id)
        return (yield from self._command(id))

    @reading
    def command(self, command_id: str) -> Tx[Command]:
        """Return one command, even if it was purged. Raises `NotFound`."""
        return (yield from self._command(check_uuid(command_id, "command")))

    def _command(self, id: str) -> Tx[Command]:
        rows = yield op("commands", id=id, limit=1)
        if not rows:
            raise NotFound(what="command", id=id)
        return _command(rows[0])

    @reading
    def commands(
        self,
        *,
        session_id: str | None = None,
        owner: str | None = None,
        state: CommandState | None = None,
        holder: str | None = None,
        cursor: str | None = None,
        limit: int = 50,
    ) -> Tx[Page[Command]]:
        """List commands, newest first, including purged ones."""
        (id_before,) = from_cursor(cursor, str)
        if state is not None:
            check_choice(state, COMMAND_STATES, "command state")
        wanted = op(
            "commands",
            session_id=session_id,
            owner=owner,
            state=state,
            holder=holder,
            still_running=True if state == "running" else None,
            id_before=id_before,
            limit=page_limit(limit) + 1,
        )
        rows = yield bounded(wanted, "command", "cwd", "call_id", "owner", "holder", "host")
        items = [_command(row) for row in rows[:limit]]
        return Page(items=items, next_cursor=to_cursor(items[-1].id) if is_part(rows, limit + 1) else None)

    @reading
    def outputs(self, command_id: str, *, after: int = -1, limit: int = _PAGE) -> Tx[list[Output]]:
        """Return the output of a command after number `after`, in order. Raises `NotFound`."""
        key = check_uuid(command_id, "command")
        wanted = op(
            "outputs", command_id=key, after=_order(after), oldest_first=True, limit=page_limit(limit)
        )
        rows = yield bounded(wanted, "stdout", "stderr")
        if not rows:
            yield from self._command(key)
        return [_output(row) for row in rows]

    async def watch_outputs(self, command_id: str, *, after: int = -1) -> AsyncGenerator[Output, None]:
        """Yield all output of a command after number `after`, past and future, until the command has ended."""
        key = check_uuid(command_id, "command")
        ended = False
        with self._hub.listen(topic(key), after) as signal:
            while True:
                # Reset the bell before the read: a commit after the read rings it again.
                signal.bell.clear()
                page = await self.outputs(key, after=signal.after)
                for output in page:
                    signal.after = output.order
                    yield output
                    if output.exit_code is not None:
                        return
                if page:
                    continue
                if ended:  # and its last output was deleted, or is before `after`
                    return
                ended = (await self.command(key)).ended_at is not None
                if not ended:
                    await signal.bell.wait()

    @reading
    def shell_events(
        self,
        *,
        kind: ShellKind | None = None,
        command_id: str | None = None,
        owner: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        after_order: int | None = None,
        newest_first: bool = False,
        cursor: str | None = None,
        limit: int = _PAGE,
    ) -> Tx[Page[Command | Output]]:
        """Search the log, or one owner's part of it: commands that were not purged, and output, by time and then id.

        `since` is inclusive, `until` is exclusive. Only output has an order, so `after_order` excludes commands. A
        cursor stays valid when its event is deleted.
        """
        if kind is not None:
            check_choice(kind, SHELL_KINDS, "event kind")
        filters: dict[str, object] = {
            "owner": owner,
            "since": _microseconds(since),
            "until": _microseconds(until),
            "oldest_first": None if newest_first else True,
            "newest_first": True if newest_first else None,
            "limit": page_limit(limit) + 1,
        }
        after = None if after_order is None else _order(after_order)
        with_commands = kind != "output" and after is None
        with_outputs = kind != "command"
        if command_id is not None:
            key = check_uuid(command_id, "command")
            return (yield from self._of_command(key, filters, with_commands, with_outputs, after, cursor))
        at, at_id = from_cursor(cursor, int, str)
        way = "earlier" if newest_first else "later"
        filters |= {f"{way}_at": at, f"{way}_id": at_id}
        outputs: Rows = ()
        if with_outputs:
            outputs = yield bounded(op("log_of_outputs", after=after, **filters), "stdout", "stderr")
        if outputs and is_part(outputs, limit + 1):
            # Commands after the last output cannot be on this page.
            last = outputs[-1]["at"]
            bound = "since" if newest_first else "until"
            given = filters[bound]
            narrowed = last if newest_first else last + 1
            both = [narrowed] if given is None else [narrowed, int(str(given))]
            filters[bound] = max(both) if newest_first else min(both)
        commands: Rows = ()
        if with_commands:
            commands = yield bounded(op("log_of_commands", **filters), "command", "cwd", "call_id")
        events = [(row["at"], row["id"], row, _output) for row in outputs]
        events += [(row["started_at"], row["id"], row, _command) for row in commands]
        events.sort(key=lambda event: event[:2], reverse=newest_first)
        is_cut = False
        for rows, column in ((outputs, "at"), (commands, "started_at")):
            if isinstance(rows, CutRows):  # beyond its last row the page would have gaps
                is_cut, end = True, (rows[-1][column], rows[-1]["id"])
                events = [e for e in events if (e[:2] >= end if newest_first else e[:2] <= end)]
        page = events[:limit]
        more = to_cursor(*page[-1][:2]) if is_cut or len(events) > limit else None
        return Page(items=[make(row) for _, _, row, make in page], next_cursor=more)

    def _of_command(
        self,
        id: str,
        filters: dict[str, object],
        with_command: bool,
        with_outputs: bool,
        after: int | None,
        cursor: str | None,
    ) -> Tx[Page[Command | Output]]:
        """Search the events of one command in the order of their numbers; the command itself is the first."""
        (place,) = from_cursor(cursor, int)
        newest_first = filters["newest_first"] is not None
        before = place if newest_first else None
        if place is not None and not newest_first:
            after = place if after is None else max(after, place)
        limit = int(str(filters["limit"])) - 1
        first: list[tuple[int, Command | Output]] = []
        if with_command and (place is None or (newest_first and place >= 0)):
            rows = yield op("commands", id=id, owner=filters["owner"], limit=1)
            first = [(-1, _command(row)) for row in rows if _is_logged(row, filters)]
        outputs: list[tuple[int, Command | Output]] = []
        is_cut = False
        if with_outputs:
            wanted = op("outputs", command_id=id, after=after, before=before, **filters)
            rows = yield bounded(wanted, "stdout", "stderr")
            outputs = [(row["number"], _output(row)) for row in rows]
            is_cut = isinstance(rows, CutRows)
        if is_cut and newest_first:
            first = []  # it follows the outputs that do not fit on this page
        events = [*outputs, *first] if newest_first else [*first, *outputs]
        page = events[:limit]
        more = to_cursor(page[-1][0]) if is_cut or len(events) > limit else None
        return Page(items=[event for _, event in page], next_cursor=more)

    @reading
    def shell_events_by_id(
        self, ids: Sequence[str], *, owner: str | None = None
    ) -> Tx[list[Command | Output | None]]:
        """Return these events of the log, in this order; None for each that does not exist or belongs to another owner."""
        known = [check_uuid(each, "event") for each in ids]
        wanted = known
        results: dict[str, Command | Output] = {}
        for row in (yield op("outputs_by_id", ids=wanted, owner=owner)):
            results[row["id"]] = _output(row)
        for row in (yield op("commands_by_id", ids=wanted, owner=owner)):
            results[row["id"]] = _command(row)
        return [results.get(each) for each in known]

    @writing(repeatable=True)
    def purge_commands(self, *, older_than: float, owner: str | None = None, limit: int = 1000) -> Tx[int]:
        """Delete up to `limit` events of commands that ended at least `older_than` seconds ago, oldest first.

        Their results are kept. Running commands and commands of sessions on hold are not touched. Returns how many events
        were deleted; 0 when none is left.
        """
        if not (math.isfinite(older_than) and older_than >= 0):
            raise BadInput(problem=f"older_than must be 0 or more seconds, not {older_than}")
        left = page_limit(limit)
        seconds = min(older_than, _LARGEST / 4_000_000)
        ended = yield op(
            "commands_to_purge", older_than_us=round(seconds * 1_000_000), owner=owner, limit=left
        )
        for row in ended:
            deleted = yield op("purge_outputs", command_id=row["id"], limit=left)
            left -= len(deleted)
            if not left:
                break
            left -= len((yield op("purge_command", id=row["id"])))
            if not left:
                break
        return limit - left


def _is_logged(row: Row, filters: dict[str, object]) -> bool:
    since, until = filters["since"], filters["until"]
    return (
        row["purged_at"] is None
        and (since is None or row["started_at"] >= since)
        and (until is None or row["started_at"] < until)
    )


def _order(number: int) -> int:
    if not -1 <= number <= _LARGEST:
        raise BadInput(problem=f"after must be -1 or more, not {number}; output is numbered from 0")
    return number


def _microseconds(at: datetime | None) -> int | None:
    """Return a time as it is stored. A time without a zone is taken as UTC."""
    if at is None:
        return None
    at = at.replace(tzinfo=UTC) if at.tzinfo is None else at
    return (at - _EPOCH) // timedelta(microseconds=1)


def imported_command(
    command: Command, outputs: Sequence[Output]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the rows of a command that ended elsewhere, with its own times and all of its outputs."""
    started, ended = _microseconds(command.started_at), _microseconds(command.ended_at)
    if started is None or ended is None or command.exit_code is None or command.state == "running":
        raise BadInput(problem=f"command {command.id} has no start or no end")
    check_choice(command.state, COMMAND_STATES, "command state")
    check_name(command.owner, "owner")
    written: list[dict[str, Any]] = []
    last = started
    for number, output in enumerate(outputs):
        at = _microseconds(output.at)
        if output.order != number or at is None or at <= last:
            raise BadInput(problem=f"the outputs of command {command.id} are out of order or have no times")
        last = at
        written.append(
            {
                "command_id": command.id,
                "number": number,
                "session_id": command.session_id,
                "owner": command.owner,
                "id": check_uuid(output.id, "output"),
                "stdout": output.stdout,
                "stderr": output.stderr,
                "exit_code": output.exit_code,
                "damaged": int(output.damaged),
                "at": at,
            }
        )
    row = {
        "id": command.id,
        "session_id": command.session_id,
        "owner": command.owner,
        "call_id": command.call_id,
        "command": command.command,
        "cwd": command.cwd,
        "timeout_us": None if command.timeout is None else round(command.timeout * 1_000_000),
        "holder": check_id(command.holder, "holder"),
        "host": check_name(command.host, "host"),
        "pid": command.pid,
        "pid_started": command.pid_started,
        "state": command.state,
        "stop_requested": int(command.stop_requested),
        "exit_code": command.exit_code,
        "outputs": len(written),
        "stdout_bytes": command.stdout_bytes,
        "stderr_bytes": command.stderr_bytes,
        "left_out_bytes": command.left_out_bytes,
        "damaged": int(command.damaged),
        "started_at": started,
        "last_at": last,
        "ended_at": ended,
        "purged_at": None,
    }
    return row, written


def _command(row: Row) -> Command:
    timeout = None if row["timeout_us"] is None else row["timeout_us"] / 1_000_000
    return from_row(Command, row, timeout=timeout)


def _output(row: Row) -> Output:
    return from_row(Output, row, order=row["number"])
