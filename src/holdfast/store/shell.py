"""Shell commands and their output, which is followed by number, and purged from its oldest entries."""

import math
from collections.abc import AsyncGenerator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from holdfast.commands import COMMAND_STATES, Command, CommandState, Output
from holdfast.errors import BadInput, CommandLost, Conflict, NotFound
from holdfast.ids import check_choice, check_id, check_name, check_uuid
from holdfast.store.hub import Hub
from holdfast.store.hub import outputs as topic
from holdfast.store.rows import (
    Row,
    from_cursor,
    from_row,
    is_part,
    page_limit,
    to_cursor,
)
from holdfast.store.stored_bytes import outdate
from holdfast.store.transactions import Transactions, Tx, bounded, op, reading, refuse_closed, writing
from holdfast.types import Page

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LARGEST = 2**63 - 1
OUTPUTS_PER_PAGE = 100


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
                problem="there is no output to write; pass at least one, even for the end of a command"
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
        return to_command(rows[0])

    def _written_before(self, id: str, command: Command, ids: Sequence[str]) -> Tx[Command]:
        """Return the command if these outputs are already stored, because a response was lost; else raise `CommandLost`."""
        rows = yield op("commands", id=id, limit=1)
        if not rows:
            raise CommandLost(id=id, reason="its record was deleted")
        stored = to_command(rows[0])
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
        return to_command(rows[0])

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
        items = [to_command(row) for row in rows[:limit]]
        return Page(items=items, next_cursor=to_cursor(items[-1].id) if is_part(rows, limit + 1) else None)

    @reading
    def outputs(self, command_id: str, *, after: int = -1, limit: int = OUTPUTS_PER_PAGE) -> Tx[list[Output]]:
        """Return the output of a command after number `after`, in order. Raises `NotFound`."""
        key = check_uuid(command_id, "command")
        wanted = op(
            "outputs", command_id=key, after=check_order(after), oldest_first=True, limit=page_limit(limit)
        )
        rows = yield bounded(wanted, "stdout", "stderr")
        if not rows:
            yield from self._command(key)
        return [to_output(row) for row in rows]

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
        yield from outdate([row["session_id"] for row in ended])
        for row in ended:
            deleted = yield op("purge_outputs", command_id=row["id"], limit=left)
            left -= len(deleted)
            if not left:
                break
            left -= len((yield op("purge_command", id=row["id"])))
            if not left:
                break
        return limit - left


def check_order(number: int) -> int:
    """Return the number of an output, or -1 for the place before the first one. Raises `BadInput`."""
    if not -1 <= number <= _LARGEST:
        raise BadInput(problem=f"after must be -1 or more, not {number}; output is numbered from 0")
    return number


def microseconds(at: datetime | None) -> int | None:
    """Return a time as it is stored. A time without a zone is taken as UTC."""
    if at is None:
        return None
    at = at.replace(tzinfo=UTC) if at.tzinfo is None else at
    return (at - _EPOCH) // timedelta(microseconds=1)


def imported_command(
    command: Command, outputs: Sequence[Output]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the rows of a command that ended elsewhere, with its own times and all of its outputs."""
    started, ended = microseconds(command.started_at), microseconds(command.ended_at)
    if started is None or ended is None or command.exit_code is None or command.state == "running":
        raise BadInput(problem=f"command {command.id} has no start or no end")
    check_choice(command.state, COMMAND_STATES, "command state")
    check_name(command.owner, "owner")
    written: list[dict[str, Any]] = []
    last = started
    for number, output in enumerate(outputs):
        at = microseconds(output.at)
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


def to_command(row: Row) -> Command:
    """Return a row as a command."""
    timeout = None if row["timeout_us"] is None else row["timeout_us"] / 1_000_000
    return from_row(Command, row, timeout=timeout)


def to_output(row: Row) -> Output:
    """Return a row as an output."""
    return from_row(Output, row, order=row["number"])
