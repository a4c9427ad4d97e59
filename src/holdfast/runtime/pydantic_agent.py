"""Run the turns of a Pydantic AI agent."""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import isawaitable
from typing import Any, TypeAlias

from pydantic_ai import Agent, DeferredToolRequests
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, UserPromptPart
from pydantic_ai.models import Model, infer_model
from pydantic_ai.models.function import FunctionModel

from holdfast.budgets import Budget, check_budgets
from holdfast.errors import BadInput, Conflict, TurnNotRetriable
from holdfast.record.answered_calls import deferred_results, outside_results
from holdfast.record.capability import Holdfast
from holdfast.record.ledger import Policy, ended_calls
from holdfast.record.probes import Probe
from holdfast.record.recovery import check_tools
from holdfast.record.undo import AnyUndo, OnFailure, Undo, check_undo_options, undos_by_name
from holdfast.runtime.attachment import Attachment
from holdfast.runtime.drafts import Drafting
from holdfast.runtime.payloads import step_to_repeat
from holdfast.runtime.runner import Requests, TurnStart
from holdfast.runtime.undo_request import plan_of_turn
from holdfast.types import Session

_PROMPT = "Summarize this conversation for yourself: goals, decisions, facts, open points. Be brief."

Compactor: TypeAlias = Callable[[Sequence[ModelMessage]], Awaitable[Sequence[ModelMessage]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSetup:
    """An agent and how its sessions are run.

    `deps` creates the dependencies of a session. A session whose metadata names one of `models` runs on that model. `run_timeout`
    limits the duration of a run, in seconds; for single tools, use Pydantic AI's `tool_timeout`. `policies` and `probes` are
    those of the `Holdfast` capability. `undo` lists the functions that undo steps; with `on_failure="undo"` they run when a turn fails or is
    interrupted. `compactor` shortens a history; by default the session's model writes a summary. With
    `attached`, turns of sessions created over HTTP are handed over or interrupted when no client watches them, unless the
    session's metadata has its own `attached`. `budgets` limit its turns, its sessions and the agent as a whole.
    """

    agent: Agent[Any, Any]
    name: str = ""
    deps: Callable[[Session], Any] | None = None
    models: Mapping[str, Model | str] = field(default_factory=dict[str, Model | str])
    policies: Mapping[str, Policy] = field(default_factory=dict[str, Policy])
    probes: Mapping[str, Probe] = field(default_factory=dict[str, Probe])
    undo: Sequence[AnyUndo] = ()
    on_failure: OnFailure | None = None
    run_timeout: float | None = None
    streaming: bool = True
    compactor: Compactor | None = None
    attached: bool | Attachment = False
    budgets: Sequence[Budget] = ()

    def __post_init__(self) -> None:
        check_undo_options(self.undo, self.on_failure)
        check_budgets(self.budgets)

    @property
    def undos(self) -> Mapping[str, Undo]:
        """The functions that undo its steps, by name."""
        return undos_by_name(self.undo)

    async def make_deps(self, session: Session) -> Any:
        """Return the dependencies of a session."""
        made = None if self.deps is None else self.deps(session)
        return await made if isawaitable(made) else made

    def model_of(self, session: Session) -> Model | str | None:
        """Return the model that the session's metadata names; None for the agent's own model. Raises `BadInput`."""
        name = json.loads(session.metadata).get("model")
        if name is None:
            return None
        if name not in self.models:
            allowed = ", ".join(sorted(self.models)) or "none"
            raise BadInput(
                problem=f"the session's metadata names model {name!r}, which is not allowed; allowed models: {allowed}"
            )
        return self.models[name]

    async def prepare(self, start: TurnStart) -> Awaitable[Any]:
        """Return the run of the agent. Raises `Conflict` if the agent has lost a tool that a pending call needs."""
        store, session, point = start.store, start.session, start.point
        if step_to_repeat(start.host.submission):
            raise Conflict(
                problem="only a turn of a plain agent can be retried from a step; rewind the session instead"
            )
        results = None
        if start.host.submission.kind == "retry" and point.begun:
            await _refuse_undone(start)
        if point.begun:
            check_tools(self.agent, point.messages)
            denied = [answer.call_id for answer in start.answers.values() if not answer.approved]
            ended = await ended_calls(store, session.id, point.messages, denied) if denied else ()
            outside = await outside_results(store, session.id, point.messages) if start.answers else {}
            results = deferred_results(point.messages, start.answers, ended, outside)
            if results is not None:
                answered = {*start.answers, *ended}
                start.host.unanswered = [call_id for call_id in results.approvals if call_id not in answered]
        recording = Holdfast(
            store,
            agent=session.agent,
            owner=session.owner,
            metadata={"resumes": point.chain[0].id} if point.chain else {},
            policies=self.policies,
            probes=self.probes,
            undo=self.undo,
            host=start.host,
        )
        model = self.model_of(session)

        async def run() -> Any:
            return await self.agent.run(
                None if point.begun else start.content,
                message_history=point.messages,
                deferred_tool_results=results,
                conversation_id=session.id,
                output_type=output_type(self.agent),
                model=model,
                deps=await self.make_deps(session),
                capabilities=[recording],
                event_stream_handler=(
                    Drafting(store, start.host.lease) if self.can_stream(model) else None  # pyright: ignore[reportArgumentType]
                ),
            )

        return run()

    async def compact(
        self, session: Session, messages: list[ModelMessage]
    ) -> tuple[Sequence[ModelMessage], Requests]:
        """Return a shorter history: from the agent's compactor, or a summary by the session's model."""
        if self.compactor is not None:
            return await self.compactor(messages), ()
        return await _summarize(self.model_of(session) or self.agent.model, messages)

    def allows_edits(self, tool: str) -> bool:
        """Return whether the tool declares `editable` in its metadata."""
        toolsets: Any = self.agent.toolsets
        for toolset in toolsets:
            tools: dict[str, Any] = getattr(toolset, "tools", {})
            if tool in tools:
                metadata: dict[str, Any] = tools[tool].metadata or {}
                return bool(metadata.get("editable"))
        return False

    def can_stream(self, model: Model | str | None) -> bool:
        """Return whether the model's response can be streamed. A FunctionModel without a stream function cannot."""
        used = model or self.agent.model
        return self.streaming and not (isinstance(used, FunctionModel) and used.stream_function is None)


async def _refuse_undone(start: TurnStart) -> None:
    """Raise `TurnNotRetriable` if effects of the turn were undone: its history has their results, and the model would rely on them."""
    plan = await plan_of_turn(start.store, start.session.id, start.point.chain[0].id)
    if any(item.is_undone for item in plan):
        problem = "its effects were undone, but its history has their results. Send the message again"
        raise TurnNotRetriable(submission_id=start.host.submission.id, problem=problem)


def output_type(agent: Agent[Any, Any]) -> Any:
    """Return the agent's output type, extended so that tools may wait for a person.

    An agent with output validators runs only with its own output type.
    """
    if getattr(agent, "_output_validators", None):
        return None
    own: Any = agent.output_type
    kinds: list[Any] = [*own] if isinstance(own, list | tuple) else [own]
    return kinds if DeferredToolRequests in kinds else [*kinds, DeferredToolRequests]


async def _summarize(
    model: Model | str | None, messages: Sequence[ModelMessage]
) -> tuple[Sequence[ModelMessage], Requests]:
    """Summarize the history with the session's model. Return the new history, and the requests that this took."""
    used = None if model is None else infer_model(model)
    result = await Agent(used).run(_PROMPT, message_history=messages)
    summary = f"Summary of the conversation so far:\n\n{result.output}"
    responses = [message for message in result.new_messages() if isinstance(message, ModelResponse)]
    requests = [] if used is None else [(used.model_name, response) for response in responses]
    return [
        ModelRequest(parts=[UserPromptPart(summary)]),
        ModelResponse(parts=[TextPart("Understood.")]),
    ], requests
