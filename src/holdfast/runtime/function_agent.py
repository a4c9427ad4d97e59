"""Plain agents: an async function that Holdfast runs like any other agent, without a framework.

    @holdfast.agent("researcher")
    async def researcher(turn: Turn) -> None:
        plan = await turn.step("plan", call_model, turn.messages)
        if await turn.ask("Publish?", plan):
            await turn.step("publish", publish, plan)
        await turn.answer("done")

After a crash, a hand-over or an answered question, the function runs again from the top, on any worker, and recorded steps return
their results. Code outside steps must be harmless to repeat.
"""

import json
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from inspect import iscoroutinefunction
from typing import Any, Literal, TypeAlias

from pydantic_ai.messages import (
    ModelMessage,
    UserContent,
)
from pydantic_ai.usage import RequestUsage
from pydantic_core import to_jsonable_python

from holdfast.approval import Default
from holdfast.budgets import Budget, check_budgets
from holdfast.errors import BadInput, Conflict
from holdfast.ids import check_text
from holdfast.jsontext import strict_json
from holdfast.record import ledger
from holdfast.record.deadlines import Deadline
from holdfast.record.steps import step
from holdfast.record.undo import AnyUndo, OnFailure, Undo, check_undo_options, undos_by_name
from holdfast.record.usage import MOST_DOLLARS, MOST_TOKENS
from holdfast.record.wait_requests import signal, sleep, sleep_until
from holdfast.runtime.attachment import Attachment
from holdfast.runtime.context import SessionContext, current_session
from holdfast.runtime.function_run import Decision, FunctionRun, Role, entries_of
from holdfast.runtime.runner import Requests, TurnStart
from holdfast.types import Session


class Turn:
    """One turn of a plain agent: the message to answer, the history before it, and the operations that the agent can use.

    `messages` is the history up to this turn's message, with the role and content of each entry, as most model APIs expect.
    `content` is this turn's message; `session` is the session with its state and credentials. `step` is `holdfast.step`; `sleep`,
    `sleep_until` and `signal` are those of `holdfast`.
    """

    def __init__(self, run: FunctionRun) -> None:
        self._run = run
        self.content: str | Sequence[UserContent] = run.start.content
        self.messages: list[Any] = [entry for message in run.before for entry in entries_of(message)]
        self.run_id = run.run_id
        self.step = step
        self.sleep = sleep
        self.sleep_until = sleep_until
        self.signal = signal

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

    async def ask(
        self,
        question: str,
        detail: Any = None,
        *,
        deadline: datetime | timedelta | None = None,
        default: Default | None = None,
    ) -> Decision:
        """Ask a person and return the decision. While the turn waits, it uses no process.

        The person sees the question and the detail, and approves or denies. If there is no answer at the `deadline`, a time or a
        duration from now, the `default` applies: `deny` or `approve` is the decision, by `deadline`; `fail` ends the turn as failed;
        `remind` records a reminder, at most ten times, and waits on. The deadline that was recorded when the question was first asked
        counts. Raises `BadInput` within a step, and for a deadline that is not ahead, more than ten years ahead, or without a default.
        """
        self._run.check_open()
        if ledger.current_call.get() is not None:
            raise BadInput(problem="`turn.ask` cannot be used within a step. Call it before the step")
        arguments: dict[str, Any] = {"question": question}
        if detail is not None:
            arguments["detail"] = json.loads(strict_json(to_jsonable_python(detail), "detail"))
        if deadline is None and default is None:
            return await self._run.ask(arguments)
        if deadline is None or default is None:
            raise BadInput(problem="`turn.ask` needs both a `deadline` and a `default`, or neither")
        return await self._run.ask(arguments, Deadline.checked(deadline, default, what="`turn.ask`"))

    async def incoming(self) -> list[Any]:
        """Return the messages that were sent to steer this turn since the last call, and add them to the history."""
        self._run.check_open()
        return await self._run.incoming()

    async def draft(self, text: str, *, kind: Literal["text", "thinking"] = "text") -> None:
        """Append to the draft that clients see while the answer is generated. Drafts are not recorded."""
        self._run.check_open()
        self._run.draft(text, kind)

    def count_request(
        self,
        model: str,
        *,
        input_tokens: int = 0,
        output_tokens: int = 0,
        cache_read_tokens: int = 0,
        cache_write_tokens: int = 0,
        tool_calls: int = 0,
        cost: Decimal | float | None = None,
    ) -> None:
        """Count a model request in the usage of the session. Call it in the step that makes the request, so that it is counted once.

        The input includes the tokens from and for the cache. `cost` is in dollars; a price of the model in the settings overrides it.
        Raises `BadInput` for numbers that cannot be right.
        """
        self._run.check_open()
        check_text(model, "model")
        numbers = (input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, tool_calls)
        if not all(type(number) is int and 0 <= number <= MOST_TOKENS for number in numbers):
            raise BadInput(problem=f"tokens and tool calls must be integers from 0 to {MOST_TOKENS}")
        if cost is not None and not (math.isfinite(cost) and 0 <= cost <= MOST_DOLLARS):
            raise BadInput(problem=f"the cost of a request must be 0 to {MOST_DOLLARS} dollars, not {cost}")
        known = None if cost is None else Decimal(str(cost))
        usage = RequestUsage(
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            cache_read_tokens=cache_read_tokens,
            cache_write_tokens=cache_write_tokens,
        )
        meter = self._run.buffer.meter
        meter.add(meter.count(model, usage, cost=known, tool_calls=tool_calls))

    async def add(self, entry: Any, *, role: Role = "assistant") -> None:
        """Add an entry to the history: a text, or any JSON. It is part of `messages` in later turns."""
        self._run.check_open()
        await self._run.add(entry, role)

    async def answer(self, value: Any) -> None:
        """Set the result of the turn: a text, or any JSON. It is recorded when the function ends."""
        self._run.check_open()
        self._run.set_answer(value)


Function: TypeAlias = Callable[[Turn], Awaitable[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionAgent:
    """A plain agent: a function that runs each turn of its sessions. Created by `holdfast.agent`."""

    name: str
    function: Function
    run_timeout: float | None = None
    attached: bool | Attachment = False
    budgets: Sequence[Budget] = ()
    undo: Sequence[AnyUndo] = ()
    on_failure: OnFailure | None = None

    def __post_init__(self) -> None:
        check_undo_options(self.undo, self.on_failure)
        check_budgets(self.budgets)

    @property
    def undos(self) -> Mapping[str, Undo]:
        """The functions that undo its steps, by name."""
        return undos_by_name(self.undo)

    async def prepare(self, start: TurnStart) -> Awaitable[Any]:
        """Return the code that runs the function for one turn."""
        return FunctionRun(lambda run: self.function(Turn(run)), start, self.undos).run()

    async def compact(
        self, session: Session, messages: list[ModelMessage]
    ) -> tuple[Sequence[ModelMessage], Requests]:
        """Raise `Conflict`: only the function can interpret its history."""
        del session, messages
        raise Conflict(
            problem=f"the agent {self.name!r} is a plain function, which cannot compact its history"
        )

    def allows_edits(self, tool: str) -> bool:
        """Return false: the arguments are the function's questions and cannot be edited."""
        del tool
        return False


def agent(
    name: str,
    *,
    run_timeout: float | None = None,
    attached: bool | Attachment = False,
    budgets: Sequence[Budget] = (),
    undo: Sequence[AnyUndo] = (),
    on_failure: OnFailure | None = None,
) -> Callable[[Function], FunctionAgent]:
    """Turn an async function that takes a `Turn` into an agent.

    `run_timeout` limits the duration of a run, in seconds. With `attached`, turns of sessions created over HTTP are handed over
    or interrupted when no client watches them. `budgets` limit its turns, its sessions and the agent as a whole. `undo` lists the functions that undo steps; with `on_failure="undo"` they run when a turn
    fails or is interrupted.
    """

    def make(function: Function) -> FunctionAgent:
        if not iscoroutinefunction(function):
            raise BadInput(problem=f"the agent {name!r} must be an async function")
        return FunctionAgent(
            name=name,
            function=function,
            run_timeout=run_timeout,
            attached=attached,
            budgets=budgets,
            undo=undo,
            on_failure=on_failure,
        )

    return make
