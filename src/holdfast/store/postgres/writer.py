"""Write to PostgreSQL: one connection commits the batches of all sessions in groups.

A group is one statement: the fence and every arm of write.sql. A refused batch simply has no rows in it.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import asyncpg

from holdfast.counting import count
from holdfast.errors import BudgetReached, Conflict
from holdfast.store.hub import READY
from holdfast.store.postgres.connections import (
    ANSWER_SECONDS,
    GONE,
    NO_TIMEOUT,
    SCAN_BEGINS,
    SCAN_ENDS,
    Connections,
    committing,
    cut,
    is_open,
)
from holdfast.store.rows import CutRows, Row
from holdfast.store.sql import library
from holdfast.store.sql.library import Script
from holdfast.store.transactions import Statement, lease_lost, op
from holdfast.store.write import ARMS, Writing, charged, missing, unstored
from holdfast.types import Lease

if TYPE_CHECKING:
    from holdfast.store.postgres.connections import Connection

PATIENCE_SECONDS = 6.0
"""How long a call is retried while the server is unavailable. Shorter than a lease lives."""
PAUSE_SECONDS = 0.1
_LARGEST_GROUP = 256
_LARGEST_GROUP_BYTES = 64 * 1024 * 1024

_LOST = "the connection broke during a write, and another holder has acquired the session since"
AGAIN = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError)
"""Rolled back because of another transaction: a retry may succeed at once."""


async def execute(connection: Any, statement: Statement) -> Sequence[Row]:
    """Run one statement and return its rows."""
    params = statement.params
    if statement.slow and hasattr(connection, "unlimit"):
        await connection.unlimit()
    if statement.scans:
        await connection.execute(SCAN_BEGINS, timeout=ANSWER_SECONDS)
        rows = await execute(connection, replace(statement, scans=False))
        await connection.execute(SCAN_ENDS, timeout=ANSWER_SECONDS)
        return rows
    if isinstance(statement, Script):
        if not params:  # a migration may be any kind of statement
            await connection.execute(statement.text, timeout=NO_TIMEOUT)
            return ()
        source = statement.text
    else:
        source = library.text(statement.name, "postgres", library.given(statement.name, params))
    if statement.sized:
        source = library.bounded(source, statement.sized)
        params = {**params, "page_bytes": statement.page_bytes}
    text, names = library.numbered(source)
    timeout = NO_TIMEOUT if statement.slow else ANSWER_SECONDS
    rows = await connection.fetch(text, *(params[name] for name in names), timeout=timeout)
    return CutRows(rows) if statement.sized and rows and rows[-1]["cut_"] else rows


@cache
def _group(arms: tuple[str, ...]) -> str:
    """Return the statement that writes a group of batches with these arms."""
    parts = [f"WITH head AS (\n{library.text('fence_group', 'postgres')}\n)"]
    parameter = 5
    for name in arms:
        arrays: list[str] = []
        for _, kind in ARMS[name]:
            parameter += 1
            arrays.append(f"${parameter}::{kind}[]")
        columns = ", ".join(column for column, _ in ARMS[name])
        rows = (  # names and types are constants, values are parameters
            f"SELECT r.*, head.seq AS head_seq, head.number AS session FROM unnest({', '.join(arrays)}) AS r({columns})"  # noqa: S608
            " JOIN head ON head.session_id = r.session_id"
        )
        parts += [f", {name}_rows AS ({rows})", f", {name} AS (\n{library.text(name, 'postgres')}\n)"]
    changed = "0"
    if "change_submissions" in arms:
        changed = "(SELECT count(*) FROM change_submissions c WHERE c.session_id = head.session_id)"
    return "\n".join([*parts, f"SELECT session_id, seq, {changed} AS changed FROM head"])  # noqa: S608


_SEPARATE = frozenset({"drop_drafts", "refer_blobs"})
"""Arms that are separate statements, after the others."""


class _BatchJob:
    __slots__ = ("future", "lease", "writing")

    def __init__(self, lease: Lease, writing: Writing) -> None:
        self.lease = lease
        self.writing = writing
        self.future: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def succeed(self, seq: int) -> None:
        self.lease.writes += 1
        self.lease.runs |= self.writing.runs
        if self.writing.release:
            self.lease.lost = self.lease.released = True
        if not self.future.done():
            self.future.set_result(seq)

    def fail(self, error: BaseException) -> None:
        self.writing.fail(error)
        if not self.future.done():
            self.future.set_exception(error)


class Committer:
    """Writes the waiting batches in groups, with at most one batch per session in a group."""

    def __init__(
        self,
        connections: Connections,
        translate: Callable[[BaseException], BaseException],
        announce: Callable[[str], None],
    ) -> None:
        self._connections = connections
        self._translate = translate
        self._announce = announce
        self._connection: Connection | None = None
        self._waiting: deque[_BatchJob] = deque()
        self._group: list[_BatchJob] = []
        self._wake = asyncio.Event()
        self._closing = False
        self._task = asyncio.create_task(self._work(), name="holdfast-committer")
        self._task.add_done_callback(self._end)

    async def submit(self, lease: Lease, writing: Writing) -> int:
        """Write a batch and return after the commit. It is written even if the caller is cancelled meanwhile."""
        job = _BatchJob(lease, writing)
        self._waiting.append(job)
        self._wake.set()
        if self._task.done():
            self._end(self._task)
        return await job.future

    async def close(self) -> None:
        """Write the waiting batches, then disconnect."""
        self._closing = True
        self._wake.set()
        await asyncio.wait([self._task])
        if self._connection is not None:
            await self._connections.disconnect(self._connection)

    async def _work(self) -> None:
        while self._waiting or not self._closing:
            if not self._waiting:
                self._wake.clear()
                await self._wake.wait()
                continue
            self._group = self._next_group()
            try:
                await self._commit(self._group)
            except Exception as error:  # noqa: BLE001 - delivered to the callers
                for job in self._group:
                    job.fail(self._translate(error))

    def _end(self, task: "asyncio.Task[None]") -> None:
        """Fail what was not written, if the program has cancelled this task with all others."""
        del task
        error = self._translate(ConnectionError("the task that writes was cancelled"))
        for job in (*self._group, *self._waiting):
            if not job.future.done():
                job.lease.lost = True
                job.fail(error)
        self._group = []
        self._waiting.clear()

    def _next_group(self) -> list[_BatchJob]:
        """Return the jobs to write at once: at most one per session, so that no lease can pass for another."""
        group: dict[str, _BatchJob] = {}
        later: list[_BatchJob] = []
        size = 0
        while self._waiting and len(group) < _LARGEST_GROUP and size < _LARGEST_GROUP_BYTES:
            job = self._waiting.popleft()
            if job.lease.lost:
                job.fail(lease_lost(job.lease, "it was released or lost before"))
            elif job.writing.chain is not None and job.writing.chain.failed is not None:
                job.fail(job.writing.chain.failed)
            elif job.lease.session_id in group:
                later.append(job)
            else:
                group[job.lease.session_id] = job
                size += job.writing.size
        self._waiting.extendleft(reversed(later))
        return list(group.values())

    async def _commit(self, group: list[_BatchJob]) -> None:
        """Retry the group until the server responds or the time is up. Then its outcome is unknown, and its leases are lost."""
        deadline = asyncio.get_running_loop().time() + PATIENCE_SECONDS
        sent_before = False
        while True:
            try:
                if not is_open(self._connection):
                    await self._drop()
                    self._connection = await self._connections.connect()
                await self._send(group, sent_before=sent_before)
            except AGAIN as error:
                if len(group) > 1:
                    await self._commit_separately(group, error)
                    return
                await asyncio.sleep(PAUSE_SECONDS)
            except GONE as error:
                if isinstance(error, ValueError):
                    await self._commit_separately(group, error)
                    return
                sent_before = True
                await self._drop()
                if self._closing or asyncio.get_running_loop().time() > deadline:
                    for job in group:
                        job.lease.lost = True
                    raise
                await asyncio.sleep(PAUSE_SECONDS)
            except (asyncpg.PostgresError, ValueError, Conflict, BudgetReached) as error:
                await self._commit_separately(group, error)
                return
            else:
                return

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            cut(connection)
            await self._connections.disconnect(connection)

    async def _commit_separately(self, group: list[_BatchJob], error: Exception) -> None:
        """Write each batch on its own, because one of them cannot be written and the others must not fail with it."""
        if len(group) == 1:
            group[0].fail(self._translate(error))
            return
        for job in group:
            await self._commit([job])

    async def _send(self, group: list[_BatchJob], *, sent_before: bool) -> None:
        assert self._connection is not None  # noqa: S101
        present = {arm for job in group for arm in job.writing.rows}
        arms = tuple(arm for arm in ARMS if arm in present and arm not in _SEPARATE)
        values: list[Sequence[Any]] = [
            [job.lease.session_id for job in group],
            [job.lease.epoch for job in group],
            [job.lease.holder for job in group],
            [job.lease.writes for job in group],
            [job.writing.count for job in group],
        ]
        for arm in arms:
            values += zip(*(row for job in group for row in job.writing.rows.get(arm, ())), strict=True)
        written, ready = await self._fetch(arms, values, group)
        count("commit_batches", len(group))
        if sent_before:
            # Before any caller gets its result: if the connection breaks here, all of them are sent again unchanged.
            for job in group:
                if job.lease.session_id not in written and (seq := await self._found(job)) is not None:
                    written[job.lease.session_id] = seq
        for job in group:
            seq = written.get(job.lease.session_id)
            if seq is None:
                error = lease_lost(job.lease, "another holder has acquired it, or it was released")
                job.fail(self._translate(ConnectionError(_LOST)) if sent_before else error)
            else:
                job.succeed(seq)
                self._announce(job.lease.session_id)
        if ready:
            self._announce(READY)

    async def _fetch(
        self, arms: tuple[str, ...], values: list[Sequence[Any]], group: list[_BatchJob]
    ) -> tuple[dict[str, int], bool]:
        """Send the statement, as a transaction of its own if it is the only one. Also return whether a released session has pending submissions.

        Changes of submissions are checked before the commit. Drafts are deleted by a later statement, which also sees those
        that were written while the first one waited for the head. References to media are added, and sessions released, after it as
        well: a submission that was queued meanwhile counts as pending.
        """
        assert self._connection is not None  # noqa: S101
        done = [row for job in group for row in job.writing.rows.get("drop_drafts", ())]
        referring = [job for job in group if "refer_blobs" in job.writing.rows]
        releasing = [job.lease.session_id for job in group if job.writing.release]
        charging = [job for job in group if job.writing.charges]
        naming = [job for job in group if not job.writing.runs <= job.lease.runs]
        ready = False
        alone = not ("change_submissions" in arms or done or referring or releasing or naming or charging)
        if alone and self._connections.keeps_state:
            with committing(self._connection):
                rows = await self._connection.fetch(_group(arms), *values, timeout=NO_TIMEOUT)
        else:
            jobs = {job.lease.session_id: job for job in group}
            async with self._connections.transaction(self._connection):
                await self._name_runs(naming)
                rows = await self._connection.fetch(_group(arms), *values, timeout=ANSWER_SECONDS)
                for row in rows:
                    if problem := missing(row["changed"], jobs[row["session_id"]].writing):
                        raise problem
                accepted = {row["session_id"] for row in rows}
                kept = [row for row in done if row[0] in accepted]
                if kept:
                    await self._connection.execute(
                        library.text("drop_drafts", "postgres"),
                        *map(list, zip(*kept, strict=True)),
                        timeout=ANSWER_SECONDS,
                    )
                await self._refer([job for job in referring if job.lease.session_id in accepted])
                await self._charge([job for job in charging if job.lease.session_id in accepted])
                if freed := accepted.intersection(releasing):
                    ready = await self._free(sorted(freed))
        return {row["session_id"]: row["seq"] for row in rows}, ready

    async def _name_runs(self, jobs: list[_BatchJob]) -> None:
        """Give a number to each run that a session has not named yet. Only under the newest lease, so that no number is taken twice."""
        if not jobs:
            return
        leases = [job.lease for job in jobs]
        ours = {
            "session_ids": [lease.session_id for lease in leases],
            "epochs": [lease.epoch for lease in leases],
            "holders": [lease.holder for lease in leases],
        }
        locked = {row["session_id"] for row in await execute(self._connection, op("lock_held_heads", **ours))}
        names = [
            (job.lease.session_id, run_id)
            for job in jobs
            if job.lease.session_id in locked
            for run_id in job.writing.runs - job.lease.runs
        ]
        if names:
            session_ids, run_ids = map(list, zip(*names, strict=True))
            await execute(self._connection, op("name_runs", session_ids=session_ids, run_ids=run_ids))

    async def _free(self, session_ids: list[str]) -> bool:
        """Release sessions whose heads are locked; return whether one has pending submissions."""
        await execute(self._connection, op("requeue_all_claimed", session_ids=session_ids))
        return any(
            row["ready"] for row in await execute(self._connection, op("free_heads", session_ids=session_ids))
        )

    async def _refer(self, jobs: list[_BatchJob]) -> None:
        """Add the media references of these batches. All referenced media must be stored."""
        if not jobs:
            return
        assert self._connection is not None  # noqa: S101
        pairs = [row for job in jobs for row in job.writing.rows["refer_blobs"]]
        text = library.text("refer_blobs", "postgres")
        rows = await self._connection.fetch(
            text, *map(list, zip(*pairs, strict=True)), timeout=ANSWER_SECONDS
        )
        referred = {row["session_id"]: row["referred"] for row in rows}
        for job in jobs:
            if problem := unstored(referred.get(job.lease.session_id, 0), job.writing):
                raise problem

    async def _charge(self, jobs: list[_BatchJob]) -> None:
        """Add to the sums of budgets. Raises `BudgetReached` if a batch starts a request although one of its budgets is used up."""
        if not jobs:
            return
        assert self._connection is not None  # noqa: S101
        added = [row for job in jobs for row in job.writing.charges]
        text = library.text("charge_budgets", "postgres")
        rows = await self._connection.fetch(
            text, *map(list, zip(*added, strict=True)), timeout=ANSWER_SECONDS
        )
        sums = [charged(tuple(row)) for row in rows]
        for job in jobs:
            if problem := job.writing.over_budget(sums):
                raise problem

    async def _found(self, job: _BatchJob) -> int | None:
        """Return the event number after a batch that was already written, although its response was lost; None if that is unknown."""
        assert self._connection is not None  # noqa: S101
        async with self._connections.transaction(self._connection, snapshot=True):
            heads = await execute(self._connection, op("head", session_id=job.lease.session_id))
        for head in heads:
            ours = (head["epoch"], head["holder"], head["writes"])
            holder = None if job.writing.release else job.lease.holder
            if ours == (job.lease.epoch, holder, job.lease.writes + 1):
                return head["written"]
        return None
