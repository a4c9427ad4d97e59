"""Claim ready sessions, each with its lease and its first submission, in one transaction. Workers call this most."""

import json
from collections.abc import Mapping, Sequence

from holdfast.config import Settings
from holdfast.errors import HolderLost, StoreUnavailable
from holdfast.ids import new_id
from holdfast.store.leases import LeaseMethods
from holdfast.store.line import LineMethods
from holdfast.store.rows import Row, Rows, from_row, page_limit
from holdfast.store.submissions import SubmissionMethods, started
from holdfast.store.transactions import Tx, op, reading, writing
from holdfast.types import Holder, Lease, Session, Submission, Work


class WorkMethods(LeaseMethods, SubmissionMethods, LineMethods):
    """The transactions of work.sql."""

    def __init__(self, url: str, settings: Settings) -> None:
        super().__init__(url, settings)
        self._unknown_claims: dict[str, tuple[str, list[str]]] = {}
        """By holder: its last claim, if the outcome is unknown. The next one finds the sessions of that one, if it took effect."""
        self._last_agent: str | None = None
        """The agent of the latest claim. The next one begins with the following agent, so that each gets its turn."""

    async def next_work(
        self, holder: Holder, *, agents: Sequence[str] | None = None, limit: int = 1, max_attempts: int = 5
    ) -> list[Work]:
        """Claim up to `limit` ready sessions, and take the first submission of each, in one transaction.

        If more are ready, the owners take turns, and so do the agents; the sessions of an owner are in the order of their priorities, and
        then of the time since which they are ready. No two callers get the same session. A submission that was started `max_attempts` times is left to `take`. Sessions of dead
        holders become ready once `reclaim` has freed them. Raises `HolderLost`.
        """
        wanted = self._rotated(list(await self.ready_agents() if agents is None else agents))
        taken: list[Work] | None = None
        while taken is None:
            line = await self._line(holder, wanted, page_limit(limit))
            is_empty = not (line["due"] or line["in_line"] or line["parked"])
            if is_empty and holder.id not in self._unknown_claims:
                return []
            tenure, tries = self._unknown_claims.pop(holder.id, (new_id(), []))
            taking = self._next_work(holder, tenure, wanted, limit, max_attempts, tries, line)
            try:
                taken = await self._unfinished.run_or_undo(taking, self._give_back)
            except StoreUnavailable:
                self._unknown_claims = {holder.id: (tenure, tries)}  # of one holder: a process has one worker
                raise
        if taken:
            self._last_agent = taken[-1].session.agent
        self._announce(*(work.session.id for work in taken))
        return taken

    def _rotated(self, agents: list[str]) -> list[str]:
        """Return the agents, beginning with the one that follows the last one from which a session was claimed."""
        after = agents.index(self._last_agent) + 1 if self._last_agent in agents else 0
        return agents[after:] + agents[:after]

    @reading
    def _line(self, holder: Holder, agents: list[str], limit: int) -> Tx[Row]:
        (line,) = yield op("line_state", holder=holder.id, agents=agents, limit=limit)
        if not line["live"]:
            raise HolderLost(id=holder.id)
        return line

    @reading
    def ready_in(self, holder: Holder, *, agents: Sequence[str] | None = None) -> Tx[float | None]:
        """Return in how many seconds the first session is ready; None if no session has work. Raises `HolderLost`."""
        (result,) = yield op("first_ready", holder=holder.id, agents=None if agents is None else list(agents))
        if not result["live"]:
            raise HolderLost(id=holder.id)
        return None if result["ready_in"] is None else max(0, result["ready_in"]) / 1_000_000

    @writing(repeatable=True)
    def _next_work(
        self,
        holder: Holder,
        tenure: str,
        agents: list[str],
        limit: int,
        max_attempts: int,
        tries: list[str],
        line: Row,
    ) -> Tx[list[Work] | None]:
        """Return the claimed sessions; None if there are too many new ones in the line for one transaction."""
        ours = {"holder": holder.id, "tenure": tenure}
        claimed = []
        if tries:
            yield op("claim_lock", tenure=tenure)
            claimed = yield op("tenure", **ours)
        tries.append(tenure)
        if claimed:
            rows = yield op("begun_submissions", **ours)
        elif (claimed := (yield from self._claim(agents, limit, line, ours))) is None:
            return None
        elif claimed:
            rows = yield from self._begin(max_attempts, ours)
            if woken := [row["session_id"] for row in rows if row["lane"] == "main" and row["deliver_at"]]:
                yield op("wake_sessions", session_ids=woken)
        else:
            return []  # other workers were faster
        begun = {row["session_id"]: from_row(Submission, row) for row in rows}
        return [
            Work(
                lease=Lease(
                    session_id=row["id"],
                    epoch=row["epoch"],
                    holder=holder.id,
                    taken_from=row["orphaned_by"],
                    seq=row["seq"],
                ),
                session=from_row(Session, row, parent_id=None, error=None),
                submission=begun.get(row["id"]),
                fresh=bool(row["fresh"]),
                budgeted=bool(row["budgeted"]),
            )
            for row in (yield op("claimed_sessions", **ours))
        ]

    def _claim(self, agents: list[str], limit: int, line: Row, ours: Mapping[str, str]) -> Tx[Rows | None]:
        """Claim sessions; return None if more sessions must get places first. If all that are ready can be claimed, none needs a place."""
        if not (self.limits_running or line["in_line"] or line["parked"] or line["due"] > limit):
            return (yield op("claim_ready", agents=agents, limit=limit, due=True, **ours))
        rooms = yield from self._rooms()
        agents = [agent for agent in agents if rooms.of_agent(agent)]
        if line["parked"]:
            yield from self._unpark(agents, limit, rooms)
        if (line["due"] or line["parked"]) and (yield from self._line_up(agents)):
            return None
        if not (self.limits_running or line["prioritized"]):
            return (yield op("claim_ready", agents=agents, limit=limit, placed=True, **ours))
        chosen = yield from self._choose(agents, limit, rooms)
        return (yield op("claim_sessions", session_ids=chosen, **ours)) if chosen else ()

    def _begin(self, max_attempts: int, ours: Mapping[str, str]) -> Tx[Rows]:
        """Start the first submission of each claimed session, and write an event for it."""
        rows = yield op("begin_submissions", max_attempts=max_attempts, **ours)
        if rows:
            begun = [from_row(Submission, row) for row in rows]
            numbered = yield op("number_begun", session_ids=[s.session_id for s in begun])
            seqs = {row["session_id"]: row["seq"] for row in numbered}
            events = [(s.session_id, seqs[s.session_id], s.run_id, json.dumps(started(s))) for s in begun]
            yield op("insert_begun_events", events=events)
        return rows

    async def _give_back(self, taken: list[Work] | None) -> None:
        for work in taken or ():
            await self._put_back(work.lease, work.submission)
            await self.release(work.lease)
