"""Plain agents: an async function that Holdfast runs like any other agent, without a framework.

    @holdfast.agent("researcher")
    async def researcher(turn: Turn) -> None:
        plan = await turn.step("plan", call_model, turn.messages)
        if await turn.ask("Publish?", plan):
            await turn.step("publish", publish, plan)
        await turn.answer("done")

After a crash, a hand-over or an answered question the function runs again from its top, on any worker, and its recorded steps
return their results. Code outside steps must be harmless to repeat.
"""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from inspect import iscoroutinefunction
from typing import Any, Generic, Literal, TypeAlias, TypeVar

from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserContent,
    UserPromptPart,
)
from pydantic_core import to_jsonable_python

from holdfast.errors import AgentExited, BadInput, Conflict, NotFound, StepsDiffer
from holdfast.ids import new_id
from holdfast.jsontext import lenient_json, strict_json
from holdfast.record import ledger
from holdfast.record.buffer import Beginning, Buffer
from holdfast.record.calls import Calls
from holdfast.record.ending import complete_run, fail_run
from holdfast.record.history import open_history
from holdfast.record.offloader import MediaOffloader
from holdfast.record.open_calls import pending_calls, without_pending_calls
from holdfast.record.recovery import load_history
from holdfast.record.steps import Steps, Suspended, step
from holdfast.record.threads import RunThreads
from holdfast.runtime.attachment import Attachment
from holdfast.runtime.context import SessionContext, current_session
from holdfast.runtime.drafts import Drafts
from holdfast.runtime.payloads import step_to_repeat
from holdfast.runtime.runner import TurnStart
from holdfast.tracing import mark_span
from holdfast.types import Draft, Effect, NewEvent, Run, Session

T = TypeVar("T")
Role: TypeAlias = Literal["user", "assistant"]
_ENTRY = "turn"
"""The ledger entry that the steps of a turn belong to."""
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


class Turn:
    """One turn of a plain agent: the message to answer, the history before it, and what the agent can do.

    `messages` has the role and the content of each entry of the history up to the message of this turn, in the form that most model
    APIs take. `content` is that message, `session` the session with its state and credentials. `step` is `holdfast.step`.
    """

    def __init__(self, run: "_FunctionRun") -> None:
        self._run = run
        self.content: str | Sequence[UserContent] = run.start.content
        self.messages: list[Any] = [entry for message in run.before for entry in _entries(message)]
        self.run_id = run.run_id
        self.step = step

    @property
    def text(self) -> str:
        """The text of the message."""
        parts = [self.content] if isinstance(self.content, str) else self.content
        return "\n".join(part for part in parts if isinstance(part, str))

    @property
    def session(self) -> SessionContext:
        """The session: its state, its credentials and its metadata."""
        session = current_session()
        if session is None:
            raise BadInput(problem="the turn was used outside its agent")
        return session

    async def ask(self, question: str, detail: Any = None) -> Decision:
        """Ask a person, and return the decision. While nobody has answered, the turn needs no process.

        The person sees the question and the detail, and approves or denies. Raises `BadInput` within a step.
        """
        self._run.check_open()
        if ledger.current_call.get() is not None:
            raise BadInput(problem="`turn.ask` cannot be used within a step; ask before the step")
        arguments: dict[str, Any] = {"question": question}
        if detail is not None:
            arguments["detail"] = json.loads(strict_json(to_jsonable_python(detail), "detail"))
        return await self._run.ask(_ASK, arguments)

    async def incoming(self) -> list[Any]:
        """Return the messages that were sent to steer this turn since the last call, and add them to the history."""
        self._run.check_open()
        return await self._run.incoming()

    async def draft(self, text: str, *, kind: Literal["text", "thinking"] = "text") -> None:
        """Append to the text that watchers see while the answer is being made. It is not recorded."""
        self._run.check_open()
        self._run.draft(text, kind)

    async def add(self, entry: Any, *, role: Role = "assistant") -> None:
        """Add an entry to the history: a text, or any JSON. Later turns have it in their `messages`."""
        self._run.check_open()
        await self._run.add(entry, role)

    async def answer(self, value: Any) -> None:
        """Set the result of the turn: a text, or any JSON. It is recorded when the function ends."""
        self._run.check_open()
        self._run.set_answer(value)


Function: TypeAlias = Callable[[Turn], Awaitable[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionAgent:
    """A plain agent: a function that runs each turn of its sessions. Made by `holdfast.agent`."""

    name: str
    function: Function
    run_timeout: float | None = None
    attached: bool | Attachment = False

    async def prepare(self, start: TurnStart) -> Awaitable[Any]:
        """Return the code that runs the function for one turn."""
        return _FunctionRun(self.function, start).run()

    async def compact(
        self, session: Session, messages: list[ModelMessage]
    ) -> tuple[Sequence[ModelMessage], Sequence[NewEvent]]:
        """Refuse: only the function knows what its history means."""
        del session, messages
        raise Conflict(
            problem=f"the agent {self.name!r} is a plain function, which cannot compact its history"
        )

    def allows_edits(self, tool: str) -> bool:
        """Return that arguments cannot be edited: they are the questions of the function."""
        del tool
        return False


def agent(
    name: str, *, run_timeout: float | None = None, attached: bool | Attachment = False
) -> Callable[[Function], FunctionAgent]:
    """Make an agent of an async function that takes a `Turn`.

    `run_timeout` ends a run that takes longer. With `attached`, sessions created over HTTP are attached to their watchers.
    """

    def make(function: Function) -> FunctionAgent:
        if not iscoroutinefunction(function):
            raise BadInput(problem=f"the agent {name!r} must be an async function")
        return FunctionAgent(name=name, function=function, run_timeout=run_timeout, attached=attached)

    return make


@dataclass(slots=True)
class _Answer(Generic[T]):
    value: T


@dataclass(slots=True)
class _FunctionRun:
    """Runs the function for one turn, and records it."""

    function: Function
    start: TurnStart
    run_id: str = field(default_factory=new_id)
    before: list[ModelMessage] = field(default_factory=list[ModelMessage])
    """The history up to the message of this turn."""
    _messages: list[ModelMessage] = field(default_factory=list[ModelMessage])
    """The history as it is now."""
    _added: list[ModelMessage] = field(default_factory=list[ModelMessage])
    """Recorded entries of this turn that the function has not added again yet."""
    _decided: dict[str, tuple[str, Decision]] = field(default_factory=dict[str, tuple[str, Decision]])
    """Recorded decisions that the function has not asked for again yet: the digest of the question, and the decision."""
    _questions: list[ToolCallPart] = field(default_factory=list[ToolCallPart])
    """What the turn waits for."""
    _asked: int = 0
    _restarts: int = 0
    """How often a person had the turn restarted from a step."""
    _answer: _Answer[Any] | None = None
    _open: bool = True
    _steps: Steps = field(init=False)
    _buffer: Buffer = field(init=False)
    _drafts: Drafts = field(init=False)
    _offloader: MediaOffloader = field(init=False)
    _origin: str = ""

    async def run(self) -> Any:
        start, host = self.start, self.start.host
        session_id = start.session.id
        mark_span(session_id=session_id, run_id=self.run_id)
        async with host.enter(session_id, self.run_id, start.session.agent) as entered:
            recorded = await self._recorded_steps()
            await self._continue(recorded)
            history = await open_history(start.store, session_id, entered.checkpoint, entered.messages)
            self._offloader = offloader = MediaOffloader(start.store)
            redone = self._redone(recorded)
            metadata: dict[str, Any] = {"origin": self._origin, "prompt": len(self.before) - 1}
            renewed = self._renewed(recorded, redone)
            if redone:
                metadata |= {"redone": redone, "restarts": self._restarts, "renewed": renewed}
            if start.point.chain:
                metadata["resumes"] = start.point.chain[0].id
            agent = start.session.agent
            self._drafts = Drafts(start.store, entered.lease)
            self._buffer = Buffer(
                start.store,
                entered.lease,
                Run(id=self.run_id, agent=agent, metadata=lenient_json(metadata)),
                host=host,
                offloader=offloader,
                calls=Calls(self.run_id, {}),
                history=history,
            )
            self._steps = Steps(
                ref=(self._origin, _ENTRY),
                store=start.store,
                buffer=self._buffer,
                offloader=offloader,
                threads=RunThreads(),
                redone=redone,
                renewed=renewed,
                settled=host.settled,
                check=self.check_open,
                decide=self._decide,
            )
            started = NewEvent(
                kind="run_started", run_id=self.run_id, payload=lenient_json({"agent": agent, "parent": None})
            )
            self._buffer.begin(Beginning(started, list(start.point.messages), None, ()))
            try:
                await self._close_settled()
                await self._buffer.write(self._buffer.take_step(self._messages, self._kind, None))
                if start.point.begun:
                    await self._steps.load()
                await self._call()
                await (await self._steps.threads.recorded()).deliver()
                await self._drafts.close()
                await self._complete()
            except SystemExit as error:  # raised out of this task it would end the event loop
                exited = AgentExited(what="The agent", error=ledger.describe(error))
                await fail_run(self._buffer, host, exited, self._steps.threads)
                raise exited from error
            except BaseException as error:
                if ended_by := self._steps.ended_by(error):
                    ended = lenient_json({**metadata, "ended_by": ended_by})
                    self._buffer.run = replace(self._buffer.run, metadata=ended)
                await fail_run(self._buffer, host, error, self._steps.threads)
                raise
            finally:
                self._open = False
                await self._drafts.close()

    @property
    def _last(self) -> dict[str, Any]:
        """The metadata of the run that this one continues."""
        return json.loads(self.start.point.chain[0].metadata) if self.start.point.begun else {}

    async def _recorded_steps(self) -> dict[str, Effect]:
        """Return the recorded steps of a turn that is being retried; nothing for any other turn."""
        point, submission = self.start.point, self.start.host.submission
        if submission.kind != "retry" or submission.run_id is not None or not point.begun:
            return {}
        origin = self._last.get("origin", point.chain[-1].id)
        return await ledger.step_entries(self.start.store, self.start.session.id, origin, _ENTRY)

    async def _history_before(self, step: str) -> list[ModelMessage]:
        """Return the history as it was when a step of this turn was started."""
        store, session_id = self.start.store, self.start.session.id
        seq, cursor = await self._started(step), None
        while True:
            page = await store.checkpoints(session_id=session_id, cursor=cursor)
            for checkpoint in page.items:
                if checkpoint.seq < seq:
                    return await load_history(store, checkpoint)
            cursor = page.next_cursor
            if cursor is None:
                return []

    async def _started(self, step: str) -> int:
        """Return the number of the event that tells the start of a step."""
        for run in self.start.point.chain:
            after = 0
            while page := await self.start.store.events(self.start.session.id, run_id=run.id, after=after):
                for event in page:
                    if event.kind == "step_started" and json.loads(event.payload)["call_id"] == step:
                        return event.seq
                after = page[-1].seq
        raise NotFound(what="start of a step of this turn with the id", id=step)

    async def _continue(self, steps: Mapping[str, Effect]) -> None:
        """Find the message of this turn in the history, and what is recorded after it."""
        point = self.start.point
        self._messages = list(point.messages)
        self._origin = self.run_id
        if not point.begun:
            prompt = ModelRequest(parts=[UserPromptPart(self.start.content)], run_id=self.run_id)
            self._messages.append(prompt)
            self.before = list(self._messages)
            return
        last = self._last
        self._origin = last.get("origin", point.chain[-1].id)
        self._restarts = last.get("restarts", 0)
        end = last.get("prompt", len(self._messages) - 1) + 1
        submission = self.start.host.submission
        if submission.kind == "retry" and submission.run_id is None:
            # The function asks again what was not answered.
            self._messages = without_pending_calls(self._messages, self.start.answers)
        if (from_step := self._from_step(steps)) and submission.run_id is None:
            if from_step not in steps:
                raise NotFound(what="step of this turn with the id", id=from_step)
            self._messages = await self._history_before(from_step)
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
        """Answer the questions about steps that a person has settled instead: the function does not ask them again."""
        pending = {
            entry: call for call in pending_calls(self._messages) if (entry := _step_of(call)) is not None
        }
        if not pending:
            return
        steps = await ledger.step_entries(self.start.store, self.start.session.id, self._origin, _ENTRY)
        for entry, call in pending.items():
            given = self.start.answers.get(call.tool_call_id)
            if given is not None and entry in steps and steps[entry].state != "started":
                self._answer_question(call, Decision(given.approved, given.feedback, given.by))

    def _from_step(self, steps: Mapping[str, Effect]) -> str | None:
        """Return the latest entry of the step that a retry starts from; None if it only continues."""
        from_step = step_to_repeat(self.start.host.submission)
        if from_step is None or from_step not in steps:
            return from_step
        entry = ledger.next_entry(ledger.place(from_step), self._last.get("redone", []))
        return entry if entry in steps else None  # it is about to run again anyway

    def _redone(self, steps: dict[str, Effect]) -> list[str]:
        """Return the entries that run again as new ones, because a person retries the turn: the failures that ended it, or all from a step."""
        known: list[str] = self._last.get("redone", [])
        if (from_step := self._from_step(steps)) and steps:
            again = ledger.entries_from({e: steps[e] for e in steps if e not in known}, from_step)
        else:
            ended_by: list[str] = self._last.get("ended_by", [])
            again = [entry for entry in ended_by if entry in steps and steps[entry].state == "failed"]
        return [*known, *(entry for entry in again if entry not in known)]

    def _renewed(self, steps: Mapping[str, Effect], redone: Sequence[str]) -> dict[str, str]:
        """Return, by place, the retry that repeats a completed step. One that failed, or may have failed, is the same request again."""
        known: dict[str, str] = self._last.get("renewed", {})
        again = (entry for entry in redone if entry in steps and steps[entry].state == "completed")
        before: list[str] = self._last.get("redone", [])
        retry = self.start.host.submission.id
        return known | {ledger.place(entry): retry for entry in again if entry not in before}

    @property
    def _kind(self) -> Literal["settled", "interrupted"]:
        return "interrupted" if pending_calls(self._messages) else "settled"

    @property
    def _is_replaying(self) -> bool:
        """Whether the function has not repeated all that is recorded yet, so that it must receive what it received before."""
        recorded = self._added or self._unasked or pending_calls(self._messages)
        return self._steps.is_replaying or bool(recorded)

    @property
    def _unasked(self) -> list[str]:
        """The decided questions that the function has not asked again. One about a step is not asked after that has run."""
        return [call_id for call_id in self._decided if "/" not in call_id]

    async def _call(self) -> None:
        with suppress(Suspended):
            async with self._steps.open():
                value = await self.function(Turn(self))
                if value is not None and self._answer is None:
                    self._answer = _Answer(value)

    async def _complete(self) -> None:
        if self._questions:
            self._messages.append(ModelResponse(parts=list(self._questions), run_id=self._origin))
            notes = {
                call.tool_call_id: {"unsettled": {"run_id": self._origin, "call_id": entry}}
                for call in self._questions
                if (entry := _step_of(call)) is not None
            }
            await complete_run(self._buffer, self.start.host, self._messages, None, notes=notes)
            return
        if left := [*self._unasked, *(_texts(message)[0].content for message in self._added)]:
            raise StepsDiffer(asked="it has ended", recorded=f"{left[0]!r:.80}")
        output: Any = None
        if self._answer is not None:
            output = self._answer.value
            message = _message(output, "assistant", self._origin, {})
            self._messages.append(message)
        await complete_run(self._buffer, self.start.host, self._messages, output)

    def check_open(self) -> None:
        """Raise `BadInput` after the end of the turn, and stop code that continues although the turn waits."""
        if not self._open:
            raise BadInput(problem="the turn has ended")
        if self._questions:
            raise Suspended

    async def ask(self, tool: str, arguments: dict[str, Any]) -> Decision:
        """Return the decision on a question, or suspend the turn until there is one."""
        call_id = ledger.entry(_ASK, self._asked)
        self._asked += 1
        return await self._question(ToolCallPart(tool, arguments, call_id))

    async def _decide(self, name: str, entry: str, attempts: int, arguments: Any) -> bool:
        """Return whether a step may run again although it may have taken effect."""
        question = f"Step {name!r} was interrupted, and it is unknown whether it took effect. Run it again?"
        call = ToolCallPart(name, {"question": question, "arguments": arguments}, f"{entry}#{attempts}")
        return bool(await self._question(call))

    async def _question(self, call: ToolCallPart) -> Decision:
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
            raise Suspended
        if given.digest != digest:
            raise StepsDiffer(asked=f"it asks {call.args_as_dict()}", recorded="another question")
        decision = Decision(given.approved, given.feedback, given.by)
        self._answer_question(call, decision)
        await self._buffer.write(self._buffer.take_step(self._messages, "settled", None))
        return decision

    def _answer_question(self, call: ToolCallPart, decision: Decision) -> None:
        content = {"approved": decision.approved, "feedback": decision.feedback, "by": decision.by}
        self._messages.append(
            ModelRequest(parts=[ToolReturnPart(call.tool_name, content, call.tool_call_id)])
        )

    async def incoming(self) -> list[Any]:
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
            batch = self._buffer.take_step(self._messages, "settled", None, effects=[effect])
            await self._buffer.write(batch)
        return contents

    def draft(self, text: str, kind: Literal["text", "thinking"]) -> None:
        part = 0 if kind == "thinking" else 1
        before = self._drafts.get(part)
        whole = (before.text if before else "") + text
        self._drafts.put(Draft(run_id=self.run_id, part=part, kind=kind, text=whole))

    async def add(self, entry: Any, role: Role) -> None:
        message = _message(entry, role, self._origin, {"entry": True})
        if self._added:
            recorded = self._added.pop(0)
            if [p.content for p in _texts(recorded)] != [p.content for p in _texts(message)]:
                raise StepsDiffer(
                    asked="it adds another entry", recorded=f"{_texts(recorded)[0].content:.80}"
                )
            return
        self._messages.append(message)
        await self._buffer.write(self._buffer.take_step(self._messages, "settled", None))

    def set_answer(self, value: Any) -> None:
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


def _entries(message: ModelMessage) -> list[Any]:
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
