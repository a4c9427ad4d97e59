"""Holders and leases: which process may write to a session, and what happens to its work when that process dies."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace

from holdfast.errors import BadInput, HolderLost, SessionBusy
from holdfast.ids import check_name, new_id
from holdfast.store.rows import moment, page_limit
from holdfast.store.transactions import Transactions, Tx, op, reading, writing
from holdfast.types import SUSPENDED, Holder, Lease

_LONGEST_TTL = 24 * 60 * 60


class LeaseMethods(Transactions):
    """The transactions of leases.sql. Every change of a head locks it first; several heads are locked in order."""

    async def join(self, name: str, *, ttl: float = 10.0, agents: Sequence[str] = ()) -> Holder:
        """Register a holder that lives until its deadline, `ttl` seconds from now on the database's clock.

        `agents` are those whose sessions it claims. A session of an agent that no holder claims shows that it waits for a worker.
        """
        self._refuse_inherited()
        return await self._unfinished.run_or_undo(self._enter(name, ttl, agents), self.leave)

    async def _enter(self, name: str, ttl: float, agents: Sequence[str]) -> Holder:
        holder_id = new_id()
        locked = await self._lock_beacon(holder_id)
        try:
            return await self._join(holder_id, name, ttl, agents, locked)
        except BaseException:
            await self._unlock_beacon(holder_id)
            raise

    async def _lock_beacon(self, holder_id: str) -> bool:
        """Take a lock that is released when this process exits; return whether that is possible."""
        del holder_id
        return False

    async def _unlock_beacon(self, holder_id: str) -> None:
        """Release that lock; do nothing if there is none."""

    @writing(repeatable=True)
    def _join(self, id: str, name: str, ttl: float, agents: Sequence[str], beacon: bool) -> Tx[Holder]:
        check_name(name, "holder name")
        if not (math.isfinite(ttl) and 0 < ttl <= _LONGEST_TTL):
            raise BadInput(problem=f"ttl must be a positive number of seconds, at most one day, not {ttl}")
        rows = yield op(
            "join",
            id=id,
            name=name,
            ttl_us=round(ttl * 1_000_000),
            beacon=int(beacon),
            agents=json.dumps([check_name(agent, "agent") for agent in agents]),
        )
        return Holder(id=id, name=name, deadline=moment(rows[0]["deadline"]), ttl=ttl, agents=tuple(agents))

    @writing(repeatable=True)
    def renew(self, holder: Holder) -> Tx[Holder]:
        """Move the deadline of the holder, and with it of all its leases. Raises `HolderLost` if it was removed."""
        rows = yield op("renew", id=holder.id)
        if not rows:
            raise HolderLost(id=holder.id)
        return replace(holder, deadline=moment(rows[0]["deadline"]))

    async def leave(self, holder: Holder) -> None:
        """Release all leases of the holder and remove it. Idempotent."""
        await self._unfinished.run(self._leave_all(holder))

    async def _leave_all(self, holder: Holder) -> None:
        while await self._leave(holder):
            pass
        await self._unlock_beacon(holder.id)

    @writing(wakes=True, repeatable=True)
    def _leave(self, holder: Holder, *, limit: int = 100) -> Tx[int]:
        held = yield op("held_heads", holder=holder.id, limit=limit)
        for row in held:
            yield from self._free(row["session_id"], holder.id, orphaned_by=None)
        if len(held) < limit:
            yield op("remove_holder", id=holder.id)
        return len(held) if len(held) == limit else 0

    @reading
    def holders(self) -> Tx[list[Holder]]:
        """Return all holders, including those past their deadline."""
        rows = yield op("holders")
        return [
            Holder(
                id=row["id"],
                name=row["name"],
                deadline=moment(row["deadline"]),
                ttl=row["ttl_us"] / 1_000_000,
                sessions=row["sessions"],
                agents=tuple(json.loads(row["agents"])),
            )
            for row in rows
        ]

    @reading
    def ready_agents(self) -> Tx[dict[str, int]]:
        """Return how many sessions of each agent are ready for a worker to claim."""
        rows = yield op("ready_agents")
        return {row["agent"]: row["sessions"] for row in rows}

    async def acquire(self, session_id: str, holder: Holder, *, cleaned: bool = False) -> Lease:
        """Acquire the lease of a session that is free or whose holder is past its deadline; the epoch increases by one.

        Raises `SessionBusy` with the holder and its deadline, `SessionNotFound`, `HolderLost`, or `SessionCleaned` unless
        `cleaned` is set.
        """
        # If the caller is cancelled meanwhile, release the lease that it would not know of.
        taking = self._acquire(session_id, holder, new_id(), cleaned)
        return await self._unfinished.run_or_undo(taking, self.release)

    @writing(changes="session_id", repeatable=True)
    def _acquire(self, session_id: str, holder: Holder, tenure: str, cleaned: bool) -> Tx[Lease]:
        head = yield from (self._lock_head if cleaned else self._refuse_cleaned)(session_id)
        if head.tenure == tenure and head.holder == holder.id:
            return Lease(
                session_id=session_id,
                epoch=head.epoch,
                holder=holder.id,
                taken_from=head.orphaned_by,
                seq=head.seq,
            )
        dead: str | None = None
        if head.holder is not None:
            live = yield op("live_holder", id=head.holder)
            if live:
                until = moment(live[0]["deadline"]).isoformat(timespec="seconds")
                raise SessionBusy(session_id=session_id, holder=live[0]["name"], until=until)
            dead = head.holder
        return (yield from self._take(session_id, holder, tenure, dead))

    def _take(self, session_id: str, holder: Holder, tenure: str, dead: str | None) -> Tx[Lease]:
        rows = yield op("take_lease", session_id=session_id, holder=holder.id, tenure=tenure, dead=dead)
        if not rows:
            raise HolderLost(id=holder.id)
        if dead is not None:  # releasing a session requeues its claimed submissions; a dead holder did not
            yield op("requeue_claimed", session_id=session_id)
        return Lease(
            session_id=session_id,
            epoch=rows[0]["epoch"],
            holder=holder.id,
            taken_from=rows[0]["orphaned_by"],
            seq=rows[0]["seq"],
        )

    async def release(self, lease: Lease) -> None:
        """Release the session; if submissions are pending it is ready at once. Idempotent."""
        await self._release(lease)
        lease.lost = lease.released = True

    @writing(changes="lease", wakes=True, repeatable=True)
    def _release(self, lease: Lease) -> Tx[None]:
        yield from self._free(lease.session_id, lease.holder, epoch=lease.epoch, orphaned_by=None)

    async def reclaim(self, *, limit: int = 100) -> list[str]:
        """Free up to `limit` sessions of dead holders, and remove holders that have none left. Return the sessions.

        A holder is dead when its deadline has passed, or as soon as its process is seen to have exited. The submissions that it
        claimed in these sessions are queued again.
        """
        dead = await self._dead_holders()
        if not dead and not await self._any_lost():
            return []  # the usual case, without a lock
        return await self._reclaim(dead, page_limit(limit))

    async def _dead_holders(self) -> list[str]:
        """Return the holders whose processes exited before their deadline. For engines that can detect this."""
        return []

    @reading
    def _any_lost(self) -> Tx[bool]:
        return bool((yield op("lost_heads", limit=1)) or (yield op("expired_holders")))

    @writing(wakes=True, repeatable=True)
    def _reclaim(self, dead: list[str], limit: int) -> Tx[list[str]]:
        if dead:
            yield op("expire_holders", ids=dead)
        lost = yield op("lost_heads", limit=limit)
        freed: list[str] = []
        for row in sorted(lost, key=lambda row: row["session_id"]):  # all lock in the same order
            if (yield from self._free(row["session_id"], row["holder"], orphaned_by=row["holder"])):
                freed.append(row["session_id"])
        for row in (yield op("remove_expired")):
            if json.loads(row["agents"]):  # else it was no worker
                yield op("insert_lost_worker", seq=row["joined_at"], detail=row["name"])
        return freed

    def _free(
        self, session_id: str, holder_id: str, *, orphaned_by: str | None, epoch: int | None = None
    ) -> Tx[bool]:
        """Remove the holder from a session, and make the session ready if it has pending submissions."""
        head = yield from self._lock_head(session_id)
        if head.holder != holder_id or (epoch is not None and head.epoch != epoch):
            return False
        yield op("requeue_claimed", session_id=session_id)
        if head.status == "running":
            yield op("not_running", session_id=session_id)
        control_only = True if head.status in SUSPENDED else None
        yield op(
            "free_head",
            session_id=session_id,
            orphaned_by=orphaned_by,
            control_only=control_only,
            moved=True if head.status == "moved" else None,
        )
        return True
