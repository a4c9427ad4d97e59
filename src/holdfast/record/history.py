"""The history of a run as exact text: serialize and load messages, and find the new ones.

A step appends only its new messages. They are found by comparing object identity with the recorded messages. A message that
was replaced by an equal one is not new; one that was changed in place is. A change in the middle opens a new segment.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from functools import cache
from operator import attrgetter, is_
from typing import Any, cast

from pydantic import TypeAdapter, ValidationError
from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    ToolCallPart,
)

from holdfast.jsontext import lenient_json, read_recorded
from holdfast.record.loading import admit
from holdfast.store import Store
from holdfast.types import Checkpoint, Json, Message, Segment

_NEAR = 8
"""How many of the last messages each step compares by identity, and the last one part by part, since a step may still
complete it in place. Earlier messages are compared as a list, which stops at the first object that is neither the same nor
equal: 10 microseconds for 2,000 messages. At the end of the run all messages are compared by content."""


_LARGE = 1024 * 1024

_UNSERIALIZABLE = (ValueError, RecursionError)
"""`ValueError` includes errors of pydantic-core and of Unicode, and is itself raised for a value that is nested too deeply."""


@cache
def _adapter(kind: type[ModelMessage]) -> TypeAdapter[ModelMessage]:
    """Return an adapter for one kind of message, at half the cost of a union. It is built on demand, since that is slow."""
    return TypeAdapter(kind)


def dump(message: ModelMessage) -> Json:
    """Return the exact text of a message. Values that cannot be serialized are replaced by a placeholder."""
    if text := _dump(message):
        return text
    try:
        return _dump_with(message, fallback=_note)
    except _UNSERIALIZABLE:  # circular, or nested more deeply than Pydantic serializes
        _replace_unserializable(message)
        return _dump_with(message, fallback=_note)


def dump_all(message: ModelMessage) -> Json | None:
    """Return the exact text of a message, or None if something in it cannot be serialized."""
    if text := _dump(message):
        return text
    try:
        return _dump_with(message, fallback=None)  # lone surrogates only
    except _UNSERIALIZABLE:
        return None


def _dump(message: ModelMessage) -> Json | None:
    kind = ModelRequest if isinstance(message, ModelRequest) else ModelResponse
    try:
        return _adapter(kind).dump_json(_double(message)).decode()
    except _UNSERIALIZABLE:
        return None


def _dump_with(message: ModelMessage, fallback: Callable[[Any], Any] | None) -> Json:
    """Serialize by way of Python: lone surrogates cannot be UTF-8, but survive as JSON escapes."""
    (value,) = ModelMessagesTypeAdapter.dump_python([message], mode="json", fallback=fallback)
    return lenient_json(value, separators=(",", ":"))


def load(bodies: Iterable[Json]) -> list[ModelMessage]:
    """Return the messages with these texts. Large texts are released one by one, unless the caller keeps them."""
    texts = list(bodies)
    del bodies
    if sum(map(len, texts)) < _LARGE:
        return _load(texts)
    messages: list[ModelMessage] = []
    texts.reverse()
    while texts:
        messages += _load([texts.pop()])
    return messages


def _load(bodies: Iterable[Json]) -> list[ModelMessage]:
    text = f"[{','.join(bodies)}]"
    try:
        return ModelMessagesTypeAdapter.validate_json(text)
    except ValidationError:
        return ModelMessagesTypeAdapter.validate_python(read_recorded(text))


async def read_history(store: Store, session_id: str, checkpoint: Checkpoint) -> list[str]:
    """Return the texts of all messages of a checkpoint. Raise `HistoryTooLarge` before reading too much."""
    bodies: list[str] = []
    size = 0
    while len(bodies) < checkpoint.length:
        if bodies and not size:  # it is longer than one page
            size = await store.history_size(session_id, segment=checkpoint.segment, length=checkpoint.length)
            await admit(store, size)
        page = await store.history(
            session_id, segment=checkpoint.segment, length=checkpoint.length, after=len(bodies) - 1
        )
        if not page:
            break
        bodies += [message.body for message in page]
    await admit(store, size or sum(map(len, bodies)))
    return bodies


def _note(value: Any) -> str:
    return f"<not serializable: {type(value).__module__}.{type(value).__qualname__}>"


def _snapshot(message: ModelMessage) -> list[object]:
    """Return the field values of a message and its parts, to detect changes in place."""
    seen = [*_values(type(message))(message)]
    for part in message.parts:
        seen += _values(type(part))(part)
    return seen


# Accessing the `__dict__` of a Python object, as serializing does, makes every later access to its attributes slower.
# Pydantic AI reads all messages in each step: at 200 steps that was half of the cost of recording.


@cache
def _names(kind: type[Any]) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


@cache
def _values(kind: type[Any]) -> Callable[[Any], tuple[object, ...]]:
    return attrgetter(*_names(kind))


def _replace_unserializable(message: ModelMessage) -> None:
    """Replace content that cannot be serialized at all with a placeholder, for the model as well, since it could not be sent."""
    note = "<not serializable: circular, or nested too deeply>"
    for part in cast("list[Any]", message.parts):
        is_call = isinstance(part, ToolCallPart)
        alone: ModelMessage = ModelResponse(parts=[part]) if is_call else ModelRequest(parts=[part])  # pyright: ignore[reportUnknownArgumentType]
        try:
            _dump_with(alone, fallback=_note)
        except _UNSERIALIZABLE:
            if is_call:
                part.args = {"note": note}
            else:
                part.content = note


def _double(message: ModelMessage) -> ModelMessage:
    """Return a copy of a message to be serialized in its place."""
    double: Any = _copy(message)
    double.parts = [_copy(part) for part in message.parts]
    if isinstance(message, ModelResponse):
        double.usage = _copy(message.usage)
    return double


def _copy(value: Any) -> Any:
    kind: type[Any] = value.__class__
    copied: Any = object.__new__(kind)
    copied.__dict__ = dict(zip(_names(kind), _values(kind)(value), strict=True))
    return copied


def _begin(messages: list[ModelMessage], recorded: list[ModelMessage]) -> bool:
    """Return whether messages begin with the recorded ones, without touching those that are the same objects.

    They are not sliced: that would change the reference count of each, which at 2,000 steps means a cache miss for each.
    """
    known = len(recorded)
    recorded += messages[known:]
    try:
        return recorded == messages
    except Exception:  # noqa: BLE001 - comparing the values of a tool may raise; then they do not count as equal
        return False
    finally:
        del recorded[known:]


@dataclass(slots=True)
class HistoryGrowth:
    """The additions to a history since the last step."""

    segments: list[Segment]
    messages: list[Message]
    added: list[ModelMessage]


class RecordedHistory:
    """The recorded history of a session: the messages in order, and the segment for the next ones."""

    def __init__(
        self,
        segment: int = 0,
        segments: int = 0,
        recorded: Sequence[ModelMessage] = (),
        *,
        open_ended: bool = True,
    ) -> None:
        self.segment = segment
        self._segments = segments
        self._open_ended = open_ended  # whether the segment ends here, so that messages can be appended to it
        self._recorded = list(recorded)
        self._digests = [hash(dump(message)) for message in recorded]
        self._last = _snapshot(recorded[-1]) if recorded else []

    def __len__(self) -> int:
        return len(self._recorded)

    def grow(self, messages: list[ModelMessage], *, thorough: bool = False) -> HistoryGrowth:
        """Make these messages the current history and return the additions; `thorough` compares all by content."""
        start = self._same(messages, thorough=thorough)
        segments: list[Segment] = []
        rewritten = start < len(self._recorded) or not (self._open_ended or start == len(messages))
        if rewritten or not self._segments:
            self._open_ended = True
            parent = self.segment if start and self._segments else None
            self._segments += 1
            self.segment = self._segments
            segments.append(Segment(number=self.segment, parent=parent, start=start))
        added = messages[start:]
        bodies = [dump(message) for message in added]
        self._recorded[start:] = added
        self._digests[start:] = map(hash, bodies)
        self._last = _snapshot(messages[-1]) if messages else []
        rows = [Message(segment=self.segment, position=start + n, body=body) for n, body in enumerate(bodies)]
        return HistoryGrowth(segments, rows, added)

    def set_aside(self, message: ModelMessage) -> tuple[Segment, Message]:
        """Return the rows that keep a message outside the history, in a segment of its own that nothing continues."""
        self._segments += 1
        start = len(self._recorded)
        segment = Segment(number=self._segments, parent=self.segment if start else None, start=start)
        return segment, Message(segment=segment.number, position=start, body=dump(message))

    def _same(self, messages: list[ModelMessage], *, thorough: bool) -> int:
        """Return how many of the first messages are as recorded.

        A step compares only the objects, and the content of the last one: code that rewrites a history moves or replaces
        messages. A change within an earlier message is found when the run ends.
        """
        known = min(len(self._recorded), len(messages))
        near = 0 if thorough else max(0, known - _NEAR)
        if (
            known < len(self._recorded)
            or not all(map(is_, self._recorded[near:], messages[near:known]))
            or not _begin(messages, self._recorded)
        ):
            known = self._equal(messages)
            self._recorded[:known] = messages[:known]
        if not known:
            return 0
        looked_at = not thorough and known == len(self._recorded)
        if looked_at and self._last == _snapshot(messages[known - 1]):
            return known
        for position in range(0 if thorough else known - 1, known):
            if hash(dump(messages[position])) != self._digests[position]:
                return position
        return known

    def _equal(self, messages: Sequence[ModelMessage]) -> int:
        """Return how many of the first messages are the recorded ones, or equal to them."""
        for position, (recorded, message, digest) in enumerate(
            zip(self._recorded, messages, self._digests, strict=False)
        ):
            if recorded is not message and hash(dump(message)) != digest:
                return position
        return min(len(self._recorded), len(messages))


async def open_history(
    store: Store, session_id: str, checkpoint: Checkpoint | None, recorded: Sequence[ModelMessage]
) -> RecordedHistory:
    """Return the history of a session at a checkpoint, with its loaded messages, ready to be extended."""
    if checkpoint is None:
        return RecordedHistory()
    segment, length = checkpoint.segment, checkpoint.length
    segments = await store.segments(session_id)
    beyond = await store.history(session_id, segment=segment, length=length + 1, after=length - 1, limit=1)
    return RecordedHistory(segment, len(segments), recorded, open_ended=not beyond)
