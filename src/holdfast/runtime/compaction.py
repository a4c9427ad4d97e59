"""Compaction: replace the history of a session by a shorter one. The old history remains recorded."""

import json
from collections.abc import Awaitable, Sequence
from copy import deepcopy
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, UserPromptPart

from holdfast.errors import Conflict
from holdfast.ids import new_id
from holdfast.jsontext import lenient_json
from holdfast.record.capability import response_facts
from holdfast.record.history import open_history
from holdfast.record.recovery import find_resume_point
from holdfast.runtime.leased import LeasedSession
from holdfast.runtime.turn import Turn
from holdfast.types import Batch, Checkpoint, NewEvent, Session, Submission

_PROMPT = "Summarize this conversation for yourself: goals, decisions, facts, open points. Be brief."


async def prepare_compaction(
    leased: LeasedSession, session: Session, submission: Submission
) -> tuple[Turn, Awaitable[Batch]]:
    """Return a turn for the compaction, and the agent code that produces its batch. Raises `Conflict`."""
    point = await find_resume_point(leased.store, leased.id, None)
    at, messages = point.checkpoint, point.messages
    if at is None or not messages:
        raise Conflict(problem="the session has no messages to compact")
    if len(messages) != at.length:
        raise Conflict(problem="the last run was interrupted; send a message before you compact the session")
    setup = leased.setup(session)
    model = setup.model_of(session) or setup.agent.model
    turn = Turn(
        lease=leased.lease,
        submission=submission,
        checkpoint=at,
        recorded=messages,
        limit=setup.run_timeout,
    )

    async def compact() -> Batch:
        requests: list[NewEvent] = []
        # A copy: the compactor may change messages in place, and changes are found by comparison.
        if setup.compact is not None:
            shorter = await setup.compact(deepcopy(messages))
        else:
            shorter, requests = await _summarize(model, deepcopy(messages))
        history = await open_history(leased.store, leased.id, at, messages)
        growth = history.grow(list(shorter))
        payload = json.dumps({"before": len(messages), "after": len(shorter)})
        return Batch(
            segments=growth.segments,
            messages=growth.messages,
            checkpoints=[Checkpoint(id=new_id(), segment=history.segment, length=len(shorter))],
            events=[*requests, NewEvent(kind="compacted", payload=payload)],
        )

    return turn, compact()


async def _summarize(
    model: Any, messages: Sequence[ModelMessage]
) -> tuple[Sequence[ModelMessage], list[NewEvent]]:
    """Summarize the history with the session's model. Return the new history, and events for the requests that this took."""
    result = await Agent(model).run(_PROMPT, message_history=messages)
    summary = f"Summary of the conversation so far:\n\n{result.output}"
    requests = [
        NewEvent(kind="model_request_completed", payload=lenient_json(response_facts(message)))
        for message in result.new_messages()
        if isinstance(message, ModelResponse)
    ]
    return [
        ModelRequest(parts=[UserPromptPart(summary)]),
        ModelResponse(parts=[TextPart("Understood.")]),
    ], requests
