"""Hold a session while it is cleaned, restored or erased, so that all other writers are fenced."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

from holdfast.errors import HoldfastError, RetentionRefused, SessionBusy, StoreError
from holdfast.leases import acquire, joined
from holdfast.policy import match_policy
from holdfast.store import Store
from holdfast.types import Holder, Lease

NAME = "retention"
"""The name under which it joins as a holder."""
_TRIES = 4
_PAUSE_SECONDS = 0.25
_PAGES = 1000
"""How many free pages are returned to the file system at a time."""


@asynccontextmanager
async def hold_for_retention(
    store: Store, session_id: str, holder: Holder | None = None
) -> AsyncGenerator[Lease, None]:
    """Hold the lease of a session, cleaned or not, while the block runs, with a holder of its own unless one is given.

    Raises `RetentionRefused` if another live holder has it. With a given `holder`, which has many sessions to process, it
    does not wait for a busy session.
    """
    if holder is None:
        async with joined(store, NAME) as own:
            yield await _acquire(store, session_id, own, _TRIES)
        return
    lease = await _acquire(store, session_id, holder, 1)
    try:
        yield lease
    finally:
        with suppress(HoldfastError):  # the session was erased, or its holder expires
            await store.release(lease)


async def refuse_policy_hold(store: Store, session_id: str) -> None:
    """Raise `RetentionRefused` if a policy holds the session."""
    policies = store.settings.retention
    if not any(policy.hold for policy in policies):
        return
    session = await store.session(session_id)
    rule = match_policy(
        policies,
        agent=session.agent,
        metadata=session.metadata,
        created_at=session.created_at,
        active_at=session.active_at,
    )
    if rule is not None and rule.policy.hold:
        raise RetentionRefused(
            session_id=session_id,
            guard="hold",
            problem=f"the policy {rule.name} holds it",
            hint="Change the policy in the settings.",
        )


async def give_space_back(store: Store) -> None:
    """Return freed space to the file system, as far as that is possible now."""
    with suppress(StoreError):  # the next deletion returns it
        left = await store.shrink(limit=_PAGES)
        while left and (now := await store.shrink(limit=_PAGES)) < left:
            left = now


async def _acquire(store: Store, session_id: str, holder: Holder, tries: int) -> Lease:
    try:
        return await acquire(store, session_id, holder, cleaned=True, tries=tries, pause=_PAUSE_SECONDS)
    except SessionBusy as error:
        raise RetentionRefused(
            session_id=session_id,
            guard="running",
            problem=f"it is running, held by {error.facts['holder']} until {error.facts['until']}",
            holder=error.facts["holder"],
            until=error.facts["until"],
            hint="Interrupt it, or wait until it ends; force does not override this.",
        ) from error
