"""The events of a session as Vercel's AI data stream, or as AG-UI.

Pydantic AI's event streams encode the protocols; this module turns the events of a session into their input. The last block of an
event has its number as the id, so that a client which reconnects misses nothing. For a client that reconnects in the middle of a
run, the earlier events of the run are translated first and not sent again.
"""

import json
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Final, TypeAlias

from pydantic import TypeAdapter
from pydantic_ai import AgentRunResult, AgentRunResultEvent, DeferredToolRequests
from pydantic_ai.exceptions import AgentRunError, RunCancelled
from pydantic_ai.messages import (
    EnqueuedMessagesEvent,
    FunctionToolCallEvent,
    FunctionToolResultEvent,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    ModelResponsePart,
    PartDeltaEvent,
    PartEndEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.ui import UIEventStream
from pydantic_ai.ui.vercel_ai import VercelAIEventStream

from holdfast.api.models import Format
from holdfast.errors import MissingExtra, NotFound
from holdfast.operations.channel import COMMENT, REFUSED, Channel, Subscriber
from holdfast.record.history import load
from holdfast.record.offloader import MediaOffloader
from holdfast.store import Store
from holdfast.types import Draft, Event

Stream: TypeAlias = UIEventStream[Any, Any, Any, Any]
_PIECE: Final = 1024 * 1024
"""The amount of text to send at a time. The text of a page may be much larger than the page."""
_ENDS: Final = ("run_completed", "run_failed", "run_interrupted", "approval_requested")


@cache
def _adapter() -> TypeAdapter[AgentRunResult[Any]]:
    return TypeAdapter(AgentRunResult[Any])  # takes 0.2 s


class _Numbered(Stream):
    """Ids of messages are made of the run and their position in it, so that all readers of a run get the same ids."""

    _count: int = 0

    def new_message_id(self) -> str:
        self._count += 1
        self.message_id = f"{self.message_id.rpartition('-')[0]}-{self._count}"
        return self.message_id


@dataclass
class _Vercel(_Numbered, VercelAIEventStream[Any, Any]):  # pyright: ignore[reportIncompatibleVariableOverride]
    pass


def stream_factory(format: Format, session_id: str, given_id: str | None = None) -> Callable[[str], Stream]:
    """Return a function that creates the stream of a run. Raises `MissingExtra` if the format is not installed.

    `given_id` is what the client calls the message, or in AG-UI the run, if it named it.
    """
    if format == "vercel":
        return lambda run_id: _Vercel(
            message_id=f"{run_id}-0", server_message_id=given_id or run_id, sdk_version=6
        )
    try:
        from pydantic_ai.ui.ag_ui import AGUIEventStream
    except ImportError as error:
        raise MissingExtra(extra="ag-ui") from error

    @dataclass
    class AgUi(_Numbered, AGUIEventStream[Any, Any]):  # pyright: ignore[reportIncompatibleVariableOverride]
        def encode_event(self, event: Any) -> str:
            # The answer to an interrupt has only its id, so the id names the arguments, too.
            for interrupt in getattr(getattr(event, "outcome", None), "interrupts", None) or ():
                interrupt.id = f"{interrupt.id}-{interrupt.metadata['digest']}"
            return super().encode_event(event)

    return lambda run_id: AgUi(message_id=f"{run_id}-0", thread_id=session_id, run_id=given_id or run_id)


class _NeedInput:
    """Awaited by a translation that needs more events."""

    def __await__(self) -> Generator["_NeedInput", None, None]:
        yield self


class _Feed(AsyncIterator[Any]):
    """The events to translate now. Awaits `_NeedInput` when there are no more."""

    def __init__(self) -> None:
        self.waiting: deque[Any] = deque()
        self.end: BaseException | None = None

    async def __anext__(self) -> Any:
        while not self.waiting:
            if self.end is not None:
                raise self.end
            await _NeedInput()
        return self.waiting.popleft()


class Translation:
    """The translation of a run into a protocol: events in, text out, without waiting for anything but more events."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._source = _Feed()
        self._output = stream.transform_stream(self._source)
        self._step: Any = None

    def translate(self, *events: Any) -> list[str]:
        """Return these events as blocks of the protocol."""
        self._source.waiting.extend(events)
        blocks: list[str] = []
        while True:
            if self._step is None:
                self._step = self._output.__anext__()
            try:
                awaited = self._step.send(None)
            except StopIteration as done:
                self._step = None
                blocks.append(self._stream.encode_event(done.value))
            except StopAsyncIteration:
                self._step = None
                return blocks
            else:
                if not isinstance(awaited, _NeedInput):
                    raise TypeError(f"{type(self._stream).__name__} waits for {awaited!r}")
                return blocks

    def end(self, error: Exception | None = None) -> list[str]:
        """Return the last blocks: the end, or an error."""
        self._source.end = StopAsyncIteration() if error is None else error
        return self.translate()

    def close(self) -> None:
        """Stop the translation where it is."""
        if self._step is not None:
            with suppress(GeneratorExit, StopAsyncIteration, StopIteration):
                self._step.throw(GeneratorExit())
            self._step = None


@dataclass
class StreamFormatter:
    """Sends the events of a session to one client in a protocol."""

    store: Store
    session_id: str
    new_stream: Callable[[str], Stream]
    follow: bool = True
    submission_id: str | None = None
    """Send only the turn of this submission."""
    answered: int = 0
    """Questions up to this event are answered: the turn continues after them."""
    _is_reached: bool = False
    _run: str | None = None
    _translation: Translation | None = None
    _handed_over: bool = False  # the next run continues the output of this one
    _prompts: list[UserPromptPart] | None = None  # the latest ones; None before the first request of a run
    _is_done: bool = False
    _ended: set[str] = field(default_factory=set[str])
    _calls: dict[str, ToolCallPart] = field(default_factory=dict[str, ToolCallPart])
    _response: ModelResponse | None = None
    _open: int | None = None
    _shown: dict[int, TextPart | ThinkingPart] = field(default_factory=dict[int, TextPart | ThinkingPart])
    _finished: dict[int, str] = field(default_factory=dict[int, str])

    async def feed(self, channel: Channel, client: Subscriber, after: int) -> None:
        """Send the events after number `after` and then new ones, until the client disconnects or, without `follow`, a run ends."""
        seen: object = None
        try:
            while not client.gone:
                if client.refused:
                    await client.send(_ending(REFUSED))
                    return
                if (
                    after < channel.latest
                    and (reached := await self._send_page(channel, client, after)) > after
                ):
                    after = reached
                    if self._is_done:
                        return
                elif seen is not channel.drafts and channel.is_due(after):
                    seen = channel.drafts
                    if text := "".join(await self.show(channel.drafts, after)):
                        await client.send(text.encode("utf-8", "replace"))
                elif channel.ended is not None:
                    await client.send(_ending(channel.ended))
                    return
                elif client.silent:
                    client.silent = False
                    await client.send(COMMENT)
                else:
                    await client.wait()
        finally:
            if self._translation is not None:
                self._translation.close()

    async def _send_page(self, channel: Channel, client: Subscriber, after: int) -> int:
        """Send a page of the events after a number, and return the number of its last event."""
        text = ""
        page = await channel.page(after)
        for event in page:
            after = event.seq
            text += numbered(await self.add(event), after)
            self._is_done = not self.follow and self._run is None and self._is_end(event)
            if len(text) >= _PIECE or self._is_done:
                await client.send(text.encode("utf-8", "replace"))
                text = ""
            if self._is_done:
                return after
        if page:
            await client.send(text.encode("utf-8", "replace"))
        return after

    def _is_end(self, event: Event) -> bool:
        if self.submission_id is None:
            return event.kind in _ENDS
        if not self._is_reached:
            return False
        return event.kind in _ENDS or (event.kind == "submission_failed" and self._is_ours(event))

    def _is_ours(self, event: Event) -> bool:
        return json.loads(event.payload).get("submission_id") == self.submission_id

    async def add(self, event: Event) -> list[str]:
        """Return an event as blocks of the protocol. Many events have none."""
        if self.submission_id is not None and event.kind.startswith("submission_") and self._is_ours(event):
            self._is_reached = True
            if event.kind == "submission_failed" and self._run is None and not self._ended:
                return self._refuse(str(json.loads(event.payload).get("reason")))
            return []
        if event.run_id is None or (self.submission_id is not None and not self._is_reached):
            return []
        facts: dict[str, Any] = json.loads(event.payload)
        if event.kind == "run_started":
            return self._begin(event.run_id, facts.get("parent"))
        if event.kind == "recovered" and facts["run_id"] == self._run:
            self._run = event.run_id
            return []
        if self._run is None:
            await self._catch_up(event.run_id, event.seq)
        return await self._of_run(event, facts) if event.run_id == self._run else []

    async def _of_run(self, event: Event, facts: Mapping[str, Any]) -> list[str]:
        match event.kind:
            case "message" if event.message is not None:
                (message,) = load(await MediaOffloader(self.store).back([event.message]))
                return self._message(message, event.seq)
            case "partial_response":
                return [block for part in facts["parts"] for block in self._streamed(part)]
            case "tool_call_started":
                return self._announce(facts["call_id"])
            case "run_completed":
                return self._end("" if self._response is None else self._response.text)
            case "approval_requested" if event.seq <= self.answered:
                self._handed_over = True
                return [block for call in facts["calls"] for block in self._announce(call["call_id"])]
            case "approval_requested":
                return self._request_approvals(facts["calls"])
            case "run_failed":
                return self._fail(AgentRunError(str(facts.get("error") or "the run failed")))
            case "run_interrupted":
                return self._fail(RunCancelled("The run was interrupted."))
            case "handover":
                self._handed_over = True
                return []
            case _:
                return []

    async def show(self, drafts: Mapping[tuple[str, int], Draft], after: int) -> list[str]:
        """Return the additions to the drafts."""
        blocks: list[str] = []
        if self.submission_id is not None and not self._is_reached:
            return blocks
        for (run_id, index), draft in sorted(drafts.items()):
            if self._run is None:
                await self._catch_up(run_id, after + 1)
            # Drafts are read separately from events: skip a draft that its message has already replaced.
            if run_id == self._run and not self._finished.get(index, "").startswith(draft.text or " "):
                make = TextPart if draft.kind == "text" else ThinkingPart
                blocks += self._text(index, make(content=draft.text), is_draft=True)
        return blocks

    # A run

    def _begin(self, run_id: str, parent: str | None) -> list[str]:
        if run_id == self._run or (self._run is not None and parent is not None):
            return []
        if self._handed_over:
            self._run, self._handed_over = run_id, False
            return []
        left = [] if self._run is None else self._fail(AgentRunError("the run was abandoned"))
        self._run, self._prompts = run_id, None
        self._translation = Translation(self.new_stream(run_id))
        return [*left, *self._translation.translate()]

    def _refuse(self, reason: str) -> list[str]:
        """Return a response that fails before any run."""
        self._run = str(self.submission_id)
        self._translation = Translation(self.new_stream(self._run))
        return [*self._translation.translate(), *self._fail(AgentRunError(reason))]

    async def _catch_up(self, run_id: str, before: int) -> None:
        """Translate the events of a run before the client's number, without sending them."""
        if run_id in self._ended:
            return
        with suppress(NotFound):
            run = await self.store.run(run_id)
            if run.parent_id is not None or run.first_seq >= before:
                return
            self._begin(run_id, None)
            after = run.first_seq - 1
            while page := await self.store.events(self.session_id, after=after, run_id=run_id):
                after = page[-1].seq
                for event in page:
                    if event.seq < before and self._run is not None:
                        await self.add(event)
                if after >= before:
                    return

    def _end(self, output: object) -> list[str]:
        blocks = self._close_part()
        assert self._translation is not None  # noqa: S101
        if self._response is not None:
            result = _adapter().validate_python({"output": output, "messages": [self._response]})
            blocks += self._translation.translate(AgentRunResultEvent(result))
        return [*blocks, *self._finish()]

    def _fail(self, error: Exception) -> list[str]:
        return self._finish(error)

    def _finish(self, error: Exception | None = None) -> list[str]:
        assert self._translation is not None  # noqa: S101
        blocks = self._translation.end(error)
        if self._run is not None:
            self._ended.add(self._run)
        self._run, self._translation, self._response, self._open = None, None, None, None
        self._handed_over = False
        self._shown, self._finished = {}, {}
        return blocks

    # Messages and tool calls

    def _message(self, message: ModelMessage, seq: int) -> list[str]:
        assert self._translation is not None  # noqa: S101
        blocks: list[str] = []
        if isinstance(message, ModelResponse):
            for index, part in enumerate(message.parts):
                blocks += self._part(index, part)
            blocks += self._close_part()
            self._response = message
            self._finished = {index: part.content for index, part in self._shown.items()}
            self._shown = {}
            return blocks
        self._finished = {}
        prompts = [part for part in message.parts if isinstance(part, UserPromptPart)]
        for part in message.parts:
            if isinstance(part, ToolReturnPart):
                blocks += self._translation.translate(FunctionToolResultEvent(part))
        # A run that continues another one records the same request again. Another prompt was sent while the run was running.
        if prompts and self._prompts is not None and prompts != self._prompts:
            steered: tuple[ModelRequest, ...] = (replace(message, parts=prompts),)
            blocks += self._translation.translate(
                EnqueuedMessagesEvent(enqueue_id=f"event-{seq}", messages=steered)
            )
        self._prompts = prompts or self._prompts or []
        return blocks

    def _part(self, index: int, part: ModelResponsePart) -> list[str]:
        assert self._translation is not None  # noqa: S101
        if isinstance(part, TextPart | ThinkingPart):
            blocks = self._text(index, part)
            if self._open == index:
                self._shown[index] = part
                blocks += self._close_part()
            return blocks
        if isinstance(part, ToolCallPart):
            self._calls[part.tool_call_id] = part
        events = [PartStartEvent(index=index, part=part), PartEndEvent(index=index, part=part)]
        return [*self._close_part(), *self._translation.translate(*events)]

    def _streamed(self, part: Mapping[str, Any]) -> list[str]:
        """Return the blocks of a part that the model had streamed when the run was stopped or failed."""
        make = TextPart if part["part_kind"] == "text" else ThinkingPart
        return self._part(part["index"], make(content=part["content"]))

    def _text(self, index: int, part: TextPart | ThinkingPart, *, is_draft: bool = False) -> list[str]:
        """Return the blocks of a text, or of its addition since it was last shown.

        After a worker was replaced, the model generates the text again: nothing is sent until there is more than was shown. A
        different text becomes another part, because the protocols cannot take back a text.
        """
        assert self._translation is not None  # noqa: S101
        before = self._shown.get(index)
        if before is not None and (
            before.content == part.content or (is_draft and before.content.startswith(part.content))
        ):
            return []
        if before is not None and self._open == index and part.content.startswith(before.content):
            self._shown[index] = part
            delta = TextPartDelta if isinstance(part, TextPart) else ThinkingPartDelta
            gain = delta(content_delta=part.content[len(before.content) :])
            return self._translation.translate(PartDeltaEvent(index=index, delta=gain))
        blocks = self._close_part()
        if before is not None:  # the parts after it are generated again, too
            self._shown = {number: shown for number, shown in self._shown.items() if number < index}
        self._shown[index], self._open = part, index
        return [*blocks, *self._translation.translate(PartStartEvent(index=index, part=part))]

    def _close_part(self) -> list[str]:
        if self._open is None or self._translation is None:
            return []
        index, self._open = self._open, None
        return self._translation.translate(PartEndEvent(index=index, part=self._shown[index]))

    def _announce(self, call_id: str) -> list[str]:
        part = self._calls.get(call_id)
        if part is None or self._translation is None:
            return []  # called in an earlier run, which announced it
        return self._translation.translate(FunctionToolCallEvent(part, args_valid=True))

    def _request_approvals(self, calls: list[dict[str, Any]]) -> list[str]:
        blocks: list[str] = []
        waiting: list[ToolCallPart] = []
        for call in calls:
            part = self._calls.get(call["call_id"])
            if part is None or part.args_as_dict() != call["arguments"]:  # the id of an earlier call
                part = ToolCallPart(call["tool"], call["arguments"], call["call_id"])
            self._calls[call["call_id"]] = part
            waiting.append(part)
            blocks += self._announce(call["call_id"])
        digests = {call["call_id"]: {"digest": call["digest"]} for call in calls}
        return [*blocks, *self._end(DeferredToolRequests(approvals=waiting, metadata=digests))]


def _ending(reason: str) -> bytes:
    return f"retry: 500\n: {reason}\n\n".encode()


def numbered(blocks: list[str], number: int) -> str:
    """Return blocks with a number as the id of the last one; without blocks, the number alone, which clients remember."""
    if not blocks:
        return f"id: {number}\n\n"
    return f"{''.join(blocks[:-1])}id: {number}\n{blocks[-1]}"
