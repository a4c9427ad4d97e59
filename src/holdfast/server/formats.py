"""The journal in the words that front ends already speak: Vercel's AI data stream, and AG-UI.

Pydantic AI's own event streams do the talking; here the journal becomes the events that they were made for. The number
of an event is the id of the last thing that is said of it, so that a client which comes back misses nothing. Who comes
back in the middle of a run is told nothing twice: what it has was said again to nobody first.
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
from holdfast.record.history import load
from holdfast.record.offloader import MediaOffloader
from holdfast.server.channel import COMMENT, REFUSED, Channel, Subscriber
from holdfast.store import Store
from holdfast.types import Draft, Event

Stream: TypeAlias = UIEventStream[Any, Any, Any, Any]
_PIECE: Final = 1024 * 1024
"""So much text is sent at a time: the content of a page may be much larger than the page."""
_ENDS: Final = ("run_completed", "run_failed", "run_interrupted", "approval_requested")


@cache
def _adapter() -> TypeAdapter[AgentRunResult[Any]]:
    return TypeAdapter(AgentRunResult[Any])  # which takes a fifth of a second


class _Numbered(Stream):
    """Messages are named by their run and their place in it, so that all who read a run name them alike."""

    _named: int = 0

    def new_message_id(self) -> str:
        self._named += 1
        self.message_id = f"{self.message_id.rpartition('-')[0]}-{self._named}"
        return self.message_id


@dataclass
class _Vercel(_Numbered, VercelAIEventStream[Any, Any]):  # pyright: ignore[reportIncompatibleVariableOverride]
    pass


def speaker(format: Format, session_id: str) -> Callable[[str], Stream]:
    """Return what makes the stream of a run. Raises `MissingExtra` if the server has no word of that language."""
    if format == "vercel":
        return lambda run_id: _Vercel(message_id=f"{run_id}-0", server_message_id=run_id, sdk_version=6)
    try:
        from pydantic_ai.ui.ag_ui import AGUIEventStream
    except ImportError as error:
        raise MissingExtra(extra="ag-ui") from error

    @dataclass
    class AgUi(_Numbered, AGUIEventStream[Any, Any]):  # pyright: ignore[reportIncompatibleVariableOverride]
        pass

    return lambda run_id: AgUi(message_id=f"{run_id}-0", thread_id=session_id, run_id=run_id)


class _Hungry:
    """What a translation waits for: more to translate."""

    def __await__(self) -> Generator["_Hungry", None, None]:
        yield self


class _Feed(AsyncIterator[Any]):
    """What there is to translate now; who asks for more than that is hungry."""

    def __init__(self) -> None:
        self.waiting: deque[Any] = deque()
        self.end: BaseException | None = None

    async def __anext__(self) -> Any:
        while not self.waiting:
            if self.end is not None:
                raise self.end
            await _Hungry()
        return self.waiting.popleft()


class Translation:
    """One run in one protocol: events in, text out, at once. Nothing in it waits for anything but for more."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._source = _Feed()
        self._said = stream.transform_stream(self._source)
        self._step: Any = None

    def say(self, *events: Any) -> list[str]:
        """Return these events in the words of the protocol."""
        self._source.waiting.extend(events)
        said: list[str] = []
        while True:
            if self._step is None:
                self._step = self._said.__anext__()
            try:
                asked = self._step.send(None)
            except StopIteration as done:
                self._step = None
                said.append(self._stream.encode_event(done.value))
            except StopAsyncIteration:
                self._step = None
                return said
            else:
                if not isinstance(asked, _Hungry):
                    raise TypeError(f"{type(self._stream).__name__} waits for {asked!r}")
                return said

    def end(self, error: Exception | None = None) -> list[str]:
        """Return what is said last: that it is over, or what went wrong."""
        self._source.end = StopAsyncIteration() if error is None else error
        return self.say()

    def close(self) -> None:
        """Leave it where it is."""
        if self._step is not None:
            with suppress(GeneratorExit, StopAsyncIteration, StopIteration):
                self._step.throw(GeneratorExit())
            self._step = None


@dataclass
class StreamFormatter:
    """Tells one client the journal of a session in one protocol."""

    store: Store
    session_id: str
    new_stream: Callable[[str], Stream]
    follow: bool = True
    _run: str | None = None
    _translation: Translation | None = None
    _goes_on: bool = False  # the run was handed over: the next one goes on with what it was saying
    _prompted: bool = False
    _told_all: bool = False
    _over: set[str] = field(default_factory=set[str])
    _calls: dict[str, ToolCallPart] = field(default_factory=dict[str, ToolCallPart])
    _response: ModelResponse | None = None
    _open: int | None = None
    _shown: dict[int, TextPart | ThinkingPart] = field(default_factory=dict[int, TextPart | ThinkingPart])
    _finished: dict[int, str] = field(default_factory=dict[int, str])

    async def feed(self, channel: Channel, client: Subscriber, after: int) -> None:
        """Send what follows number `after`, then what comes, until the client leaves or, unless it follows, a run ends."""
        seen: object = None
        try:
            while not client.gone:
                if client.refused:
                    await client.send(_ending(REFUSED))
                    return
                if after < channel.latest and (reached := await self._tell(channel, client, after)) > after:
                    after = reached
                    if self._told_all:
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

    async def _tell(self, channel: Channel, client: Subscriber, after: int) -> int:
        """Send a page of what follows a number, and return the number of its last event."""
        text = ""
        page = await channel.page(after)
        for event in page:
            after = event.seq
            text += numbered(await self.add(event), after)
            self._told_all = not self.follow and self._run is None and event.kind in _ENDS
            if len(text) >= _PIECE or self._told_all:
                await client.send(text.encode("utf-8", "replace"))
                text = ""
            if self._told_all:
                return after
        if page:
            await client.send(text.encode("utf-8", "replace"))
        return after

    async def add(self, event: Event) -> list[str]:
        """Return what an event is in the words of the protocol; for many it is nothing."""
        if event.run_id is None:
            return []
        facts: dict[str, Any] = json.loads(event.payload)
        if event.kind == "run_started":
            return self._begin(event.run_id, facts.get("parent"))
        if event.kind == "recovered" and facts["run_id"] == self._run:
            self._run = event.run_id
            return self._close_part()
        if self._run is None:
            await self._catch_up(event.run_id, event.seq)
        return await self._of_run(event, facts) if event.run_id == self._run else []

    async def _of_run(self, event: Event, facts: Mapping[str, Any]) -> list[str]:
        match event.kind:
            case "message" if event.message is not None:
                (message,) = load(await MediaOffloader(self.store).back([event.message]))
                return self._message(message, event.seq)
            case "tool_call_started":
                return self._announce(facts["call_id"])
            case "run_completed":
                return self._end("" if self._response is None else self._response.text)
            case "approval_requested":
                return self._ask(facts["calls"])
            case "run_failed":
                return self._fail(AgentRunError(str(facts.get("error") or "the run failed")))
            case "run_interrupted":
                return self._fail(RunCancelled("The run was interrupted."))
            case "handover":
                self._goes_on = True
                return []
            case _:
                return []

    async def show(self, drafts: Mapping[tuple[str, int], Draft], after: int) -> list[str]:
        """Return what is being said right now, as far as it was not said yet."""
        said: list[str] = []
        for (run_id, index), draft in sorted(drafts.items()):
            if self._run is None:
                await self._catch_up(run_id, after + 1)
            # Drafts are seen apart from events: one that the message has taken the place of is old.
            if run_id == self._run and not self._finished.get(index, "").startswith(draft.text or " "):
                make = TextPart if draft.kind == "text" else ThinkingPart
                said += self._text(index, make(content=draft.text))
        return said

    # A run

    def _begin(self, run_id: str, parent: str | None) -> list[str]:
        if run_id == self._run or (self._run is not None and parent is not None):
            return []
        if self._goes_on:
            self._run, self._goes_on = run_id, False
            return self._close_part()
        left = [] if self._run is None else self._fail(AgentRunError("the run was given up"))
        self._run, self._prompted = run_id, False
        self._translation = Translation(self.new_stream(run_id))
        return [*left, *self._translation.say()]

    async def _catch_up(self, run_id: str, before: int) -> None:
        """Come to where a run is that began before the client's number: all that it has was said to nobody."""
        if run_id in self._over:
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
        said = self._close_part()
        assert self._translation is not None  # noqa: S101
        if self._response is not None:
            result = _adapter().validate_python({"output": output, "messages": [self._response]})
            said += self._translation.say(AgentRunResultEvent(result))
        return [*said, *self._over_with()]

    def _fail(self, error: Exception) -> list[str]:
        return self._over_with(error)

    def _over_with(self, error: Exception | None = None) -> list[str]:
        assert self._translation is not None  # noqa: S101
        said = self._translation.end(error)
        if self._run is not None:
            self._over.add(self._run)
        self._run, self._translation, self._response, self._open = None, None, None, None
        self._goes_on = False
        self._shown, self._finished = {}, {}
        return said

    # What a run says

    def _message(self, message: ModelMessage, seq: int) -> list[str]:
        assert self._translation is not None  # noqa: S101
        said: list[str] = []
        if isinstance(message, ModelResponse):
            for index, part in enumerate(message.parts):
                said += self._part(index, part)
            said += self._close_part()
            self._response = message
            self._finished = {index: part.content for index, part in self._shown.items()}
            self._shown = {}
            return said
        self._finished = {}
        prompts = [part for part in message.parts if isinstance(part, UserPromptPart)]
        for part in message.parts:
            if isinstance(part, ToolReturnPart):
                said += self._translation.say(FunctionToolResultEvent(part))
        if prompts and self._prompted:  # it was said while the run was at work
            steered: tuple[ModelRequest, ...] = (replace(message, parts=prompts),)
            said += self._translation.say(EnqueuedMessagesEvent(enqueue_id=f"event-{seq}", messages=steered))
        self._prompted = True
        return said

    def _part(self, index: int, part: ModelResponsePart) -> list[str]:
        assert self._translation is not None  # noqa: S101
        if isinstance(part, TextPart | ThinkingPart):
            said = self._text(index, part)
            if self._open == index:
                self._shown[index] = part
                said += self._close_part()
            return said
        if isinstance(part, ToolCallPart):
            self._calls[part.tool_call_id] = part
        events = [PartStartEvent(index=index, part=part), PartEndEvent(index=index, part=part)]
        return [*self._close_part(), *self._translation.say(*events)]

    def _text(self, index: int, part: TextPart | ThinkingPart) -> list[str]:
        """Say a text, or what it has gained since it was said."""
        assert self._translation is not None  # noqa: S101
        before = self._shown.get(index)
        if before is not None and before.content == part.content:
            return []
        self._shown[index] = part
        if before is not None and self._open == index and part.content.startswith(before.content):
            delta = TextPartDelta if isinstance(part, TextPart) else ThinkingPartDelta
            gain = delta(content_delta=part.content[len(before.content) :])
            return self._translation.say(PartDeltaEvent(index=index, delta=gain))
        said = self._close_part()
        self._open = index
        return [*said, *self._translation.say(PartStartEvent(index=index, part=part))]

    def _close_part(self) -> list[str]:
        if self._open is None or self._translation is None:
            return []
        index, self._open = self._open, None
        return self._translation.say(PartEndEvent(index=index, part=self._shown[index]))

    def _announce(self, call_id: str) -> list[str]:
        part = self._calls.get(call_id)
        if part is None or self._translation is None:
            return []  # it was called before: the one who is told of its result knows it
        return self._translation.say(FunctionToolCallEvent(part, args_valid=True))

    def _ask(self, calls: list[dict[str, Any]]) -> list[str]:
        said: list[str] = []
        asked: list[ToolCallPart] = []
        for call in calls:
            given = ToolCallPart(call["tool"], call["arguments"], call["call_id"])
            asked.append(self._calls.setdefault(call["call_id"], given))
            said += self._announce(call["call_id"])
        return [*said, *self._end(DeferredToolRequests(approvals=asked))]


def _ending(reason: str) -> bytes:
    return f"retry: 500\n: {reason}\n\n".encode()


def numbered(said: list[str], number: int) -> str:
    """Return blocks with a number at the last of them; if nothing is said, the number alone, which readers note."""
    if not said:
        return f"id: {number}\n\n"
    return f"{''.join(said[:-1])}id: {number}\n{said[-1]}"
