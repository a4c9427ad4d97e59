"""Find the sessions that changed, for work that follows all of them: the mirror, and the measurement of stored bytes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from holdfast.store.rows import Rows, page_limit
from holdfast.store.transactions import Tx, op

_CLOSED: Final = frozenset({"cleaning", "cleaned"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """Sessions with content that may have changed, and the last event of each.

    `after` is the last session of the page in the order of ids, or empty at the end.
    """

    last: Mapping[str, int]
    after: str


def activity(
    *, age_us: int, most: int, also: Sequence[str] = (), after: str | None, limit: int
) -> Tx[Activity]:
    """Return those in `also`, up to `most` that were active within `age_us`, up to `most` that are held, and the `limit` sessions after `after`.

    Not every event changes the time of its session's last activity, and an import sets it to the past. Therefore every session must be
    compared from time to time, in the order of ids. `after=None` omits these.
    """
    recent = yield op("recent_sessions", age_us=age_us, limit=most)
    held = yield op("held_sessions", limit=most)
    page: Rows = []
    if after is not None:
        page = yield op("sessions_after", after=after, limit=page_limit(limit))
    statuses: dict[str, str] = {row["id"]: row["status"] for row in [*recent, *page]}
    others = {*also, *(row["session_id"] for row in held)} - statuses.keys()
    if others:
        rows = yield op("session_statuses", session_ids=sorted(others))
        statuses |= {row["id"]: row["status"] for row in rows}
    active: list[str] = [row["id"] for row in recent] + [row["session_id"] for row in held]
    ids = list(dict.fromkeys([*also, *active, *statuses]))
    heads = yield op("watched_heads", session_ids=ids)
    last = {row["session_id"]: row["number"] for row in heads}
    return Activity(
        last={each: last.get(each, 0) for each in ids if statuses.get(each, "cleaned") not in _CLOSED},
        after=page[-1]["id"] if len(page) >= limit else "",
    )
