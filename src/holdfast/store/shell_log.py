"""The log of shell commands and their output, searched by time."""

from collections.abc import Sequence
from datetime import datetime

from holdfast.commands import SHELL_KINDS, Command, Output, ShellKind
from holdfast.ids import check_choice, check_uuid
from holdfast.store.rows import CutRows, Row, Rows, from_cursor, is_part, page_limit, to_cursor
from holdfast.store.shell import (
    OUTPUTS_PER_PAGE,
    ShellMethods,
    check_order,
    microseconds,
    to_command,
    to_output,
)
from holdfast.store.transactions import Tx, bounded, op, reading
from holdfast.types import Page


class ShellLogMethods(ShellMethods):
    """The transactions that search the log."""

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
        limit: int = OUTPUTS_PER_PAGE,
    ) -> Tx[Page[Command | Output]]:
        """Search the log, or one owner's part of it: commands that were not purged, and output, by time and then id.

        `since` is inclusive, `until` is exclusive. Only output has an order, so `after_order` excludes commands. A
        cursor stays valid when its event is deleted.
        """
        if kind is not None:
            check_choice(kind, SHELL_KINDS, "event kind")
        filters: dict[str, object] = {
            "owner": owner,
            "since": microseconds(since),
            "until": microseconds(until),
            "oldest_first": None if newest_first else True,
            "newest_first": True if newest_first else None,
            "limit": page_limit(limit) + 1,
        }
        after = None if after_order is None else check_order(after_order)
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
        events = [(row["at"], row["id"], row, to_output) for row in outputs]
        events += [(row["started_at"], row["id"], row, to_command) for row in commands]
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
            first = [(-1, to_command(row)) for row in rows if _is_logged(row, filters)]
        outputs: list[tuple[int, Command | Output]] = []
        is_cut = False
        if with_outputs:
            wanted = op("outputs", command_id=id, after=after, before=before, **filters)
            rows = yield bounded(wanted, "stdout", "stderr")
            outputs = [(row["number"], to_output(row)) for row in rows]
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
            results[row["id"]] = to_output(row)
        for row in (yield op("commands_by_id", ids=wanted, owner=owner)):
            results[row["id"]] = to_command(row)
        return [results.get(each) for each in known]


def _is_logged(row: Row, filters: dict[str, object]) -> bool:
    since, until = filters["since"], filters["until"]
    return (
        row["purged_at"] is None
        and (since is None or row["started_at"] >= since)
        and (until is None or row["started_at"] < until)
    )
