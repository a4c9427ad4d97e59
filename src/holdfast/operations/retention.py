"""Retention: export, clean, rehydrate, erase, sweep. Only administrators can override guards."""

from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import aclosing
from dataclasses import asdict, replace
from typing import IO, Annotated, Final

from pydantic import Field

from holdfast.api.retention import (
    CleanRequest,
    CleanResult,
    EraseResult,
    RehydrateResult,
    RetentionStatus,
    SweepOutcome,
    SweepRequest,
    SweepResult,
)
from holdfast.counting import count
from holdfast.errors import Forbidden, NotCleaned, RetentionRefused, SweepRunning, TooManyExports
from holdfast.media import open_media, to_uri
from holdfast.operations.access import Caller
from holdfast.operations.registry import ClientMethod, SessionId, operation
from holdfast.retention import Outcome, outlook, write_archive
from holdfast.retention import clean as clean_session
from holdfast.retention import erase as erase_session
from holdfast.retention import rehydrate as rehydrate_session
from holdfast.retention.erase import Erased
from holdfast.retention.sweep import DUTY, is_configured
from holdfast.retention.sweeper import sweep_apart

MAX_EXPORTS: Final = 8
"""The maximum number of exports at once. Each needs some 30 MB and, on PostgreSQL, a connection until it ends."""
_S = "/api/sessions/{session_id}"


async def export(caller: Caller, session_id: str, *, gzip: bool = False) -> AsyncGenerator[bytes, None]:
    """Yield the archive of a session, as a snapshot. Raises `TooManyExports` before the first piece."""
    store, service = caller.store, caller.service
    if service.exports >= MAX_EXPORTS:
        raise TooManyExports(limit=MAX_EXPORTS)
    service.exports += 1
    try:
        async with aclosing(
            write_archive(store, open_media(store=store), session_id, compress=gzip)
        ) as pieces:
            first = True
            async for piece in pieces:
                if first:
                    count("retention", action="export")
                first = False
                yield piece
    finally:
        service.exports -= 1


@operation(
    "POST", f"{_S}/clean", "delete", ClientMethod("SessionHandle.clean", "sessions clean"), topic="retention"
)
async def clean(caller: Caller, session_id: SessionId, body: CleanRequest) -> CleanResult:
    """Delete the content of a session, if the guards allow it. An archive can restore it."""
    least = caller.settings.retention_min_idle_days
    if (body.force or body.idle_days < least) and not caller.principal.is_admin:
        required = f"the role admin for force, and for fewer than {least:g} idle days"
        raise Forbidden(required=required, principal=caller.principal.owner)
    cleaned = await clean_session(
        caller.store,
        open_media(store=caller.store),
        session_id,
        actor=caller.actor,
        idle_days=body.idle_days,
        force=body.force,
        archive=body.archive,
        dry_run=body.dry_run,
    )
    if not body.dry_run:
        count("retention", action="clean")
    return CleanResult.of(cleaned)


async def check_rehydrate(caller: Caller, *, force: bool) -> None:
    """Raise if the caller may not rehydrate its session, before the archive is read. `rehydrate_session` checks the session again."""
    if force and not caller.principal.is_admin:
        raise Forbidden(required="the role admin for force", principal=caller.principal.owner)
    if caller.session.status != "cleaned":
        raise NotCleaned(id=caller.session.id, status=caller.session.status)
    await caller.check_stored_bytes()


async def rehydrate(
    caller: Caller, session_id: str, archive: IO[bytes] | None, *, force: bool
) -> RehydrateResult:
    """Restore a cleaned session from an archive, or from the stored archive if there is none."""
    await check_rehydrate(caller, force=force)
    media = open_media(store=caller.store)
    restored = await rehydrate_session(
        caller.store, media, session_id, archive, actor=caller.actor, force=force
    )
    count("retention", action="rehydrate")
    return RehydrateResult(
        session_id=session_id, archive_sha256=restored.archive_sha256, restored=dict(restored.restored)
    )


@operation("DELETE", _S, "delete", ClientMethod("SessionHandle.erase", "sessions erase"), topic="retention")
async def erase(
    caller: Caller,
    session_id: SessionId,
    children: Annotated[
        bool, Field(description="Also erase the sessions of its delegate runs, if they have the same owner.")
    ] = False,
) -> EraseResult:
    """Erase a session permanently: content, archive and media. A tombstone and an audit entry remain.

    Without the scope `delete`, the guards of a clean apply: nothing is pending, and the session was idle for
    `retention_min_idle_days`.
    """
    guarded = "delete" not in caller.principal.scopes
    try:
        erased = await erase_session(
            caller.store,
            open_media(store=caller.store),
            session_id,
            actor=caller.actor,
            children=children,
            idle_days=caller.settings.retention_min_idle_days if guarded else None,
        )
    except RetentionRefused as error:
        if guarded and error.facts["guard"] in {"pending", "cursor", "idle"}:
            hint = "Wait, or use a token with the scope delete."
            raise RetentionRefused(**error.facts | {"hint": hint}) from None
        raise
    count("retention", action="erase")
    return EraseResult(
        session_id=session_id,
        erased_at=erased.erased_at,
        deleted=dict(erased.deleted),
        children=list(_ids(erased.children)),
        files_pending=erased.files_pending,
    )


def _ids(children: Iterable[Erased]) -> Iterator[str]:
    for child in children:
        yield child.session_id
        yield from _ids(child.children)


@operation(
    "GET",
    f"{_S}/retention",
    "read",
    ClientMethod("SessionHandle.retention", "sessions retention"),
    topic="retention",
)
async def read_outlook(caller: Caller, session_id: SessionId) -> RetentionStatus:
    """Show which policy applies to a session, when the session is due, and any check that prevents the action now."""
    result = await outlook(caller.store, session_id)
    terms = result.terms
    return RetentionStatus(
        session_id=session_id,
        policy=result.policy,
        action=terms and terms.action,
        idle_days=terms and terms.idle_days,
        max_age_days=terms and terms.max_age_days,
        keep_last_runs=terms and terms.keep_last_runs,
        rehydrated_at=result.rehydrated_at,
        due_at=result.due_at,
        held_by=result.held_by,
        guard=result.guard,
        problem=result.problem,
        cleaned_at=result.cleaned_at,
        archive=None if result.archive is None else to_uri(result.archive),
    )


@operation("POST", "/api/retention/sweep", "admin", ClientMethod("Client.sweep", "sweep"), topic="retention")
async def sweep(caller: Caller, body: SweepRequest) -> SweepResult:
    """Apply the retention policies now, and return the result for each session."""
    outcomes: list[Outcome] = []
    done = await sweep_apart(
        caller.store,
        actor=caller.actor,
        dry_run=body.dry_run,
        limit=body.limit,
        on_outcome=outcomes.append,
    )
    if done is None:
        duty = await caller.store.duty(DUTY)
        raise SweepRunning(holder=duty.holder or "another" if duty else "another")
    if not is_configured(caller.store):
        problem = "There is no retention policy. Set HOLDFAST_RETENTION, or [[retention]] in holdfast.toml."
        done = replace(done, problem=problem)
    return SweepResult(items=[SweepOutcome.of(outcome) for outcome in outcomes], **asdict(done))
