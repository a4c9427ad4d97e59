"""What stands between a session and its deletion. Pure: who asks has read how the session stands, under its lock."""

from datetime import timedelta

from holdfast.errors import RetentionRefused
from holdfast.types import Standing


def refuse_cleaning(standing: Standing, *, idle: float, force: bool) -> None:
    """Raise `RetentionRefused` with the first guard that does not let the session be cleaned, and what would lift it.

    `force` lifts all but running and hold. A session whose deletion has begun only heeds hold: it cannot go back.
    """
    _refuse_always(standing)
    if force or (standing.status == "cleaning" and standing.cleaned_at is not None):
        return
    if standing.pending:
        raise _refused(
            standing,
            "pending",
            f"{standing.pending} submissions have not ended",
            "Wait until they have, or use force to drop them.",
        )
    if standing.behind:
        raise _refused(
            standing,
            "cursor",
            f"the cursor of {standing.behind[0]} is behind event {standing.seq}"
            + (f", and {len(standing.behind) - 1} others are" if len(standing.behind) > 1 else ""),
            "Let the consumer read on and move its cursor, or use force.",
        )
    if standing.idle < idle:
        lacks = timedelta(seconds=round(idle - standing.idle))
        raise _refused(
            standing,
            "idle",
            f"it was active {timedelta(seconds=round(standing.idle))} ago",
            f"Wait for {lacks}, or name fewer idle days (`--idle-days 0`), or use force.",
        )


def refuse_erasing(standing: Standing) -> None:
    """Raise `RetentionRefused` if the session runs or is on hold; nothing else stands against an erasure."""
    _refuse_always(standing)


def _refuse_always(standing: Standing) -> None:
    if standing.hold:
        raise _refused(
            standing, "hold", "it is on hold", "Lift the hold first: `holdfast sessions hold ID --off`."
        )
    if standing.holder is not None:
        raise _refused(
            standing,
            "running",
            f"it is running, held by {standing.holder}",
            "Interrupt it, or wait for its end; force does not help.",
        )
    if standing.commands:
        raise _refused(
            standing,
            "running",
            f"{standing.commands} of its shell commands are running",
            "Stop them, or wait for their end; force does not help.",
        )


def _refused(standing: Standing, guard: str, problem: str, lift: str) -> RetentionRefused:
    return RetentionRefused(session_id=standing.session_id, guard=guard, problem=problem, lift=lift)
