"""A handle on one submission: a message and its turn, or a command such as undo."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import aclosing
from typing import Any, Generic, Literal, TypeVar, overload

from pydantic_ai.messages import ModelResponse

from holdfast.api.models import ApprovalRequest, SessionDetail, SubmissionInfo
from holdfast.client.stream import follow
from holdfast.client.transport import Transport
from holdfast.errors import ApprovalNeeded, TurnFailed
from holdfast.events import (
    ApprovalAnswered,
    ApprovalRequested,
    Draft,
    MessageAdded,
    RunCompleted,
    SessionEvent,
    SubmissionDone,
    SubmissionFailed,
    SubmissionQueued,
    SubmissionStarted,
)

T = TypeVar("T")
_log = logging.getLogger("holdfast.client")
_SOON_SECONDS = 2.0
"""After so long without an event, a missing worker is worth a warning."""


class TurnHandle(Generic[T]):
    """A submission that was accepted. It is durable: it ends, or visibly waits, even if this process ends.

    Await the handle, or `result()`, for its result.
    """

    def __init__(
        self, transport: Transport, accepted: SubmissionInfo, parse: Callable[["TurnOutput"], T]
    ) -> None:
        self._transport = transport
        self._parse = parse
        self.id: str = accepted.submission_id
        """The id of the submission."""
        self.session_id: str = accepted.session_id
        self.position: int = accepted.position
        """The number of the event that queued it. Its own events follow."""

    def __repr__(self) -> str:
        return f"TurnHandle(session_id={self.session_id!r}, id={self.id!r})"

    def __await__(self) -> Generator[Any, None, T]:
        return self.result().__await__()

    async def info(self) -> SubmissionInfo:
        """Return the state of the submission."""
        path = f"/api/sessions/{self.session_id}/submissions/{self.id}"
        return await self._transport.call(SubmissionInfo, "GET", path)

    @overload
    def events(self, *, drafts: Literal[False] = False) -> AsyncGenerator[SessionEvent, None]: ...
    @overload
    def events(self, *, drafts: bool) -> AsyncGenerator[SessionEvent | Draft, None]: ...
    async def events(self, *, drafts: bool = False) -> AsyncGenerator[SessionEvent | Draft, None]:
        """Yield the events of the session from the moment this submission was queued until it has ended."""
        async with aclosing(
            follow(self._transport, self.session_id, after=self.position, drafts=drafts)
        ) as events:
            async for event in events:
                yield event
                if isinstance(event, SubmissionDone | SubmissionFailed) and event.submission_id == self.id:
                    return

    async def result(self, *, timeout: float | None = None) -> T:  # noqa: ASYNC109 - part of the interface
        """Wait until the submission has ended, and return its result.

        Raises `TurnFailed` if it failed, and `ApprovalNeeded` if it waits for a person: decide with `session.approve` or
        `session.deny`, then call `result` again. Raises `TimeoutError` after `timeout` seconds. The turn continues after both.
        """
        warning = asyncio.create_task(self._warn())
        try:
            async with asyncio.timeout(timeout), aclosing(self.events()) as events:
                return self._parse(await self._output(events))
        finally:
            warning.cancel()
            await asyncio.gather(warning, return_exceptions=True)

    async def retry(self, *, from_step: str | None = None) -> "TurnHandle[T]":
        """Continue a turn that failed, was interrupted or was given up, and return a handle on the new attempt.

        Recorded tool calls and steps are not done again; a step whose failure ended a plain agent's turn is. With `from_step`, the call id
        of a step of a plain agent, that step and all later ones are done again, and the turn may also be done. Raises `TurnNotRetriable` if
        the turn cannot be retried. The new attempt fails if the session has continued since.
        """
        path = f"/api/sessions/{self.session_id}/retry"
        body = {"submission_id": self.id} | ({} if from_step is None else {"from_step": from_step})
        accepted = await self._transport.call(SubmissionInfo, "POST", path, json=body)
        return TurnHandle(self._transport, accepted, self._parse)

    async def cancel(self) -> None:
        """Stop the turn if it runs or waits, and remove it from the queue if it has not started. Then `result` raises `TurnFailed`."""
        path = f"/api/sessions/{self.session_id}/interrupt"
        await self._transport.call(SubmissionInfo, "POST", path, json={"submission_id": self.id})

    async def _output(self, events: AsyncGenerator[SessionEvent, None]) -> "TurnOutput":
        output = TurnOutput(self.id)
        questions = _OpenQuestions()
        newest = 0  # the last event there was when a question was read
        async for event in events:
            questions.read(event)
            match event:
                case SubmissionStarted(submission_id=self.id):
                    output = TurnOutput(self.id)  # earlier responses belong to another turn
                case MessageAdded(message=ModelResponse() as response):
                    output.response = response
                case RunCompleted():
                    output.completed = event
                case SubmissionFailed(submission_id=self.id, reason=reason, state=state):
                    raise TurnFailed(id=self.id, session_id=self.session_id, state=state, reason=reason)
                case ApprovalRequested() if event.seq >= newest:
                    newest = (await self._transport.patiently(self._session)).seq
                case _:
                    pass
            if questions.are_open and event.seq >= newest and await self._is_waiting():
                self._raise_needed(questions.calls)
        return output

    def _raise_needed(self, calls: list[ApprovalRequest]) -> None:
        tools = ", ".join(call.tool for call in calls)
        raise ApprovalNeeded(id=self.id, session_id=self.session_id, tools=tools, calls=calls)

    async def _is_waiting(self) -> bool:
        return (await self._transport.patiently(self.info)).state == "waiting"

    async def _session(self) -> SessionDetail:
        return await self._transport.call(SessionDetail, "GET", f"/api/sessions/{self.session_id}")

    async def _warn(self) -> None:
        """Log why no worker takes the submission, if that is so for a while."""
        await asyncio.sleep(_SOON_SECONDS)
        problem = (await self._session()).problem
        if problem is not None:
            _log.warning("Session %s waits. %s", self.session_id, problem)


class TurnOutput:
    """The output of a turn: the last response of the model, and the event of the run that completed."""

    def __init__(self, id: str) -> None:
        self.id = id
        self.response: ModelResponse | None = None
        self.completed: RunCompleted | None = None

    @property
    def value(self) -> Any:
        """The output of the agent: text, or what its output type was serialized to."""
        if self.completed is not None and "output" in self.completed.model_fields_set:
            return self.completed.output
        return "" if self.response is None else self.response.text or ""


class _OpenQuestions:
    """The tool calls of a session that wait for a decision, as its events show them."""

    def __init__(self) -> None:
        self._asked: dict[str, ApprovalRequest] = {}
        self._on_their_way: set[str] = set()

    @property
    def are_open(self) -> bool:
        """Whether a decision is missing, and none is on its way."""
        return bool(self._asked) and not self._on_their_way

    @property
    def calls(self) -> list[ApprovalRequest]:
        return list(self._asked.values())

    def read(self, event: SessionEvent) -> None:
        match event:
            case ApprovalRequested(calls=calls):
                self._asked = {call.call_id: call for call in calls}
            case ApprovalAnswered(call_id=call_id):
                self._asked.pop(call_id, None)
            case SubmissionQueued(submission_kind="approval" | "interrupt", submission_id=id):
                self._on_their_way.add(id)
            case SubmissionDone(submission_id=id) | SubmissionFailed(submission_id=id):
                self._on_their_way.discard(id)
            case _:
                pass
