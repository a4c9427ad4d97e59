"""A turn that failed: the undo of its effects, and the command that continues one or the other."""

from contextlib import aclosing
from typing import TYPE_CHECKING

from holdfast.cli.terminal import one_line, retry_command, undo_effects_command
from holdfast.types import TURNS

if TYPE_CHECKING:
    from rich.text import Text

    from holdfast.api.models import RunInfo
    from holdfast.api.submissions import SubmissionInfo
    from holdfast.client import Client

FAILED = ("failed", "dead")
"""The states of a turn that can be retried."""
_STOPPED = ("failed", "interrupted")


def is_retriable(turn: "SubmissionInfo") -> bool:
    """Return whether a turn failed and a retry may continue it. A retry was refused if the session had continued before."""
    return turn.state in FAILED and "cannot be retried" not in (turn.reason or "")


async def latest_undo(client: "Client", session_id: str) -> "RunInfo | None":
    """Return the latest run of a session if it undoes the effects of a turn."""
    async with aclosing(client.runs(session_id=session_id)) as runs:  # newest first
        async for run in runs:
            return run if "undoes" in run.metadata else None
    return None


async def next_command(
    client: "Client", session_id: str, turn: "SubmissionInfo | None", undo: "RunInfo | None"
) -> "tuple[str, Text] | None":
    """Return the command that continues the undo of effects that has stopped, or the last turn, which failed; and its purpose."""
    if undo is not None and undo.status in _STOPPED:
        session = await client.session(session_id)
        undone = [
            each.submission_id
            async for each in session.submissions()
            if each.kind in TURNS and each.run_id == undo.metadata["undoes"]
        ]
        if undone:
            return "undo", undo_effects_command(session_id, undone[-1])
    return ("retry", retry_command(session_id)) if turn and is_retriable(turn) else None


async def failure_lines(
    client: "Client", session_id: str, turn: "SubmissionInfo | None"
) -> "list[tuple[str, Text]]":
    """Return why the last turn failed, what became of its effects, and the command that continues."""
    undo = await latest_undo(client, session_id)
    lines: list[tuple[str, Text]] = []
    reason = turn and turn.reason
    if undo is not None and turn is not None and turn.run_id == undo.metadata["undoes"]:
        # The reason of the submission also describes how an earlier undo stopped.
        reason = (await client.run(undo.metadata["undoes"]).info()).error or reason
    if turn is not None:
        lines.append(("last turn", one_line(f"{turn.submission_id} {turn.state}: {reason}")))
    if undo is not None and undo.status in _STOPPED:
        lines.append(("effects", one_line(f"the undo has stopped: {undo.error}")))
    elif undo is not None and undo.status == "completed":
        lines.append(("effects", one_line("undone")))
    command = await next_command(client, session_id, turn, undo)
    return lines if command is None else [*lines, command]
