"""Delegates that can be suspended: runs of other agents that a tool with the policy `steps` starts.

If a delegate asks a question or sleeps, the call that started it waits as well, and so do the calls above it. Then each runs again from its
top, on any worker, and the delegate continues from its recorded history. The ids of its runs derive from the run and call that started
it and from its position in that call; its ledger entry has the number of the latest.
"""

import asyncio
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from time import monotonic
from typing import Any, Final

from pydantic import PydanticUserError, TypeAdapter
from pydantic_ai import DeferredToolRequests, RunContext
from pydantic_ai.messages import ModelResponse
from pydantic_ai.run import AgentRunResult

from holdfast.errors import HoldfastError, NotFound, StepError
from holdfast.media import MediaStore
from holdfast.questions import read_questions
from holdfast.record import ledger
from holdfast.record.answered_calls import deferred_results
from holdfast.record.buffer import Buffer
from holdfast.record.calls import Calls
from holdfast.record.ledger import CallRef
from holdfast.record.resume_point import find_resume_point
from holdfast.record.run_host import RunHost
from holdfast.record.steps import Steps, current_steps
from holdfast.record.waits import Wait, Waiting, first
from holdfast.store import Store
from holdfast.types import Effect, Run

_NAME: Final = "~delegate"
_BUSY_SECONDS: Final = 30.0
"""How long to wait for the session of a delegate whose process has died."""


@dataclass(slots=True, kw_only=True)
class Delegate:
    """A delegate of a tool call: its ledger entry, and the number of its current run."""

    steps: Steps
    ref: CallRef
    known: Effect | None
    attempt: int = 0

    @classmethod
    def begin(cls, outer: Buffer) -> "Delegate | None":
        """Return the next delegate of the tool call that runs this code; None if that cannot be suspended here."""
        steps = current_steps()
        if (
            steps is None
            or steps.tasks.closed
            or steps.buffer is not outer
            or ledger.current_call.get() != steps.ref
        ):
            return None
        ref, known = steps.take_recorded(_NAME)
        delegate = cls(steps=steps, ref=ref, known=known)
        if known is not None:
            delegate.attempt = json.loads(known.result or "{}")["metadata"]["attempt"] + 1
        steps.delegates[delegate.run_id] = delegate
        return delegate

    @staticmethod
    def of_run(run_id: str) -> "Delegate | None":
        """Return the delegate whose run begins; None if it is another run."""
        steps = current_steps()
        return None if steps is None else steps.delegates.pop(run_id, None)

    @property
    def run_id(self) -> str:
        """The id of its current run."""
        return self._id(self.attempt)

    @property
    def session_id(self) -> str:
        """The id of its session, if its caller holds the one of the conversation: that of its first run."""
        return self._id(0)

    def _id(self, attempt: int) -> str:
        return hashlib.sha256("/".join(("delegate", *self.ref, str(attempt))).encode()).hexdigest()[:32]

    async def earlier(self, store: Store) -> Run | None:
        """Return its last run before this one; None if none is recorded. Raises `StepError` if the delegate has failed."""
        if self.known is not None and self.known.state == "failed":
            raise StepError(step="delegate", error=self.known.error)
        for attempt in reversed(range(self.attempt)):
            with suppress(NotFound):
                return await store.run(self._id(attempt))
        return None

    async def started(self, store: Store, earlier: Run | None) -> None:
        """Record that its current run is about to start, when no process holds its session any longer."""
        if self.known is None:
            await self.steps.finish_replay("it runs a delegate")
        if earlier is not None:
            await _until_free(store, earlier.session_id)
        await self._write({"wait": "delegate"})

    async def ended(
        self,
        run: Run,
        calls: Calls,
        result: AgentRunResult[Any],
        questions: Sequence[Mapping[str, Any]],
    ) -> None:
        """Record that it has completed. If it waits instead, record its questions and raise `Waiting`, which suspends the tool call."""
        if not isinstance(result.output, DeferredToolRequests):
            self._end("completed")
            return
        messages = result.all_messages()
        asked = [
            _asked_above(question, run, calls.entry_of(messages, question["call_id"]))
            for question in questions
        ]
        facts: dict[str, Any] = {"wait": "delegate", "questions": asked}
        if (until := first(calls.waits.values())) is not None:
            facts["until"] = until.isoformat()
        if budget := next((wait.budget for wait in calls.waits.values() if wait.budget is not None), None):
            facts["budget"] = budget
        await self._write(facts)
        raise Waiting(facts)

    async def suspended(self, wait: Wait) -> None:
        """Record that it waits for a budget, and raise `Waiting`, which suspends the tool call."""
        await self._write(wait.facts())
        raise Waiting(wait.facts())

    async def repeated(
        self, store: Store, agent: Any, run: Run, media: MediaStore | None
    ) -> AgentRunResult[Any]:
        """Return the recorded result of a run that has completed: the call that started it runs again."""
        if (
            self.known is not None and self.known.state == "started"
        ):  # its process died before it recorded the end
            self._end("completed")
        return await _recorded_result(store, agent, run, media)

    def failed(self, error: BaseException) -> None:
        """Record that it has failed, if it did so by itself. A repeated call receives the failure."""
        if isinstance(error, Exception) and not isinstance(error, HoldfastError | Waiting):
            self._end("failed", ledger.describe(error))

    async def _write(self, facts: Mapping[str, Any]) -> None:
        result = ledger.deferred("wait", {**facts, "attempt": self.attempt})
        run_id, call_id = self.ref
        self.known = Effect(
            run_id=run_id, call_id=call_id, tool="delegate", step=self.steps.step, result=result
        )
        await self.steps.buffer.write_effects([self.known])

    def _end(self, state: Any, error: str | None = None) -> None:
        """Record its end with the next batch. The number of its run stays on record."""
        if self.known is not None:
            self.steps.buffer.add_effect(replace(self.known, state=state, error=error))


def can_defer(agent: Any, *, hosted: bool) -> bool:
    """Return whether calls of an agent's runs can wait. A worker adds that to the agent's output types, unless it has output validators."""
    own: Any = agent.output_type
    kinds: list[Any] = [*own] if isinstance(own, list | tuple) else [own]
    return DeferredToolRequests in kinds or (hosted and not getattr(agent, "_output_validators", None))


async def _until_free(store: Store, session_id: str) -> None:
    """Wait until a session is free. Its last process may have died a moment ago, and its lease not have expired yet."""
    give_up_at = monotonic() + _BUSY_SECONDS
    while (await store.session(session_id)).holder is not None and monotonic() < give_up_at:
        await store.reclaim()
        await asyncio.sleep(0.1)


def _asked_above(question: Mapping[str, Any], run: Run, entry: str) -> dict[str, Any]:
    """Return a question of a delegate as the session above shows it: with its origin, and a call id that is unique there."""
    origin: dict[str, Any] | None = question.get("origin")
    if origin is not None:
        return {**question, "origin": {**origin, "agents": [run.agent, *origin["agents"]]}}
    place = {"session_id": run.session_id, "run_id": run.id, "call_id": question["call_id"]}
    return {**question, "call_id": entry, "origin": {**place, "agents": [run.agent]}}


async def continue_delegate(
    ctx: RunContext[Any], host: RunHost, store: Store, earlier: Run, media: MediaStore | None
) -> Callable[[Any], Any] | None:
    """Continue a delegate that waited or was interrupted, with the answers that are recorded in its session.

    Return the change to the first node of its run, which has the prompt of a new one; None if it starts with that prompt again.
    """
    point = await find_resume_point(store, earlier.session_id, earlier.id, media=media)
    ctx.messages[:] = point.messages
    if not point.begun:
        return None
    questions = await read_questions(store, earlier.session_id, point.chain)
    denied = [answer.call_id for answer in questions.answers.values() if not answer.approved]
    ended = (
        await ledger.ended_calls(store, earlier.session_id, point.messages, denied) if denied else set[str]()
    )
    results = deferred_results(point.messages, questions.answers, ended)
    answered = {*questions.answers, *ended}
    host.asked = questions.open
    host.unanswered = [key for key in (results.approvals if results else ()) if key not in answered]
    ctx.prompt = None
    return partial(replace, user_prompt=None, deferred_tool_results=results)


async def _recorded_result(
    store: Store, agent: Any, run: Run, media: MediaStore | None
) -> AgentRunResult[Any]:
    """Return the result of a run that has completed: its output as its agent declares it, and its messages."""
    point = await find_resume_point(store, run.session_id, run.id, media=media)
    payload: dict[str, Any] = {}
    after = run.first_seq - 1
    while page := await store.events(run.session_id, after=after, run_id=run.id):
        after = page[-1].seq
        for event in page:
            if event.kind == "run_completed":
                payload = json.loads(event.payload)
    last = point.messages[-1] if point.messages else None
    output: Any = last.text if isinstance(last, ModelResponse) else None
    if "output" in payload:
        output = _typed(agent.output_type, payload["output"])
    result = AgentRunResult[Any](output)
    result._state.message_history = [*point.messages]  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
    return result


def _typed(declared: Any, value: Any) -> Any:
    """Return a recorded output as the first of the declared types that it fits."""
    kinds: list[Any] = [*declared] if isinstance(declared, list | tuple) else [declared]
    for kind in kinds:
        if kind is not DeferredToolRequests:
            with suppress(PydanticUserError, ValueError, TypeError):
                return TypeAdapter(kind).validate_python(value)
    return value
