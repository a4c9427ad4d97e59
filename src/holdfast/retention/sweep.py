"""The sweep: find the sessions that are due by the policies, and clean, archive or erase them one by one.

The cost is proportional to what is due. Every guard of a clean applies, even before an erasure. Only one sweep runs at a time,
to save work; leases would keep two from doing harm. Sessions that no policy matches are never touched.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime

from holdfast.errors import (
    ArchiveFailed,
    HoldfastError,
    MediaDenied,
    MediaFull,
    MediaUnavailable,
    RetentionRefused,
    SessionErased,
    SessionNotFound,
    StoreError,
)
from holdfast.leases import joined
from holdfast.media import MediaStore, collect
from holdfast.policy import Action, MatchedPolicy, Result
from holdfast.retention.advance_notice import announce_retention
from holdfast.retention.clean import clean
from holdfast.retention.due import candidates, is_idle, kept_sessions, match_due
from holdfast.retention.erase import erase
from holdfast.retention.holding import give_space_back
from holdfast.store import Store
from holdfast.types import Due, Duty, Holder

DUTY = "sweep"
_SUBMISSIONS = 500
_COMMANDS = 200
_SPACE_EVERY = 200
"""After how many sessions their space is returned, so that a long sweep does not need extra space."""
_FAILURES = 3
"""After how many consecutive failures a sweep ends, if their cause would affect the next sessions too."""
_SHARED = (ArchiveFailed, MediaUnavailable, MediaDenied, MediaFull)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result for one session that was due: the policy, and the guard if it was refused."""

    session_id: str
    policy: str
    action: Action
    outcome: Result
    guard: str | None = None
    problem: str | None = None
    deleted: Mapping[str, int] = field(default_factory=dict[str, int])


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """The result of a sweep: sessions by outcome, deleted submissions, shell events and sums of usage, and why it ended early."""

    dry_run: bool
    outcomes: Mapping[str, int] = field(default_factory=dict[str, int])
    submissions: int = 0
    shell_events: int = 0
    blobs: int = 0
    usage: int = 0
    problem: str | None = None
    more: bool = False


def is_configured(store: Store) -> bool:
    """Return whether the settings of a store require a sweep."""
    settings = store.settings
    return (
        any(policy.action is not None for policy in settings.retention)
        or settings.submission_retention_seconds is not None
        or settings.shell_retention_seconds is not None
        or settings.usage_retention_days is not None
    )


async def sweep(
    store: Store,
    media: MediaStore,
    *,
    actor: str,
    dry_run: bool = False,
    every: float = 0.0,
    limit: int | None = None,
    on_outcome: Callable[[Outcome], None] | None = None,
) -> Swept | None:
    """Process everything that is due by the policies, and call `on_outcome` with each outcome.

    Return None if another sweep is running, or ended within `every` seconds. With `limit` it ends after that many sessions; `more` is
    then set if there are more. `dry_run` changes nothing; it also reports sessions that would be due but are on hold, with the guard `hold`.
    """
    if dry_run:
        return await _Sweep(store, media, actor, None, limit, on_outcome).run()
    async with joined(store, f"{DUTY} {actor}"[:200]) as holder:
        announced_at = _announced_at(await store.duty(DUTY))
        if not await store.take_duty(DUTY, holder, every=every):
            return None
        try:
            done = await _Sweep(store, media, actor, holder, limit, on_outcome).run()
            if done.problem is None and not done.more:
                now = await store.now()
                await announce_retention(store, announced_at)
                announced_at = now
        except BaseException:
            with suppress(HoldfastError):  # the duty is free once its holder has left
                await store.leave_duty(DUTY, holder)
            raise
        detail = {
            "outcomes": dict(done.outcomes),
            "submissions": done.submissions,
            "shell_events": done.shell_events,
            "blobs": done.blobs,
            "usage": done.usage,
            "problem": done.problem,
            "announced_at": None if announced_at is None else announced_at.isoformat(),
        }
        await store.leave_duty(DUTY, holder, detail=json.dumps(detail))
        return done


def _announced_at(duty: Duty | None) -> datetime | None:
    """Return when the last sweep announced the sessions that will be due."""
    at = None if duty is None else json.loads(duty.detail).get("announced_at")
    return None if at is None else datetime.fromisoformat(at)


class _Sweep:
    """One pass over everything that is due."""

    def __init__(
        self,
        store: Store,
        media: MediaStore,
        actor: str,
        holder: Holder | None,
        limit: int | None,
        on_outcome: Callable[[Outcome], None] | None,
    ) -> None:
        self._store = store
        self._media = media
        self._actor = actor
        self._holder = holder
        self._dry_run = holder is None
        self._limit = limit
        self._on_outcome = on_outcome
        self._policies = store.settings.retention
        self._outcomes: Counter[str] = Counter()
        self._deletions = 0
        self._released = 0  # deleted references to media, and archives that may have been deleted
        self._failures = 0
        self._problem: str | None = None

    async def run(self) -> Swept:
        """Sweep sessions, then submissions, the log of shell commands and old usage, then return the freed space."""
        more = await self._sessions()
        submissions = shell_events = blobs = usage = 0
        if not more and self._problem is None and not self._dry_run:
            submissions = await self._submissions()
            shell_events = await self._shell()
            usage = await self._usage()
        if self._released and not self._dry_run:
            blobs = (await collect(self._media)).blobs
        if self._deletions or submissions or shell_events or blobs or usage:
            await give_space_back(self._store)
        return Swept(
            dry_run=self._dry_run,
            outcomes=dict(self._outcomes),
            submissions=submissions,
            shell_events=shell_events,
            blobs=blobs,
            usage=usage,
            problem=self._problem,
            more=more,
        )

    async def _sessions(self) -> bool:
        """Process due sessions until none is left, the limit is reached, or a problem stops the sweep."""
        if not any(policy.action for policy in self._policies):
            return False
        kept = await kept_sessions(self._store)
        for agent in await self._store.agents():
            async for due, rule in candidates(self._store, agent, kept, held=self._dry_run):
                if rule is None:
                    continue
                if self._limit is not None and self._outcomes.total() >= self._limit:
                    return True
                await self._act(due, rule)
                if self._problem is not None:
                    return True
        return False

    async def _act(self, due: Due, rule: MatchedPolicy) -> None:
        """Apply the policy to one session. A failure does not stop the others."""
        policy, action = rule.policy, rule.policy.action or "clean"
        idle_days = policy.idle_days if policy.idle_days and is_idle(policy, due) else 0.0
        outcome: Result = "failed"
        guard = problem = None
        deleted: Mapping[str, int] = {}
        try:
            deleted = await self._carry_out(due.session_id, action, idle_days, rule)
            outcome = "dry_run" if self._dry_run else "erased" if action == "erase" else "cleaned"
            self._failures = 0
        except RetentionRefused as error:
            outcome, guard, problem = "refused", str(error.facts["guard"]), str(error)
            self._failures = 0
        except (SessionNotFound, SessionErased):
            return  # it was erased meanwhile
        except HoldfastError as error:
            problem = str(error)
            self._failures += isinstance(error, _SHARED)
            if isinstance(error, StoreError) or self._failures >= _FAILURES:
                self._problem = problem
        self._outcomes[outcome] += 1
        if self._on_outcome is not None:
            self._on_outcome(
                Outcome(
                    session_id=due.session_id,
                    policy=rule.name,
                    action=action,
                    outcome=outcome,
                    guard=guard,
                    problem=problem,
                    deleted=deleted,
                )
            )
        if outcome in {"cleaned", "erased"}:
            self._deletions += 1
            self._released += deleted.get("blob_references", 0) + (action == "erase")
            if self._deletions % _SPACE_EVERY == 0:
                await give_space_back(self._store)

    async def _carry_out(
        self, session_id: str, action: Action, idle_days: float, rule: MatchedPolicy
    ) -> Mapping[str, int]:
        store, media, actor = self._store, self._media, self._actor
        if action == "erase" and not self._dry_run:
            erased = await erase(
                store,
                media,
                session_id,
                actor=actor,
                idle_days=idle_days,
                grace_days=rule.grace_days,
                policy=rule.name,
                holder=self._holder,
            )
            return erased.deleted
        cleaned = await clean(
            store,
            media,
            session_id,
            actor=actor,
            idle_days=idle_days,
            grace_days=rule.grace_days,
            archive="media" if action == "archive" else None,
            dry_run=self._dry_run,
            policy=rule.name,
            holder=self._holder,
        )
        return cleaned.deleted

    async def _submissions(self) -> int:
        """Delete submissions that ended long enough ago, except those of sessions that a policy holds."""
        keep = self._store.settings.submission_retention_seconds
        if keep is None:
            return 0
        deleted = 0
        cursor: str | None = None
        while True:
            page = await self._store.due("submissions", older_than=keep, cursor=cursor, limit=_SUBMISSIONS)
            ids = [due.submission_id for due in page.items if due.submission_id and not self._holds(due)]
            if ids:
                deleted += await self._store.drop_submissions(ids)
            cursor = page.next_cursor
            if cursor is None:
                return deleted

    def _holds(self, due: Due) -> bool:
        rule = match_due(self._policies, due)
        return rule is not None and rule.policy.hold

    async def _shell(self) -> int:
        keep = self._store.settings.shell_retention_seconds
        deleted = 0
        while keep is not None and (
            count := await self._store.purge_commands(older_than=keep, limit=_COMMANDS)
        ):
            deleted += count
        return deleted

    async def _usage(self) -> int:
        days = self._store.settings.usage_retention_days
        deleted = 0
        while days is not None and (count := await self._store.drop_usage(days)):
            deleted += count
        while days is not None and await self._store.drop_budgets(days):
            pass
        return deleted
