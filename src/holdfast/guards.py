"""The guards against deleting a session. They use only a `RetentionState`, which the caller has read, before a deletion under the session's lock."""

from holdfast.errors import RetentionRefused
from holdfast.types import RetentionState


def refuse_cleaning(state: RetentionState, *, idle: float, grace: float = 0.0, force: bool = False) -> None:
    """Raise `RetentionRefused` for the first guard that forbids cleaning the session, and describe how to lift it.

    `force` lifts all guards but running and hold. Once the deletion of a session has begun, only a hold stops it: it cannot be undone.
    """
    _refuse_always(state)
    if state.status == "moved" and not force:
        raise _refused(
            state,
            "moved",
            "it was moved to another store",
            "Check that it exists there, then use force, or erase it.",
        )
    if force or (state.status == "cleaning" and state.cleaned_at is not None):
        return
    if state.pending:
        raise _refused(
            state,
            "pending",
            f"{state.pending} submissions have not ended",
            "Wait until they have ended, or use force to drop them.",
            pending=state.pending,
        )
    if state.awaited_by is not None:
        raise _refused(
            state,
            "pending",
            f"it belongs to a delegate of session {state.awaited_by}, which has submissions that have not ended",
            "Wait until they have ended, or use force.",
        )
    if state.behind:
        raise _refused(
            state,
            "cursor",
            f"the cursor of {state.behind[0]} is behind event {state.seq}"
            + (f", and {len(state.behind) - 1} others are too" if len(state.behind) > 1 else ""),
            "Let the consumer catch up and move its cursor, or use force.",
            consumers=list(state.behind),
            seq=state.seq,
        )
    if state.idle < idle:
        raise _refused(
            state,
            "idle",
            f"it was active {_duration(state.idle)} ago",
            f"Wait {_duration(idle - state.idle)}, or require fewer idle days, or use force.",
            idle_seconds=round(state.idle),
            needed_seconds=round(idle),
        )
    if state.rehydrated_at is not None and (state.now - state.rehydrated_at).total_seconds() < grace:
        since = (state.now - state.rehydrated_at).total_seconds()
        raise _refused(
            state,
            "rehydrated",
            f"it was restored from an archive {_duration(since)} ago",
            f"Wait {_duration(grace - since)}, or require fewer idle days, or use force.",
            rehydrated_at=state.rehydrated_at.isoformat(),
            needed_seconds=round(grace),
        )


def refuse_erasing(state: RetentionState) -> None:
    """Raise `RetentionRefused` if the session is running or on hold. Nothing else prevents an erasure."""
    _refuse_always(state)


def refuse_on_hold(state: RetentionState) -> None:
    """Raise `RetentionRefused` if the session is on hold."""
    if state.hold:
        raise _refused(state, "hold", "it is on hold", "Lift the hold first.")


def _refuse_always(state: RetentionState) -> None:
    refuse_on_hold(state)
    if state.holder is not None:
        raise _refused(
            state,
            "running",
            f"it is running, held by {state.holder}",
            "Interrupt it, or wait until it ends; force does not override this.",
            holder=state.holder,
        )
    if state.commands:
        raise _refused(
            state,
            "running",
            f"{state.commands} of its shell commands are running",
            "Stop them, or wait until they end; force does not override this.",
            commands=state.commands,
        )


def _duration(seconds: float) -> str:
    """Return a duration in its two largest units."""
    left = round(seconds)
    words: list[str] = []
    for unit, size in (("day", 86_400), ("hour", 3600), ("minute", 60), ("second", 1)):
        number, left = divmod(left, size)
        if number:
            words.append(f"{number} {unit}{'' if number == 1 else 's'}")
        elif words:
            break
    return " ".join(words[:2]) or "0 seconds"


def _refused(state: RetentionState, guard: str, problem: str, hint: str, **facts: object) -> RetentionRefused:
    return RetentionRefused(session_id=state.session_id, guard=guard, problem=problem, hint=hint, **facts)
