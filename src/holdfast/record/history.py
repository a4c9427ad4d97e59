"""The history of a run as exact text: how messages are written and read, and which of them are new.

A step appends only its new messages. What is new is found by identity with what was recorded last; a message that
was replaced by an equal one is not new, one that was changed in place is. A change in the middle opens a new segment.
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
from pydantic_core import PydanticSerializationError

from holdfast.jsontext import lenient_json, read_recorded
from holdfast.record.loading import admit
from holdfast.store import Store
from holdfast.types import Checkpoint, Json, Message, Segment

_NEAR = 8
"""So many of the last messages are compared by identity at each step, and the last one part by part: a step may still
complete that in place. Those before them are compared as a list, which stops at what is not the same object and not
equal: 10 microseconds for 2,000 messages. At the end all are compared by content."""


_UNSERIALIZABLE = (PydanticSerializationError, UnicodeError, RecursionError)


@cache
def _adapter(kind: type[ModelMessage]) -> TypeAdapter[ModelMessage]:
    """Each kind on its own: half the price of finding out which one it is. Made when needed: that takes a while."""
    return TypeAdapter(kind)


def dump(message: ModelMessage) -> Json:
    """Return the exact text of a message. What cannot be serialized is replaced by a note that says so."""
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
    """Return the text by way of Python: lone surrogates have no UTF-8; as JSON escapes they survive."""
    (value,) = ModelMessagesTypeAdapter.dump_python([message], mode="json", fallback=fallback)
    return lenient_json(value, separators=(",", ":"))


def load(bodies: Iterable[Json]) -> list[ModelMessage]:
    """Return the messages of these texts."""
    text = f"[{','.join(bodies)}]"
    try:
        return ModelMessagesTypeAdapter.validate_json(text)
    except ValidationError:
        return ModelMessagesTypeAdapter.validate_python(read_recorded(text))


async def read_history(store: Store, session_id: str, checkpoint: Checkpoint) -> list[str]:
    """Return the texts of all messages of a checkpoint. Raises `HistoryTooLarge` before it reads too much."""
    bodies: list[str] = []
    size = 0
    while len(bodies) < checkpoint.length:
        if bodies and not size:  # it has more than a page
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


def _look(message: ModelMessage) -> list[object]:
    """Return what a message and its parts are made of: new values where something was set or added."""
    seen = [*_values(type(message))(message)]
    for part in message.parts:
        seen += _values(type(part))(part)
    return seen


# Whoever asks a Python object for its `__dict__`, as serializing does, makes every later look at its attributes slower.
# Pydantic AI looks at all messages in each step: at 200 steps that was half of what recording cost.


@cache
def _names(kind: type[Any]) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


@cache
def _values(kind: type[Any]) -> Callable[[Any], tuple[object, ...]]:
    return attrgetter(*_names(kind))


def _replace_unserializable(message: ModelMessage) -> None:
    """Put a note in place of content that cannot be serialized at all, also where the model looks: it could not be sent either."""
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
    """Return a message that is serialized in place of this one."""
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
    """Say whether messages begin with those on record. Where they are the same objects none of them is touched.

    So they are not sliced: that counts a reference in each, which at 2,000 steps is a miss of the cache in each.
    """
    known = len(recorded)
    recorded += messages[known:]
    try:
        return recorded == messages
    except Exception:  # noqa: BLE001 - what a tool returned may refuse to be compared; then it is not known to be equal
        return False
    finally:
        del recorded[known:]


@dataclass(slots=True)
class Growth:
    """What a history gained since it was looked at last."""

    segments: list[Segment]
    messages: list[Message]
    added: list[ModelMessage]


class RecordedHistory:
    """The recorded history of a session: the messages in order, and the segment that the next ones go to."""

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
        self._open_ended = open_ended  # whether the segment ends here, so that the next message may go to it
        self._recorded = list(recorded)
        self._digests = [hash(dump(message)) for message in recorded]
        self._last = _look(recorded[-1]) if recorded else []

    def __len__(self) -> int:
        return len(self._recorded)

    def grow(self, messages: list[ModelMessage], *, thorough: bool = False) -> Growth:
        """Note these messages as the history now and return what is new; `thorough` compares all by content."""
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
        self._last = _look(messages[-1]) if messages else []
        rows = [Message(segment=self.segment, position=start + n, body=body) for n, body in enumerate(bodies)]
        return Growth(segments, rows, added)

    def set_aside(self, message: ModelMessage) -> tuple[Segment, Message]:
        """Return how to keep a message beside the history, in a segment of its own that nothing goes on from."""
        self._segments += 1
        start = len(self._recorded)
        segment = Segment(number=self._segments, parent=self.segment if start else None, start=start)
        return segment, Message(segment=segment.number, position=start, body=dump(message))

    def _same(self, messages: list[ModelMessage], *, thorough: bool) -> int:
        """Return how many of the first messages are as recorded.

        A step looks at the objects only, and at the content of the last one: a history that is rewritten moves or
        replaces messages. What was changed inside of one further up is found when the run ends.
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
        if looked_at and self._last == _look(messages[known - 1]):
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
    """Return the history of a session at a checkpoint, with the messages that were loaded of it, ready to grow."""
    if checkpoint is None:
        return RecordedHistory()
    segment, length = checkpoint.segment, checkpoint.length
    segments = await store.segments(session_id)
    beyond = await store.history(session_id, segment=segment, length=length + 1, after=length - 1, limit=1)
    return RecordedHistory(segment, len(segments), recorded, open_ended=not beyond)
