"""How the values of LangGraph's channels become records of a session, and come back.

A value is serialized by the saver's serializer. In a record it is a list: the serializer's type, then pieces. A piece is base64, or the
number of a text: a long string is a record of its own, so that an input, the write of a task and the channel that it ends up in share it.
Short pieces are compressed with a dictionary of what surrounds the text of a message. Small plain values are JSON as they are.

The elements of a list are records of their own, under `<segment>/<position>`. A value of the channel is a segment and a length. A list
that differs from the one before it begins a segment at the first difference, and the first element of a segment names the segment with
the elements before it. So an element is stored once, and not again with each later checkpoint.
"""

import asyncio
import binascii
import hashlib
import json
import secrets
import zlib
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeAlias, cast

from langchain_core.messages import BaseMessage
from langgraph.checkpoint.base import writes_sort_key
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from holdfast.errors import Conflict
from holdfast.frameworks.framework_store import FrameworkStore
from holdfast.frameworks.langgraph_compare import Frozen
from holdfast.frameworks.langgraph_keys import checkpoint_key, digest, end_of
from holdfast.frameworks.langgraph_memory import Kept, Lists, Memory, Origin, Ref
from holdfast.types import Record

Encoded: TypeAlias = list[Any]
"""`["", value]` for plain JSON, `["=", piece]` for compressed JSON, else `[type, piece, …]`."""

_SHORT: Final = 64
"""Plain values up to this size are stored as JSON."""
_SMALL: Final = 256
"""Values up to this size are stored where they are referred to."""
_LONG: Final = 256
"""Strings from this length on are stored as texts."""
_DEEPEST: Final = 32
"""The most segments that a list is read from. Then it is written anew."""
_NEAR: Final = 64
"""Texts whose numbers are this close are read by one query."""
_PAGE: Final = 1000
_AHEAD: Final = 32
"""How many records are read at once by a reader that may need only a few."""
_DEFLATED: Final = "!"
"""The prefix of a compressed piece in base64."""
_LARGEST_DEFLATED: Final = 1 << 16
_DICTIONARY: Final = (
    b'"updated_channels":null,"pending_sends":[],"run_id":"","counters_since_delta_snapshot":{"messages":[1,1]}'
    b'[{"v":4,"ts":"2026-00:00","channel_versions":{"__start__":1,"messages":2,"branch:to:agent":3,"branch:to:model":"branch:to:tools":'
    b'},"versions_seen":{"__input__":{},"__start__":{"__start__":1},"agent":{"branch:to:agent":2}},"updated_channels":["__start__"]},'
    b'{"source":"input","step":-1,"parents":{}}]"updated_channels":["branch:to:agent","messages"]},{"source":"loop","step":1,"parents":{}}]'
    b"\xc0\xb1additional_kwargs\x80\xb1response_metadata\x80\xa4type\xa4tool\xac\xa4name\xc0\xa2id\xd9$\xactool_call_id\xa8artifact\xc0"
    b"\xa6status\xa7success\x94\xbdlangchain_core.messages.system\xadSystemMessage\x86\xa7content\xda\x04\x94\xbblangchain_core.messages.tool"
    b"\xabToolMessage\x89\xa7content\xa4args\xafinput_tokens\xadoutput_tokens\xactotal_tokens\xa8messages\x91\xc8\x04\x05\x94"
    b"\xbdlangchain_core.messages.human\xacHumanMessage\x86\xa7content\xda\x04\x00\xb1additional_kwargs\x80\xb1response_metadata\x80\xa4type"
    b"\xa5human\xa4name\xc0\xa2id\xd9$\xb3model_validate_json\x91\xc8\x04\x05\x94\xbalangchain_core.messages.ai\xa9AIMessage\x89\xa7content\xda"
    b"\x04\x00\xb1additional_kwargs\x80\xb1response_metadata\x80\xa4type\xa2ai\xa4name\xc0\xa2id\xd9$\xaatool_calls\x90\xb2invalid_tool_calls\x90"
    b"\xaeusage_metadata\xc0\xb3model_validate_json"
)
"""Text that occurs in most checkpoints and around the text of messages. It must not change: stored pieces depend on it."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A checkpoint as it is stored: `content` is the checkpoint without its values, and its metadata."""

    key: str
    id: str
    ns: str
    parent: str | None
    content: Encoded
    refs: dict[str, Ref]

    @classmethod
    def of(cls, record: Record) -> "Stored":
        """Return the checkpoint of a record."""
        body = json.loads(record.body)
        checkpoint_id = body.get("id", record.key.partition("/")[2])
        return cls(record.key, checkpoint_id, body.get("ns", ""), body.get("p"), body["c"], body["r"])

    @property
    def parent_key(self) -> str:
        """The key of the checkpoint before it; empty if there is none."""
        return "" if self.parent is None else checkpoint_key(self.ns, self.parent)

    @property
    def encoded(self) -> list[Encoded]:
        """All values in it."""
        return [self.content, *(ref["v"] for ref in self.refs.values() if "v" in ref)]


@dataclass(slots=True)
class Values:
    """Writes the values of one put, and collects the records for it. The session must be held."""

    shared: FrameworkStore
    session_id: str
    serde: SerializerProtocol
    memory: Memory
    lists: Lists
    records: list[Record] = field(default_factory=list[Record])

    async def encode(self, value: Any, *, small: int = _SMALL) -> Encoded:
        """Return what a record contains for a value, and collect the records of its texts."""
        if isinstance(self.serde, JsonPlusSerializer) and _is_plain(value):
            text = to_json(value)
            if len(text) < _SHORT:
                return ["", value]
            if len(text) <= small:
                return ["=", _to_text(text.encode())]
        return await self._encode_typed(self.serde.dumps_typed(value), value)

    async def _encode_typed(self, typed: tuple[str, bytes], value: Any) -> Encoded:
        kind, data = typed
        return [kind, *[await self._piece(piece) for piece in _cut(bytes(data), value)]]

    async def _piece(self, piece: tuple[bytes, bool]) -> str | int:
        data, is_text = piece
        if not is_text:
            return _to_text(data)
        memory = self.memory
        text = hashlib.sha256(data).digest()
        number = memory.texts.get(text)
        if number is None:
            if memory.next_text is None:
                last = await self.shared.records(self.session_id, "text", reverse=True, limit=1, bodies=False)
                memory.next_text = int(last[0].key) + 1 if last else 0
            number = memory.next_text
            memory.next_text += 1
            body = json.dumps(data.decode(), ensure_ascii=False)
            self.records.append(Record(kind="text", key=f"{number:010}", body=body))
            memory.texts[text] = number
        memory.texts.move_to_end(text)
        return number

    async def put(self, ns: str, channel: str, value: Any, before: Ref | None) -> Ref:
        """Return where a value is, and collect the records that are new. `before` is the value in the checkpoint before it."""
        if value.__class__ is list:
            return await self._put_list(ns, channel, cast("list[Any]", value), before)
        encoded = await self.encode(value)
        body = to_json(encoded)
        if len(body) <= _SMALL:
            return {"v": encoded}
        key = f"{digest(channel, length=12)}/{digest(body)}"
        if before != {"k": key}:
            self.records.append(Record(kind="value", key=key, body=body))
        return {"k": key}

    async def _put_list(self, ns: str, channel: str, value: list[Any], before: Ref | None) -> Ref:
        key = (self.session_id, ns, channel)
        kept = await self._before(key, before)
        self.lists.pop(key)  # a reader must not find it half changed
        same = kept.frozen.first_difference(value)
        # Frozen before it is serialized: if another thread edits it meanwhile, the next put finds a difference.
        kept.frozen.replace(same, value[same:])
        segment, origin = await self._segment_of(kept, same)
        del kept.stored[same:]
        if same < len(value):
            first: dict[str, Any] = {}
            if not (segment and await self._tail(segment) == same):
                if not segment or origin.depth == _DEEPEST:
                    kept.stored.clear()
                    origin = Origin()
                else:
                    origin = Origin(segment, same, origin.depth + 1)
                segment = secrets.token_urlsafe(8)
                first = {"p": origin.parent, "d": origin.depth}
                self.memory.origins[segment] = origin
            for position in range(len(kept.stored), len(value)):
                typed = self.serde.dumps_typed(value[position])
                encoded = await self._encode_typed(typed, value[position])
                body = to_json({**first, "e": encoded} if first else encoded)
                self.records.append(Record(kind="element", key=f"{segment}/{position:010}", body=body))
                kept.stored.append(typed)
                first = {}
            self.memory.tails[segment] = len(value)
        kept.segment = segment
        self.lists.put(key, kept)
        return {"s": segment, "n": len(value)}

    async def _before(self, key: tuple[str, str, str], before: Ref | None) -> Kept:
        """Return the list in the checkpoint before this one, from memory if it is there."""
        if before is None or not before.get("n"):
            return Kept("", [], Frozen([], self.serde.dumps_typed))
        kept = self.lists.get(key)
        if kept is None or not kept.is_at(before):
            reading = Reading(self.shared, self.session_id)
            encoded = await reading.elements(before)
            texts = await reading.texts(encoded)
            stored = [join(one, texts) for one in encoded]
            kept = keep(before, stored, load_list(stored, self.serde), self.serde)
        return kept

    async def _segment_of(self, kept: Kept, same: int) -> tuple[str, Origin]:
        """Return the segment that has the element before a position. It is empty if there is none."""
        if not kept.segment or not same:
            return "", Origin()
        segment = kept.segment
        origin = await self._origin(segment)
        while same <= origin.start:
            segment = origin.parent
            origin = await self._origin(segment)
        return segment, origin

    async def _origin(self, segment: str) -> Origin:
        origin = self.memory.origins.get(segment)
        if origin is None:
            found = await self.shared.records(self.session_id, "element", prefix=f"{segment}/", limit=1)
            origin = self.memory.origins[segment] = _origin(found[0])
        return origin

    async def _tail(self, segment: str) -> int:
        """Return the number of elements up to the end of a segment; -1 if it is not continued."""
        tail = self.memory.tails.get(segment)
        if tail is None:
            prefix = f"{segment}/"
            found = await self.shared.records(
                self.session_id, "element", prefix=prefix, reverse=True, limit=1, bodies=False
            )
            tail = self.memory.tails[segment] = end_of(found[0].key)
        return tail


@dataclass(frozen=True, slots=True)
class Reading:
    """Reads values of a session."""

    shared: FrameworkStore
    session_id: str

    async def one(self, kind: str, key: str) -> Any:
        """Return the body of a record. Raises `Conflict` if it was deleted."""
        found = await self.shared.records(self.session_id, kind, prefix=key, limit=1)
        if not found or found[0].key != key:
            raise _deleted()
        return json.loads(found[0].body)

    async def encoded(self, ref: Ref) -> list[Encoded]:
        """Return what a reference refers to: the elements of a list, or one value."""
        if "n" in ref:
            return await self.elements(ref)
        return [ref["v"] if "v" in ref else await self.one("value", ref["k"])]

    async def elements(self, ref: Ref) -> list[Encoded]:
        """Return the elements of a list, in one query per thousand and segment."""
        found: list[Encoded] = []
        segment, length = ref["s"], ref["n"]
        while length:
            part: list[Record] = []
            while not part or end_of(part[-1].key) < length:
                page = await self.shared.store.records(
                    self.session_id,
                    "element",
                    prefix=f"{segment}/",
                    after=part[-1].key if part else None,
                    before=f"{segment}/{length:010}",
                    limit=_PAGE,
                )
                if not page:
                    raise _deleted()
                part += page
            found = [element(body) for body in _bodies(part)] + found
            origin = _origin(part[0])
            segment, length = origin.parent, origin.start
        return found

    async def elements_from(
        self, ref: Ref, start: int
    ) -> AsyncGenerator[tuple[int, int, Callable[[], tuple[str, bytes]]], None]:
        """Yield the elements of a list from a position on: the position, the size, and how it is joined. Reads a little ahead."""
        texts: dict[int, bytes] = {}
        for segment, first, end in await self._spans(ref):
            position = max(first, start)
            while position < end:
                page = await self.shared.store.records(
                    self.session_id,
                    "element",
                    prefix=f"{segment}/",
                    after=f"{segment}/{position - 1:010}" if position else None,
                    before=f"{segment}/{end:010}",
                    limit=_AHEAD,
                )
                if not page:
                    raise _deleted()
                for record, body in zip(page, await asyncio.to_thread(_bodies, page), strict=True):
                    encoded = element(body)
                    needed: dict[int, bytes] = {}
                    for number in sorted(text_numbers([encoded])):
                        if number not in texts:
                            texts = await self._texts_from(number)
                        needed[number] = texts[number]
                    size = len(record.body) + sum(map(len, needed.values()))
                    yield end_of(record.key) - 1, size, partial(join, encoded, needed)
                position = end_of(page[-1].key)

    async def _spans(self, ref: Ref) -> list[tuple[str, int, int]]:
        """Return the segments of a list in order, with the positions where each begins and ends."""
        spans: list[tuple[str, int, int]] = []
        segment, length = ref["s"], ref["n"]
        while length:
            found = await self.shared.records(self.session_id, "element", prefix=f"{segment}/", limit=1)
            if not found:
                raise _deleted()
            origin = _origin(found[0])
            spans.append((segment, origin.start, length))
            segment, length = origin.parent, origin.start
        return spans[::-1]

    async def _texts_from(self, number: int) -> dict[int, bytes]:
        """Return a text and some after it, which are often those of the next elements."""
        after = f"{number - 1:010}" if number else None
        page = await self.shared.store.records(self.session_id, "text", after=after, limit=_AHEAD)
        if not page or int(page[0].key) != number:
            raise _deleted()
        texts = await asyncio.to_thread(_bodies, page)
        return {int(record.key): text.encode() for record, text in zip(page, texts, strict=True)}

    async def texts(self, encoded: Iterable[Encoded]) -> dict[int, bytes]:
        """Return the texts that values refer to."""
        found: dict[int, bytes] = {}
        for low, high in _ranges(sorted(text_numbers(encoded))):
            after, last = f"{low - 1:010}" if low else None, f"{high:010}"
            while after is None or after < last:
                page = await self.shared.store.records(
                    self.session_id, "text", after=after, before=f"{high + 1:010}", limit=_PAGE
                )
                if not page:
                    raise _deleted()
                found |= {
                    int(record.key): text.encode() for record, text in zip(page, _bodies(page), strict=True)
                }
                after = page[-1].key
        return found


def _bodies(records: Sequence[Record]) -> list[Any]:
    """Return the bodies of records, parsed at once."""
    return json.loads(f"[{','.join([record.body for record in records])}]")


def keep(ref: Ref, stored: list[tuple[str, bytes]], elements: list[Any], serde: SerializerProtocol) -> Kept:
    """Return a list to compare with."""
    return Kept(ref["s"], stored, Frozen(elements, serde.dumps_typed))


def load_list(stored: list[tuple[str, bytes]], serde: SerializerProtocol) -> list[Any]:
    """Return the elements of a list. Elements in MessagePack are read at once, as an array of them."""
    if isinstance(serde, JsonPlusSerializer) and not any(kind != "msgpack" for kind, _ in stored):
        array = b"\xdd" + len(stored).to_bytes(4) + b"".join([data for _, data in stored])
        return serde.loads_typed(("msgpack", array))
    return [serde.loads_typed(one) for one in stored]


def load_ref(ref: Ref, encoded: list[Encoded], texts: dict[int, bytes], serde: SerializerProtocol) -> Any:
    """Return the value of what `Reading.encoded` returned for a reference."""
    return (
        load_list([join(one, texts) for one in encoded], serde)
        if "n" in ref
        else load(encoded[0], texts, serde)
    )


def load(encoded: Encoded, texts: dict[int, bytes], serde: SerializerProtocol) -> Any:
    """Return the value of what a record contains."""
    if not encoded[0]:
        return encoded[1]
    typed = join(encoded, texts)
    return json.loads(typed[1]) if typed[0] == "=" else serde.loads_typed(typed)


def join(encoded: Encoded, texts: dict[int, bytes]) -> tuple[str, bytes]:
    """Return the serialized value."""
    try:
        pieces = [texts[p] if p.__class__ is int else _from_text(p) for p in encoded[1:]]
    except KeyError:
        raise _deleted() from None
    return encoded[0], b"".join(pieces)


def _to_text(data: bytes) -> str:
    if len(data) < _LARGEST_DEFLATED:
        deflate = zlib.compressobj(wbits=-15, zdict=_DICTIONARY)
        deflated = deflate.compress(data) + deflate.flush()
        if len(deflated) < len(data):
            return _DEFLATED + binascii.b2a_base64(deflated, newline=False).decode()
    return binascii.b2a_base64(data, newline=False).decode()


def _from_text(text: str) -> bytes:
    if not text.startswith(_DEFLATED):
        return binascii.a2b_base64(text)
    inflate = zlib.decompressobj(wbits=-15, zdict=_DICTIONARY)
    return inflate.decompress(binascii.a2b_base64(text[1:]), _LARGEST_DEFLATED)


def stored_writes(records: Iterable[Record]) -> list[tuple[str, str, Encoded]]:
    """Return the writes of a checkpoint in the order in which LangGraph applies them: the task, the channel and the value."""
    writes: list[tuple[tuple[str, str, int], str, Encoded]] = []
    for record in records:
        task: dict[str, Any] = {"t": record.key.rpartition("/")[2], **json.loads(record.body)}
        writes += [
            (writes_sort_key(task["p"], task["t"], number), channel, value)
            for number, channel, value in task["w"]
        ]
    writes.sort(key=lambda write: write[0])
    return [(order[1], channel, value) for order, channel, value in writes]


def to_json(value: Any) -> str:
    """Return short JSON."""
    return json.dumps(value, separators=(",", ":"))


def text_numbers(encoded: Iterable[Encoded]) -> set[int]:
    """Return the numbers of the texts that values refer to."""
    return {piece for value in encoded if value[0] for piece in value if piece.__class__ is int}


def element(body: Any) -> Encoded:
    """Return an element. The first one of a segment is in an object, with the segment's origin."""
    return cast("dict[str, Any]", body)["e"] if isinstance(body, dict) else body


def _origin(first: Record) -> Origin:
    body = json.loads(first.body)
    return Origin(body["p"], end_of(first.key) - 1, body["d"])


def _deleted() -> Conflict:
    return Conflict(problem="the checkpoint was deleted while it was read")


def _ranges(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the first and the last of numbers that are close to each other."""
    for n, number in enumerate(numbers):
        if n == 0 or number - numbers[n - 1] > _NEAR:
            end = n
            while end + 1 < len(numbers) and numbers[end + 1] - numbers[end] <= _NEAR:
                end += 1
            yield number, numbers[end]


def _is_plain(value: Any, depth: int = 0) -> bool:
    """Return whether JSON returns the same value."""
    kind = value.__class__
    if value is None or kind is str or kind is bool:
        return True
    if kind is int:
        return abs(value) < 1 << 63
    if depth > 9 or kind not in {dict, list}:  # noqa: PLR2004
        return False
    if kind is list:
        return all(_is_plain(item, depth + 1) for item in value)
    return all(key.__class__ is str and _is_plain(item, depth + 1) for key, item in value.items())


def _cut(data: bytes, value: Any) -> Iterator[tuple[bytes, bool]]:
    """Yield the pieces of what was serialized, and for each whether it is one of the long strings of the value."""
    done = 0
    for text in _long_texts(value):
        found = data.find(text, done)
        if found < 0:
            continue
        if found > done:
            yield data[done:found], False
        yield text, True
        done = found + len(text)
    if done < len(data):
        yield data[done:], False


def _long_texts(value: Any, depth: int = 0) -> Iterator[bytes]:
    """Yield the long strings of a value in the order in which they are serialized."""
    if isinstance(value, str):
        if len(value) >= _LONG:
            try:
                yield value.encode()
            except UnicodeEncodeError:  # a lone surrogate
                return
    elif depth > 9:  # noqa: PLR2004
        return
    elif isinstance(value, BaseMessage):
        yield from _long_texts(value.__dict__, depth + 1)
    elif isinstance(value, dict):
        for item in cast("dict[Any, Any]", value).values():
            yield from _long_texts(item, depth + 1)
    elif isinstance(value, list | tuple):
        for item in cast("list[Any]", value):
            yield from _long_texts(item, depth + 1)
