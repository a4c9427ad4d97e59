"""One turn of a plain agent while its function runs, and the record of the turn."""

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Literal, TypeAlias, TypeVar

from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_core import to_jsonable_python

from holdfast.errors import AgentExited, BadInput, NotFound, StepsDiffer
from holdfast.ids import new_id
from holdfast.jsontext import lenient_json, strict_json
from holdfast.record import ledger
from holdfast.record.buffer import Beginning, Buffer
from holdfast.record.calls import Calls
from holdfast.record.deadlines import Deadline
from holdfast.record.ending import complete_run, fail_run
from holdfast.record.history import open_history
from holdfast.record.offloader import MediaOffloader
from holdfast.record.open_calls import pending_calls, without_pending_calls
from holdfast.record.steps import Steps
from holdfast.record.threads import RunThreads
from holdfast.record.undo import Undo
from holdfast.record.waits import Suspended, until_suspended
from holdfast.runtime.drafts import Drafts
from holdfast.runtime.function_retry import ENTRY, TurnRetry
from holdfast.runtime.runner import TurnStart
from holdfast.tracing import mark_span
from holdfast.types import Draft, Effect, NewEvent, Run

T = TypeVar("T")
Role: TypeAlias = Literal["user", "assistant"]
_ASK = "ask"
_INCOMING = "~incoming"
"""The name of the entries for steering messages. A step cannot have it."""


@dataclass(frozen=True, slots=True)
class Decision:
    """A person's answer to a question. It is true if the person approved."""

    approved: bool
    feedback: str | None = None
    by: str | None = None

    def __bool__(self) -> bool:
        return self.approved


@dataclass(slots=True)
class _Answer(Generic[T]):
    value: T


@dataclass(slots=True)
class FunctionRun:
    """Runs the function for one turn, and records it."""

    function: Callable[["FunctionRun"], Awaitable[Any]]
    start: TurnStart
    undos: Mapping[str, Undo]
    run_id: str = field(default_factory=new_id)
    before: list[ModelMessage] = field(default_factory=list[ModelMessage])
    """The history up to the message of this turn."""
    _messages: list[ModelMessage] = field(default_factory=list[ModelMessage])
    """The history as it is now."""
    _added: list[ModelMessage] = field(default_factory=list[ModelMessage])
    """Recorded entries of this turn that the function has not repeated yet."""
    _decided: dict[str, tuple[str, Decision]] = field(default_factory=dict[str, tuple[str, Decision]])
    """Recorded decisions that the function has not requested again yet, with the digest of their question."""
    _questions: list[ToolCallPart] = field(default_factory=list[ToolCallPart])
    """The questions that the turn waits for."""
    _deadlines: dict[str, Deadline] = field(default_factory=dict[str, Deadline])
    """Their deadlines, by call id."""
    _asked: int = 0
    _restarts: int = 0
    """How often the turn was restarted from a step."""
    _answer: _Answer[Any] | None = None
    _open: bool = True
    _retry: TurnRetry = field(init=False)
    _steps: Steps = field(init=False)
    buffer: Buffer = field(init=False)
    _drafts: Drafts = field(init=False)
    _offloader: MediaOffloader = field(init=False)
    _origin: str = ""

    def __post_init__(self) -> None:
        self._retry = TurnRetry(self.start)

    async def run(self) -> Any:
        """Run the function, and record the turn."""
        start, host = self.start, self.start.host
        session_id, agent = start.session.id, start.session.agent
        mark_span(session_id=session_id, run_id=self.run_id)
        async with host.enter(session_id, self.run_id, agent) as entered:
            recorded = await self._retry.steps()
            await self._continue(recorded)
            history = await open_history(start.store, session_id, entered.checkpoint, entered.messages)
            self._offloader = offloader = MediaOffloader(start.store)
            redone = self._retry.redone(recorded)
            metadata: dict[str, Any] = {"origin": self._origin, "prompt": len(self.before) - 1}
            renewed = self._retry.renewed(recorded, redone)
            if redone:
                metadata |= {"redone": redone, "restarts": self._restarts, "renewed": renewed}
            if start.point.chain:
                metadata["resumes"] = start.point.chain[0].id
            self._drafts = Drafts(start.store, entered.lease)
            self.buffer = Buffer(
                start.store,
                entered.lease,
                Run(id=self.run_id, agent=agent, metadata=lenient_json(metadata)),
                host=host,
                offloader=offloader,
                calls=Calls(self.run_id, {}),
                history=history,
            )
            self._steps = Steps(
                ref=(self._origin, ENTRY),
                store=start.store,
                buffer=self.buffer,
                offloader=offloader,
                threads=RunThreads(),
                redone=redone,
                renewed=renewed,
                undos=self.undos,
                settled=host.settled,
                check=self.check_open,
                decide=self._decide,
            )
            started = NewEvent(
                kind="run_started", run_id=self.run_id, payload=lenient_json({"agent": agent, "parent": None})
            )
            self.buffer.begin(Beginning(started, list(start.point.messages), None, ()))
            try:
                await self._close_settled()
                await self.buffer.write(self.buffer.take_step(self._messages, self._kind, None))
                if start.point.begun:
                    await self._steps.load()
                await self._call()
                await (await self._steps.threads.recorded()).deliver()
                await self._drafts.close()
                await self._complete()
            except SystemExit as error:  # raised out of this task it would end the event loop
                exited = AgentExited(what="The agent", error=ledger.describe(error))
                await fail_run(self.buffer, host, exited, self._steps.threads)
                raise exited from error
            except BaseException as error:
                if ended_by := self._steps.ended_by(error):
                    ended = lenient_json({**metadata, "ended_by": ended_by})
                    self.buffer.run = replace(self.buffer.run, metadata=ended)
                await fail_run(self.buffer, host, error, self._steps.threads)
                raise
            finally:
                self._open = False
                await self._drafts.close()

    async def _continue(self, steps: Mapping[str, Effect]) -> None:
        """Find the message of this turn in the history, and the records after it."""
        point = self.start.point
        self._messages = list(point.messages)
        self._origin = self.run_id
        if not point.begun:
            prompt = ModelRequest(parts=[UserPromptPart(self.start.content)], run_id=self.run_id)
            self._messages.append(prompt)
            self.before = list(self._messages)
            return
        last = self._retry.last
        self._origin = self._retry.origin or self.run_id
        self._restarts = last.get("restarts", 0)
        end = last.get("prompt", len(self._messages) - 1) + 1
        # The function asks again what was not answered, even if the turn continues because a sleep is over.
        self._messages = without_pending_calls(self._messages, self.start.answers)
        if (from_step := self._retry.from_step(steps)) and self._retry.is_new:
            if from_step not in steps:
                raise NotFound(what="step of this turn with the id", id=from_step)
            self._messages = await self._retry.history_before(from_step)
            self._restarts += 1
        self.before = self._messages[:end]
        calls: dict[str, ToolCallPart] = {}
        for message in self._messages[end:]:
            if (message.metadata or {}).get("entry"):
                self._added.append(message)
            for part in message.parts:
                if isinstance(part, ToolCallPart):
                    calls[part.tool_call_id] = part
                elif isinstance(part, ToolReturnPart) and part.tool_call_id in calls:
                    digest = ledger.digest(calls[part.tool_call_id].args_as_dict())
                    content: Any = part.content
                    self._decided[part.tool_call_id] = digest, Decision(**content)

    async def _close_settled(self) -> None:
        """Close questions about steps that were settled instead, so that the function does not ask them again."""
        pending = {
            entry: call for call in pending_calls(self._messages) if (entry := _step_of(call)) is not None
        }
        if not pending:
            return
        steps = await ledger.step_entries(self.start.store, self.start.session.id, self._origin, ENTRY)
        for entry, call in pending.items():
            given = self.start.answers.get(call.tool_call_id)
            if given is not None and entry in steps and steps[entry].state != "started":
                self._answer_question(call, Decision(given.approved, given.feedback, given.by))

    @property
    def _kind(self) -> Literal["settled", "interrupted"]:
        return "interrupted" if pending_calls(self._messages) else "settled"

    @property
    def _is_replaying(self) -> bool:
        """Whether the function is still replaying its record, and must receive the same values as before."""
        recorded = self._added or self._unasked or pending_calls(self._messages)
        return self._steps.is_replaying or bool(recorded)

    @property
    def _unasked(self) -> list[str]:
        """The decided questions that the function has not asked again. One about a step is not asked after that has run."""
        return [call_id for call_id in self._decided if "/" not in call_id]

    async def _call(self) -> None:
        with until_suspended():
            async with self._steps.open():
                value = await self.function(self)
                if value is not None and self._answer is None:
                    self._answer = _Answer(value)

    async def _complete(self) -> None:
        waits = {wait.ref[1]: wait for wait in self._steps.waits}
        if self._questions:
            self._messages.append(ModelResponse(parts=list(self._questions), run_id=self._origin))
            notes = {
                call.tool_call_id: {"unsettled": {"run_id": self._origin, "call_id": entry}}
                for call in self._questions
                if (entry := _step_of(call)) is not None
            }
            await complete_run(
                self.buffer,
                self.start.host,
                self._messages,
                None,
                notes=notes,
                waits=waits,
                deadlines=self._deadlines,
            )
            return
        if waits:
            await complete_run(self.buffer, self.start.host, self._messages, None, waits=waits)
            return
        if left := [*self._unasked, *(_texts(message)[0].content for message in self._added)]:
            raise StepsDiffer(asked="it has ended", recorded=f"{left[0]!r:.80}")
        output: Any = None
        if self._answer is not None:
            output = self._answer.value
            message = _message(output, "assistant", self._origin, {})
            self._messages.append(message)
        await complete_run(self.buffer, self.start.host, self._messages, output)

    def check_open(self) -> None:
        """Raise `BadInput` if the turn has ended, and stop code that runs while the turn waits."""
        if not self._open:
            raise BadInput(problem="the turn has ended")
        if (self._questions or self._steps.waits) and ledger.current_call.get() is None:
            raise Suspended  # a step that runs ends as usual

    async def ask(self, arguments: dict[str, Any], deadline: Deadline | None = None) -> Decision:
        """Return the decision on a question, or suspend the turn until there is one."""
        call_id = ledger.entry(_ASK, self._asked)
        self._asked += 1
        return await self._question(ToolCallPart(_ASK, arguments, call_id), deadline)

    async def _decide(self, name: str, entry: str, attempts: int, arguments: Any) -> bool:
        """Return whether a step may run again although it may have taken effect."""
        question = f"Step {name!r} was interrupted, and it is unknown whether it took effect. Run it again?"
        call = ToolCallPart(name, {"question": question, "arguments": arguments}, f"{entry}#{attempts}")
        return bool(await self._question(call))

    async def _question(self, call: ToolCallPart, deadline: Deadline | None = None) -> Decision:
        digest, call_id = ledger.digest(call.args_as_dict()), call.tool_call_id
        for number in range(self._restarts + 1):  # decided before a restart, or asked again after it
            call = replace(call, tool_call_id=ledger.numbered(call_id, number))
            if call.tool_call_id in self._decided:
                break
        recorded = self._decided.pop(call.tool_call_id, None)
        if recorded is not None:
            if recorded[0] != digest:
                raise StepsDiffer(asked=f"it asks {call.args_as_dict()}", recorded="another question")
            return recorded[1]
        given = self.start.answers.get(call.tool_call_id)
        if given is None:
            self._questions.append(call)
            if deadline is not None:
                self._deadlines[call.tool_call_id] = deadline
            raise Suspended
        if given.digest != digest:
            raise StepsDiffer(asked=f"it asks {call.args_as_dict()}", recorded="another question")
        decision = Decision(given.approved, given.feedback, given.by)
        self._answer_question(call, decision)
        await self.buffer.write(self.buffer.take_step(self._messages, "settled", None))
        return decision

    def _answer_question(self, call: ToolCallPart, decision: Decision) -> None:
        content = {"approved": decision.approved, "feedback": decision.feedback, "by": decision.by}
        self._messages.append(
            ModelRequest(parts=[ToolReturnPart(call.tool_name, content, call.tool_call_id)])
        )

    async def incoming(self) -> list[Any]:
        """Take the messages that steer the turn, or those that the function received before it ran again."""
        recorded, known = self._steps.take_recorded(_INCOMING)
        if known is not None:
            (whole,) = await self._offloader.effects_back([known])
            return json.loads(whole.result or "{}")["value"]
        if self._is_replaying:
            return []
        contents: list[Any] = []
        for content in await self.start.host.incoming():
            single = content[0] if len(content) == 1 else list(content)
            contents.append(to_jsonable_python(single, bytes_mode="base64"))
            self._messages.append(ModelRequest(parts=[UserPromptPart(single)], run_id=self.run_id))
        if contents:
            result = lenient_json({"kind": "value", "value": contents})
            effect = Effect(
                run_id=recorded[0], call_id=recorded[1], tool="incoming", state="completed", result=result
            )
            batch = self.buffer.take_step(self._messages, "settled", None, effects=[effect])
            await self.buffer.write(batch)
        return contents

    def draft(self, text: str, kind: Literal["text", "thinking"]) -> None:
        """Append to the draft."""
        part = 0 if kind == "thinking" else 1
        before = self._drafts.get(part)
        whole = (before.text if before else "") + text
        self._drafts.put(Draft(run_id=self.run_id, part=part, kind=kind, text=whole))

    async def add(self, entry: Any, role: Role) -> None:
        """Add an entry to the history, unless the function added it before it ran again."""
        message = _message(entry, role, self._origin, {"entry": True})
        if self._added:
            recorded = self._added.pop(0)
            if [p.content for p in _texts(recorded)] != [p.content for p in _texts(message)]:
                raise StepsDiffer(
                    asked="it adds another entry", recorded=f"{_texts(recorded)[0].content:.80}"
                )
            return
        self._messages.append(message)
        await self.buffer.write(self.buffer.take_step(self._messages, "settled", None))

    def set_answer(self, value: Any) -> None:
        """Set the result of the turn."""
        if self._answer is not None:
            raise BadInput(problem="the turn already has an answer")
        if not isinstance(value, str):
            strict_json(to_jsonable_python(value), "answer")
        self._answer = _Answer(value)


def _texts(message: ModelMessage) -> list[Any]:
    return [part for part in message.parts if isinstance(part, TextPart | UserPromptPart)]


def _message(value: Any, role: Role, run_id: str, metadata: dict[str, Any]) -> ModelMessage:
    """Return an entry of the history. JSON is kept as text, and marked."""
    text = value
    if not isinstance(value, str):
        text = strict_json(to_jsonable_python(value), "entry")
        metadata = {**metadata, "json": True}
    if role == "user":
        return ModelRequest(parts=[UserPromptPart(text)], run_id=run_id, metadata=metadata or None)
    return ModelResponse(parts=[TextPart(text)], run_id=run_id, metadata=metadata or None)


def entries_of(message: ModelMessage) -> list[Any]:
    """Return a message of the history as entries with a role and a content."""
    role = "assistant" if isinstance(message, ModelResponse) else "user"
    entries: list[Any] = []
    for part in message.parts:
        match part:
            case TextPart(content=text) | UserPromptPart(content=text):
                content: Any = (
                    text if isinstance(text, str) else to_jsonable_python(text, bytes_mode="base64")
                )
                if (message.metadata or {}).get("json"):
                    content = json.loads(content)
                    if isinstance(content, dict) and "role" in content:
                        entries.append(content)
                        continue
                entries.append({"role": role, "content": content})
            case ToolCallPart():
                entries.append({"role": role, "content": part.args_as_dict().get("question", part.tool_name)})
            case ToolReturnPart(content=content):
                entries.append({"role": role, "content": to_jsonable_python(content)})
            case _:
                pass
    return entries


def _step_of(question: ToolCallPart) -> str | None:
    """Return the entry of the step that a question is about; None if the function asked it."""
    entry, _, attempts = question.tool_call_id.rpartition("#")
    return entry if "/" in entry and attempts.isdigit() else None
