"""Compaction: a shorter history replaces the one that a session has. The old one stays on record."""

import json
from collections.abc import Awaitable, Sequence
from copy import deepcopy

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, UserPromptPart

from holdfast.errors import Conflict
from holdfast.ids import new_id
from holdfast.record.history import open_history
from holdfast.record.recovery import find_resume_point
from holdfast.runtime.agents import AgentSetup, Compactor
from holdfast.runtime.leased import LeasedSession
from holdfast.runtime.turn import Turn
from holdfast.types import Batch, Checkpoint, NewEvent, Session, Submission

_PROMPT = "Summarize this conversation for yourself: goals, decisions, facts, open points. Be brief."


async def prepare_compaction(
    leased: LeasedSession, session: Session, submission: Submission
) -> tuple[Turn, Awaitable[Batch]]:
    """Return a turn for the compaction, and the code of the agent that makes its batch. Raises `Conflict`."""
    point = await find_resume_point(leased.store, leased.id, None)
    at, messages = point.checkpoint, point.messages
    if at is None or not messages:
        raise Conflict(problem="the session has no messages to compact")
    if len(messages) != at.length:
        raise Conflict(problem="the last run was cut off; send a message before you compact the session")
    setup = leased.setup(session)
    turn = Turn(
        lease=leased.lease,
        submission=submission,
        checkpoint=at,
        recorded=messages,
        limit=setup.run_timeout,
    )

    async def compact() -> Batch:
        # A copy: it may change messages in place, and what it changed is found by comparison.
        shorter = await (setup.compact or _summary_by(setup))(deepcopy(messages))
        history = await open_history(leased.store, leased.id, at, messages)
        growth = history.grow(list(shorter))
        payload = json.dumps({"before": len(messages), "after": len(shorter)})
        return Batch(
            segments=growth.segments,
            messages=growth.messages,
            checkpoints=[Checkpoint(id=new_id(), segment=history.segment, length=len(shorter))],
            events=[NewEvent(kind="compacted", payload=payload)],
        )

    return turn, compact()


def _summary_by(setup: AgentSetup) -> Compactor:
    async def compact(messages: Sequence[ModelMessage]) -> Sequence[ModelMessage]:
        result = await Agent(setup.agent.model).run(_PROMPT, message_history=messages)
        said = f"Summary of the conversation so far:\n\n{result.output}"
        return [ModelRequest(parts=[UserPromptPart(said)]), ModelResponse(parts=[TextPart("Understood.")])]

    return compact
