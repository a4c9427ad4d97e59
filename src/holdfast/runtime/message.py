"""Process a message as a run of a Pydantic AI agent. No other module of the runtime runs a turn."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from pydantic_ai import Agent, DeferredToolRequests

from holdfast.record.capability import Holdfast
from holdfast.record.ledger import ended_calls
from holdfast.record.recovery import ResumePoint, check_tools, find_resume_point
from holdfast.runtime import approvals
from holdfast.runtime.attachment import attachment
from holdfast.runtime.drafts import Drafting
from holdfast.runtime.leased import LeasedSession
from holdfast.runtime.payloads import parse_content
from holdfast.runtime.turn import Steered, Turn
from holdfast.types import Session, Submission


async def prepare_turn(
    leased: LeasedSession,
    session: Session,
    submission: Submission,
    *,
    fresh: bool,
    last: bool,
    take_steered: Callable[[], Awaitable[Sequence[Steered]]],
) -> tuple[Turn, Awaitable[Any]]:
    """Return the turn of a message, and the run that processes it. An interrupted turn continues.

    A `fresh` session has no history yet. After the `last` message the session is released. Raises `BadInput` and `Conflict`.
    """
    setup = leased.setup(session)
    content = parse_content(submission)
    point = ResumePoint(messages=[])
    if not fresh:
        point = await find_resume_point(leased.store, leased.id, submission.run_id)
    turn = Turn(
        lease=leased.lease,
        submission=submission,
        take_steered=take_steered,
        checkpoint=point.checkpoint,
        recorded=point.recorded,
        last=last,
        limit=setup.run_timeout,
    )
    if point.chain:
        turn.continue_run(point.chain[0])
        if turn.recovered and submission.attempts > 1:
            turn.exclude_attempt = await _is_blameless(leased, point)
    given = await approvals.recorded_answers(leased.store, leased.id, point.chain)
    results = None
    if point.begun:
        check_tools(setup.agent, point.messages)
        denied = [answer.call_id for answer in given.values() if not answer.approved]
        ended = await ended_calls(leased.store, leased.id, point.messages, denied) if denied else ()
        results = approvals.results(point.messages, given, ended)
    turn.attached = attachment(session.metadata, leased.store.settings.attached_grace_seconds)
    recording = Holdfast(
        leased.store,
        agent=session.agent,
        owner=session.owner,
        metadata={"resumes": point.chain[0].id} if point.chain else {},
        policies=setup.policies,
        host=turn,
    )
    model = setup.model_of(session)

    async def run() -> Any:
        return await setup.agent.run(
            None if point.begun else content,
            message_history=point.messages,
            deferred_tool_results=results,
            conversation_id=leased.id,
            output_type=_output_type(setup.agent),
            model=model,
            deps=await setup.make_deps(session),
            capabilities=[recording],
            event_stream_handler=(
                Drafting(leased.store, leased.lease) if setup.can_stream(model) else None  # pyright: ignore[reportArgumentType]
            ),
        )

    return turn, run()


async def _is_blameless(leased: LeasedSession, point: ResumePoint) -> bool:
    """Return whether the interrupted run had made progress and no tool of its turn was running, so that it did not end its worker.

    Workers that die often must not use up the attempts of a long turn.
    """
    run = point.chain[0]
    if point.checkpoint is None or point.checkpoint.run_id != run.id or point.checkpoint.seq == run.first_seq:
        return False
    for cut_off in point.chain:
        calls = await leased.store.effects(leased.id, run_id=cut_off.id, unresolved=True)
        if calls.next_cursor or any(call.result is None for call in calls.items):
            return False
    return True


def _output_type(agent: Agent[Any, Any]) -> Any:
    """Return the agent's output type, extended so that tools may wait for a person.

    An agent with output validators runs only with its own output type.
    """
    if getattr(agent, "_output_validators", None):
        return None
    own: Any = agent.output_type
    kinds: list[Any] = [*own] if isinstance(own, list | tuple) else [own]
    return kinds if DeferredToolRequests in kinds else [*kinds, DeferredToolRequests]
