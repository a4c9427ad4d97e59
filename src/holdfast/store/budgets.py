"""The transactions of budgets.sql. The sums themselves are part of `write`, which refuses to start a request once a budget is used up."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.budgets import (
    BUDGET_KINDS,
    MEASURES,
    Account,
    Budget,
    BudgetSums,
    Limits,
    Per,
    accounts,
    describe,
)
from holdfast.errors import BadInput, BudgetReached, NotFound
from holdfast.ids import check_choice, check_name, new_id
from holdfast.store.rows import Row, from_cursor, page_limit, to_page
from holdfast.store.transactions import Transactions, Tx, op, reading, writing
from holdfast.store.write import reached
from holdfast.types import SUSPENDED, Page, Session


class BudgetMethods(Transactions):
    """Budgets: those that administrators set, and the sums of all."""

    async def open_budgets(
        self, session: Session, budgets: Sequence[Budget], *, turn: str
    ) -> tuple[list[Account], BudgetReached | None]:
        """Return what a turn counts towards, and the first budget that is used up.

        `budgets` are those of the settings, the agent and the session. Those of administrators are added. The sums of a new one begin with
        what the usage records.
        """
        found, rows = await self._session_budgets(session, budgets, turn)
        new = [account for account in found if account.key not in rows]
        if new:
            await self._open_budgets(new)
            found, rows = await self._session_budgets(session, budgets, turn)
        return found, reached(found, rows)

    @reading
    def _session_budgets(
        self, session: Session, budgets: Sequence[Budget], turn: str
    ) -> Tx[tuple[list[Account], dict[tuple[str, str, bool], BudgetSums]]]:
        rows = yield op("session_budgets", session_id=session.id, owner=session.owner, agent=session.agent)
        sums = [_sums(row, turn) for row in rows]
        found = accounts(
            budgets, sums, session_id=session.id, owner=session.owner, agent=session.agent, turn=turn
        )
        return found, {(each.per, each.name, each.daily): each for each in sums}

    @writing(repeatable=True)
    def _open_budgets(self, new: Sequence[Account]) -> Tx[None]:
        for account in new:
            yield self._opened(account.per, account.name, daily=account.daily, turn=account.turn)

    def _opened(self, per: Per, name: str, *, daily: bool, turn: str = "") -> Any:
        return op(
            "open_budget",
            per=per,
            name=name,
            daily=int(daily),
            turn=turn,
            of_day=True if daily else None,
            of_turn=True if per == "turn" else None,
            **_owned(per, name),
        )

    async def set_budget(
        self, per: Per, name: str, limits: Limits, *, daily: bool = False, actor: str
    ) -> BudgetSums:
        """Set the budget of one session, its turns, an owner, an agent, or the store with the name ''. It replaces that of the settings.

        Without any limit, the budget is removed. Raises `NotFound` if there is none. `wake_for_budgets` lets the sessions continue that wait for it.
        """
        check_choice(per, BUDGET_KINDS, "value for per")
        if per != "store":
            check_name(name, per)
        if per == "turn" and daily:
            raise BadInput(problem="a budget for turns cannot be daily")
        return await self._set_budget(per, name, limits, daily, actor, new_id())

    @writing(repeatable=True)
    def _set_budget(
        self, per: Per, name: str, limits: Limits, daily: bool, actor: str, audit_id: str
    ) -> Tx[BudgetSums]:
        key: Mapping[str, Any] = {"per": per, "name": name, "daily": int(daily)}
        most = {f"most_{measure}": number for measure, number in zip(MEASURES, limits.numbers, strict=True)}
        if limits.is_empty and not (yield op("set_budgets", **key)):
            raise NotFound(what="budget", id=describe(per, name, daily))
        yield self._opened(per, name, daily=daily)
        (row,) = yield op("set_budget", **key, **most, is_set=int(not limits.is_empty))
        about = name if per in {"session", "turn"} else None
        detail = json.dumps({**key, "daily": daily, **limits.model_dump(mode="json", exclude_none=True)})
        yield op("add_audit", id=audit_id, actor=actor, action="set_budget", session_id=about, detail=detail)
        return _sums(row)

    @reading
    def budgets(
        self, *, per: Per | None = None, name: str | None = None, cursor: str | None = None, limit: int = 100
    ) -> Tx[Page[BudgetSums]]:
        """List the budgets that administrators have set, with what was used in the current period."""
        if per is not None:
            check_choice(per, BUDGET_KINDS, "value for per")
        after = from_cursor(cursor, str, str, int)
        rows = yield op(
            "budgets",
            per=per,
            name=name,
            paged=None if cursor is None else True,
            limit=page_limit(limit),
            **dict(zip(("after_per", "after_name", "after_daily"), after, strict=True)),
        )
        return to_page(rows, limit, [_sums(row) for row in rows], "per", "name", "daily")

    async def wake_for_budgets(self, per: Per = "store", name: str = "") -> int:
        """Let the sessions continue that wait for a budget, at once: their workers check it again. Return how many."""
        woken, after = 0, (0, "")
        before = await self._clock_now()  # one that waits again meanwhile has checked it
        while rows := await self._waiting_for_budgets(per, name, after, before):
            for row in rows:
                woken += await self._wake_turn(row["id"])
            after = rows[-1]["active_at"], rows[-1]["id"]
        return woken

    @reading
    def _clock_now(self) -> Tx[int]:
        (clock,) = yield op("now")
        return clock["now"]

    async def recheck_budgets(self, session_id: str, accounts: Sequence[Account]) -> None:
        """Let a turn continue that has begun to wait for a budget, if that was raised before the wait was recorded."""
        if reached(accounts, await self._sums_of(session_id, accounts)) is None:
            await self._wake_turn(session_id)

    @reading
    def _sums_of(
        self, session_id: str, accounts: Sequence[Account]
    ) -> Tx[dict[tuple[str, str, bool], BudgetSums]]:
        names = {account.per: account.name for account in accounts}
        turn = next((account.turn for account in accounts if account.turn), "")
        root = names.get("turn") or names.get("session") or session_id
        given = {"owner": names.get("owner", ""), "agent": names.get("agent", "")}
        rows = yield op("session_budgets", session_id=root, **given)
        return {(each.per, each.name, each.daily): each for each in (_sums(row, turn) for row in rows)}

    @reading
    def _waiting_for_budgets(
        self, per: Per, name: str, after: tuple[int, str], before: int
    ) -> Tx[Sequence[Row]]:
        owned = _owned("session" if per == "turn" else per, name)
        return (
            yield op(
                "waiting_for_budgets", after_at=after[0], after_id=after[1], before=before, limit=500, **owned
            )
        )

    @writing(changes="session_id", wakes=True, repeatable=True)
    def _wake_turn(self, session_id: str) -> Tx[int]:
        head = yield from self._lock_head(session_id)
        if head.status not in SUSPENDED:
            return 0
        woken = yield op("wake_turn", session_id=session_id)
        if woken and head.holder is None:  # else it is ready when its holder releases it
            yield op("wake_head", session_id=session_id)
        return len(woken)

    @writing(repeatable=True)
    def drop_budgets(self, days: int, *, limit: int = 1000) -> Tx[int]:
        """Delete sums that have not changed for this many days and have no limit of an administrator; return how many."""
        return len((yield op("drop_budgets", days=days, limit=page_limit(limit))))


def _owned(per: Per, name: str) -> Mapping[str, str | None]:
    return {f"of_{each}": name if each == per else None for each in ("session", "owner", "agent")}


def _sums(row: Row, turn: str | None = None) -> BudgetSums:
    """Return a row with the sums of the current day or turn; without a `turn`, those of the last one."""
    current = str(row["today"]) if row["daily"] else ""
    is_current = row["period"] == current if row["per"] != "turn" else turn in {None, row["period"]}
    return BudgetSums(
        per=row["per"],
        name=row["name"],
        daily=bool(row["daily"]),
        spent=tuple(row[measure] if is_current else 0 for measure in MEASURES),
        most=tuple(row[f"most_{measure}"] for measure in MEASURES),
    )
