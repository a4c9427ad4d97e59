"""A handle on one submission: a message and its turn, or a command such as undo."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, cast, overload

from pydantic import TypeAdapter, ValidationError

from holdfast.api.models import SessionDetail
from holdfast.api.submissions import SubmissionInfo
from holdfast.approval import ApprovalRequest
from holdfast.client.stream import follow
from holdfast.client.transport import Transport
from holdfast.errors import ApprovalNeeded, TurnFailed

if TYPE_CHECKING:
    from holdfast.events import DraftText, SessionEvent

T = TypeVar("T")
_log = logging.getLogger("holdfast.client")
_CALLS = TypeAdapter(list[ApprovalRequest])
_ENDS = ("submission_done", "submission_failed")
_SOON_SECONDS = 2.0
"""Seconds without an event before a missing worker is logged as a warning."""


class TurnHandle(Generic[T]):
    """An accepted submission. It is durable: it ends, or visibly waits, even if this process exits.

    Await the handle, or `result()`, for its result.
    """

    def __init__(
        self, transport: Transport, accepted: SubmissionInfo, parse: Callable[["TurnOutput"], T]
    ) -> None:
        self._transport = transport
        self._parse = parse
        self.accepted = accepted
        """The submission as it was accepted. `info` returns it as it is now."""
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
    def events(self, *, drafts: Literal[False] = False) -> "AsyncGenerator[SessionEvent, None]": ...
    @overload
    def events(self, *, drafts: bool) -> "AsyncGenerator[SessionEvent | DraftText, None]": ...
    async def events(self, *, drafts: bool = False) -> "AsyncGenerator[SessionEvent | DraftText, None]":
        """Yield the session's events from the moment this submission was queued until it ends."""
        async with aclosing(
            follow(self._transport, self.session_id, after=self.position, drafts=drafts)
        ) as events:
            async for event in events:
                yield event
                if event.kind in _ENDS and getattr(event, "submission_id", None) == self.id:
                    return

    async def result(self, *, timeout: float | None = None) -> T:  # noqa: ASYNC109 - part of the interface
        """Wait until the submission has ended, and return its result.

        Raises `TurnFailed` if it failed, and `ApprovalNeeded` if it waits for a person: decide with `session.approve` or
        `session.deny`, then call `result` again. Raises `TimeoutError` after `timeout` seconds. The turn continues after both.
        """
        warning = asyncio.create_task(self._warn())
        try:
            async with asyncio.timeout(timeout):
                return self._parse(await self._output())
        finally:
            warning.cancel()
            await asyncio.gather(warning, return_exceptions=True)

    async def retry(self, *, from_step: str | None = None) -> "TurnHandle[T]":
        """Continue a turn that failed, was interrupted or was given up, and return a handle on the new attempt.

        Recorded tool calls and steps are not repeated, except a failed step that ended a plain agent's turn. With `from_step`,
        the call id of a plain agent's step, that step and all later ones are repeated, even if the turn is done. Raises
        `TurnNotRetriable` if the turn cannot be retried. The new attempt fails if the session has continued since.
        """
        path = f"/api/sessions/{self.session_id}/retry"
        body = {"submission_id": self.id} | ({} if from_step is None else {"from_step": from_step})
        accepted = await self._transport.call(SubmissionInfo, "POST", path, json=body)
        return TurnHandle(self._transport, accepted, self._parse)

    async def undo_effects(self) -> "TurnHandle[None]":
        """Undo the effects of a turn that has ended: run the undo functions of its completed steps, the last one first.

        Await the returned handle to wait for it. It raises `TurnFailed` if the undo stops at a step; the next call continues there. If
        nothing is left to undo, nothing runs. The history stays unchanged.
        """
        path = f"/api/sessions/{self.session_id}/undo-effects"
        accepted = await self._transport.call(SubmissionInfo, "POST", path, json={"submission_id": self.id})
        return TurnHandle(self._transport, accepted, no_output)

    async def cancel(self) -> "TurnHandle[None]":
        """Stop the turn if it is running or waiting, or remove it from the queue if it has not started. `result` then raises `TurnFailed`.

        Await the returned handle to wait until a worker has done so. If the turn has ended, nothing changes.
        """
        path = f"/api/sessions/{self.session_id}/interrupt"
        accepted = await self._transport.call(SubmissionInfo, "POST", path, json={"submission_id": self.id})
        return TurnHandle(self._transport, accepted, no_output)

    async def _output(self) -> "TurnOutput":
        output = TurnOutput(self.id)
        questions = _OpenQuestions()
        newest = 0  # the last event there was when a question was read
        path = f"/api/sessions/{self.session_id}/events"
        async with aclosing(self._transport.stream(path, after=self.position)) as events:
            async for kind, event in events:
                if kind == "draft":
                    continue
                payload = _object(event["payload"])
                questions.read(kind, payload)
                is_own = payload.get("submission_id") == self.id
                if kind == "submission_started" and is_own:
                    output = TurnOutput(self.id)  # earlier responses belong to another turn
                elif kind == "submission_done" and is_own:
                    return output
                elif kind == "submission_failed" and is_own:
                    state, reason = payload.get("state"), payload.get("reason")
                    raise TurnFailed(id=self.id, session_id=self.session_id, state=state, reason=reason)
                elif kind == "approval_requested" and event["seq"] >= newest:
                    newest = (await self._transport.patiently(self._session)).seq
                output.read(kind, event)
                if questions.are_open and event["seq"] >= newest and await self._is_waiting():
                    self._raise_needed(questions.calls)
        return output

    def _raise_needed(self, calls: list[ApprovalRequest]) -> None:
        tools = ", ".join(call.tool for call in calls)
        raise ApprovalNeeded(id=self.id, session_id=self.session_id, tools=tools, calls=calls)

    async def _is_waiting(self) -> bool:
        return (await self._transport.patiently(self.info)).state == "waiting"

    async def problem(self) -> str | None:
        """Return the reason why no worker continues the session, and the remedy; None if a worker does."""
        return (await self._session()).problem

    async def _session(self) -> SessionDetail:
        return await self._transport.call(SessionDetail, "GET", f"/api/sessions/{self.session_id}")

    async def _warn(self) -> None:
        """Log the reason if no worker takes the submission for a while."""
        await asyncio.sleep(_SOON_SECONDS)
        problem = (await self._session()).problem
        if problem is not None:
            _log.warning("Session %s waits. %s", self.session_id, problem)


class TurnOutput:
    """The output of a turn: that of its run, or the text of the last response of the model."""

    def __init__(self, id: str) -> None:
        self.id = id
        self.text: str | None = None
        self._outputs: list[Any] = []

    def read(self, kind: str, event: dict[str, Any]) -> None:
        """Take the output from an event."""
        payload, message = _object(event["payload"]), _object(event.get("message"))
        if kind == "run_completed":
            self._outputs = [payload["output"]] if "output" in payload else []
        elif kind == "message" and message.get("kind") == "response":
            self.text = text_of(message.get("parts", []))

    @property
    def value(self) -> Any:
        """The output of the agent: text, or the serialized value of its output type."""
        return self._outputs[0] if self._outputs else self.text or ""


def no_output(output: TurnOutput) -> None:
    """Return the result of a command: none."""
    del output


def _object(value: Any) -> dict[str, Any]:
    """Return a value if it is an object. Another program may write events of any form."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def text_of(parts: list[dict[str, Any]]) -> str | None:
    """Return the text of a response, as `ModelResponse.text` does: parts that are not adjacent are separate paragraphs."""
    texts: list[str] = []
    is_adjacent = False
    for part in parts:
        is_text = part.get("part_kind") in {"text", "speech"} and bool(part.get("content"))
        if is_text and is_adjacent:
            texts[-1] += part["content"]
        elif is_text:
            texts.append(part["content"])
        is_adjacent = is_text
    return "\n\n".join(texts) or None


class _OpenQuestions:
    """The tool calls of a session that wait for a decision, as its events show them."""

    def __init__(self) -> None:
        self._asked: dict[str, ApprovalRequest] = {}
        self._on_their_way: set[str] = set()

    @property
    def are_open(self) -> bool:
        """Whether a decision is missing and not yet submitted."""
        return bool(self._asked) and not self._on_their_way

    @property
    def calls(self) -> list[ApprovalRequest]:
        return list(self._asked.values())

    def read(self, kind: str, payload: dict[str, Any]) -> None:
        submission_id = str(payload.get("submission_id"))
        if kind == "approval_requested":
            with suppress(ValidationError):  # written by another version, or by another program
                calls = _CALLS.validate_python(payload.get("calls"))
                self._asked = {call.call_id: call for call in calls}
        elif kind == "approval_answered":
            self._asked.pop(str(payload.get("call_id")), None)
        elif kind == "submission_queued" and payload.get("kind") in {"approval", "interrupt"}:
            self._on_their_way.add(submission_id)
        elif kind in _ENDS:
            self._on_their_way.discard(submission_id)
