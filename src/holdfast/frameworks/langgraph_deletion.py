"""Delete checkpoints of a LangGraph thread, and the values that only they had.

All records of the session are read to find what the remaining checkpoints refer to. A crash in between leaves values that nothing refers
to, which the next deletion removes.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeAlias

from langgraph.checkpoint.serde.base import SerializerProtocol

from holdfast.frameworks.framework_store import FrameworkStore, RecordWriter
from holdfast.frameworks.langgraph_keys import CLOSED, end_of
from holdfast.frameworks.langgraph_memory import Ref
from holdfast.frameworks.langgraph_values import Reading, Stored, element, load, text_numbers
from holdfast.types import Record

KINDS: Final = ("text", "element", "value", "write", "checkpoint")
"""The kinds of records. Each refers only to the ones before it."""
_BATCH: Final = 500


Found: TypeAlias = Sequence[tuple[Stored, dict[str, Any]]]
"""Checkpoints with their metadata."""


def keep_latest(found: Found) -> set[str]:
    """Return the keys of all but the latest checkpoint of each namespace and the ones that its delta channels are computed from.

    The value of a delta channel is computed from the writes of all checkpoints since the last one that has a value.
    """
    by_key = {one.key: one for one, _ in found}
    latest = {one.ns: (one, metadata) for one, metadata in sorted(found, key=lambda pair: pair[0].key)}
    kept: set[str] = set()
    for one, metadata in latest.values():
        kept.add(one.key)
        missing = set(metadata.get("counters_since_delta_snapshot") or ()) - one.refs.keys()
        ancestor = by_key.get(one.parent_key)
        while missing and ancestor is not None:
            kept.add(ancestor.key)
            missing -= ancestor.refs.keys()
            ancestor = by_key.get(ancestor.parent_key)
    return by_key.keys() - kept


async def delete_checkpoints(
    shared: FrameworkStore,
    writer: RecordWriter,
    serde: SerializerProtocol,
    choose: Callable[[Found], set[str]],
) -> None:
    """Delete the checkpoints that `choose` returns the keys of, their writes, and the values that no other checkpoint has."""
    session_id = writer.lease.session_id
    found = await _found(shared, session_id, serde)
    doomed = choose(found)
    if not doomed:
        return
    writes = await shared.records(session_id, "write", bodies=False)
    dropped = [("checkpoint", key) for key in doomed]
    dropped += [("write", one.key) for one in writes if one.key.rpartition("/")[0] in doomed]
    await _drop(writer, dropped)
    await _sweep(shared, writer, [one for one, _ in found if one.key not in doomed])


async def _found(shared: FrameworkStore, session_id: str, serde: SerializerProtocol) -> Found:
    found = [Stored.of(record) for record in await shared.records(session_id, "checkpoint")]
    texts = await Reading(shared, session_id).texts(one.content for one in found)
    return [(one, load(one.content, texts, serde)[1]) for one in found]


async def _sweep(shared: FrameworkStore, writer: RecordWriter, kept: Sequence[Stored]) -> None:
    """Delete all values that the kept checkpoints and their writes do not refer to."""
    session_id = writer.lease.session_id
    refs = [ref for one in kept for ref in one.refs.values()]
    texts = text_numbers(encoded for one in kept for encoded in one.encoded)
    for one in await shared.records(session_id, "write"):
        texts |= text_numbers(write[2] for write in json.loads(one.body)["w"])
    keys = {ref["k"] for ref in refs if "k" in ref}
    dropped: list[tuple[str, str]] = []
    for one in await shared.records(session_id, "value"):
        if one.key in keys:
            texts |= text_numbers([json.loads(one.body)])
        else:
            dropped.append(("value", one.key))
    closed: list[Record] = []
    elements = await shared.records(session_id, "element")
    lengths = _lengths(refs, elements)
    for one in elements:
        segment, _, position = one.key.partition("/")
        if position == CLOSED:
            if segment not in lengths:
                dropped.append(("element", one.key))
        elif int(position) < lengths.get(segment, 0):
            texts |= text_numbers([element(json.loads(one.body))])
        else:
            dropped.append(("element", one.key))
            if segment in lengths:
                closed.append(Record(kind="element", key=f"{segment}/{CLOSED}", body="{}"))
    for one in await shared.records(session_id, "text", bodies=False):
        if int(one.key) not in texts:
            dropped.append(("text", one.key))
    await writer.write(list({one.key: one for one in closed}.values()))
    await _drop(writer, dropped)


def _lengths(refs: Iterable[Ref], elements: Sequence[Record]) -> dict[str, int]:
    """Return how many elements each segment has up to the last one that is referred to."""
    origins: dict[str, tuple[str, int]] = {}
    for one in elements:
        segment = one.key.partition("/")[0]
        if segment not in origins and end_of(one.key) >= 0:
            origins[segment] = (json.loads(one.body)["p"], end_of(one.key) - 1)
    lengths: dict[str, int] = {}
    for ref in refs:
        segment, length = ref.get("s", ""), ref.get("n", 0)
        while segment and lengths.get(segment, 0) < length:
            lengths[segment] = length
            segment, length = origins[segment]
    return lengths


async def _drop(writer: RecordWriter, dropped: Sequence[tuple[str, str]]) -> None:
    for start in range(0, len(dropped), _BATCH):
        await writer.write(dropped=dropped[start : start + _BATCH])
