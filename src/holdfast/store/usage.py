"""The transactions of usage.sql. The sums themselves are part of `write`."""

from collections.abc import Collection, Mapping
from datetime import date, timedelta
from typing import Any, Final

from holdfast.errors import BadInput
from holdfast.ids import check_choice
from holdfast.store.rows import Row, from_cursor, from_row, is_part, page_limit, to_cursor
from holdfast.store.transactions import Transactions, Tx, op, reading, writing
from holdfast.types import Page
from holdfast.usage import USAGE_GROUPS, UsageFilter, UsageGroup, UsageOf

_EPOCH: Final = date(1970, 1, 1)
_NO_DAY: Final = 2**40
_LEAST: Final[Mapping[str, int | str]] = {
    "day": 0,
    "owner": "",
    "agent": "",
    "model": "",
    "session_id": "",
}


class UsageMethods(Transactions):
    """Add up what sessions used, and delete old sums."""

    @reading
    def usage(
        self,
        by: Collection[UsageGroup] = (),
        where: UsageFilter = UsageFilter(),  # noqa: B008 - it cannot change
        *,
        cursor: str | None = None,
        limit: int = 1000,
    ) -> Tx[Page[UsageOf]]:
        """Add up the usage for each day, owner, agent, model or session, or for a combination of these, in the order of `USAGE_GROUPS`.

        Usage is added in the transaction of the step that it belongs to.
        """
        for group in by:
            check_choice(group, USAGE_GROUPS, "value for by")
        if where.first is not None and where.last is not None and where.first > where.last:
            raise BadInput(problem=f"the first day {where.first} is after the last day {where.last}")
        groups = [group for group in USAGE_GROUPS if group in by]
        after = dict(
            zip(groups, from_cursor(cursor, *(type(_LEAST[group]) for group in groups)), strict=True)
        )
        rows = yield op(
            "usage",
            first=0 if where.first is None else _number(where.first),
            end=_NO_DAY if where.last is None else _number(where.last) + 1,
            owner=where.owner,
            agent=where.agent,
            model=where.model,
            session_id=where.session_id,
            paged=None if cursor is None else True,
            limit=page_limit(limit),
            **{f"by_{group}": True if group in by else None for group in USAGE_GROUPS},
            **{f"has_{group}": int(group in by) for group in USAGE_GROUPS},
            **{f"after_{group}": after.get(group) or least for group, least in _LEAST.items()},
        )
        more = to_cursor(*(rows[-1][group] for group in groups)) if groups and is_part(rows, limit) else None
        return Page(items=[_usage(row, by) for row in rows], next_cursor=more)

    @writing(repeatable=True)
    def drop_usage(self, days: int, *, limit: int = 1000) -> Tx[int]:
        """Delete sums that are older than this many days, at most `limit`; return how many."""
        return len((yield op("drop_usage", days=days, limit=page_limit(limit))))


def _number(day: date) -> int:
    return (day - _EPOCH).days


def _usage(row: Row, by: Collection[UsageGroup]) -> UsageOf:
    groups: Mapping[str, Any] = {group: row[group] if group in by else None for group in USAGE_GROUPS}
    day = None if groups["day"] is None else _EPOCH + timedelta(days=groups["day"])
    return from_row(UsageOf, row, **{**groups, "day": day})
