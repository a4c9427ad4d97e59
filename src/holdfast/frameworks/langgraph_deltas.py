"""Read the history of LangGraph's delta channels: the last stored value of each, and all writes since.

Checkpoints are read in pages, newest first. A page begins with an ancestor, and the walk takes from it the ancestors in a row: LangGraph's ids
sort by time, so that most of a page are ancestors. After a fork the next page begins where the branch continues. The number of reads
depends on the number of pages and branches, not on the number of checkpoints.
"""

from collections.abc import AsyncGenerator, Collection
from typing import TYPE_CHECKING, Any, Final

from langgraph.checkpoint.base import DeltaChannelHistory
from langgraph.checkpoint.serde.base import SerializerProtocol

from holdfast.frameworks.framework_store import FrameworkStore
from holdfast.frameworks.langgraph_keys import namespace_key
from holdfast.frameworks.langgraph_values import Encoded, Reading, Stored, load, load_ref, stored_writes
from holdfast.types import Record

if TYPE_CHECKING:
    from holdfast.frameworks.langgraph_memory import Ref

_FIRST_PAGE: Final = 64
_LARGEST_PAGE: Final = 1024


async def delta_histories(
    shared: FrameworkStore,
    session_id: str,
    serde: SerializerProtocol,
    target: Stored,
    channels: Collection[str],
) -> dict[str, DeltaChannelHistory]:
    """Return for each channel its value in the nearest ancestor that has one, and the writes from there on, oldest first."""
    writes: dict[str, list[tuple[str, Encoded]]] = {channel: [] for channel in channels}
    seeds: dict[str, Ref] = {}
    async for chain in _ancestors(shared, session_id, target):
        used: list[tuple[Stored, set[str]]] = []
        for one in chain:
            wanted = writes.keys() - seeds.keys()
            if not wanted:
                break
            used.append((one, wanted))
            seeds |= {channel: one.refs[channel] for channel in wanted & one.refs.keys()}
        by_key = await _writes(shared, session_id, [one.key for one, _ in used])
        for one, wanted in used:
            for task, channel, value in reversed(stored_writes(by_key.get(one.key, ()))):
                if channel in wanted:
                    writes[channel].append((task, value))
        if len(used) < len(chain):
            break
    reading = Reading(shared, session_id)
    parts = {channel: await reading.encoded(ref) for channel, ref in seeds.items()}
    texts = await reading.texts(
        [value for found in writes.values() for _, value in found]
        + [part for encoded in parts.values() for part in encoded]
    )
    histories: dict[str, DeltaChannelHistory] = {}
    for channel, found in writes.items():
        loaded: list[tuple[str, str, Any]] = [
            (task, channel, load(value, texts, serde)) for task, value in reversed(found)
        ]
        histories[channel] = {"writes": loaded}
        if channel in seeds:
            histories[channel]["seed"] = load_ref(seeds[channel], parts[channel], texts, serde)
    return histories


async def _ancestors(
    shared: FrameworkStore, session_id: str, target: Stored
) -> AsyncGenerator[list[Stored], None]:
    """Yield the ancestors of a checkpoint, nearest first, up to one that does not exist."""
    key, limit = target.parent_key, _FIRST_PAGE
    seen = {target.key}  # a checkpoint may name itself as its parent
    while key and key not in seen:
        page = await shared.records(
            session_id,
            "checkpoint",
            prefix=f"{namespace_key(target.ns)}/",
            before=f"{key}!",  # with the key itself: no character of a key sorts before this one
            reverse=True,
            limit=limit,
        )
        by_key = {record.key: record for record in page}
        chain: list[Stored] = []
        while key in by_key and key not in seen:
            seen.add(key)
            chain.append(Stored.of(by_key[key]))
            key = chain[-1].parent_key
        if not chain:
            return
        yield chain
        limit = min(4 * limit, _LARGEST_PAGE)


async def _writes(shared: FrameworkStore, session_id: str, keys: list[str]) -> dict[str, list[Record]]:
    """Return the writes of checkpoints that are near each other, by the key of the checkpoint."""
    found: dict[str, list[Record]] = {key: [] for key in keys}
    if keys:
        for record in await shared.records(session_id, "write", after=min(keys), before=f"{max(keys)}0"):
            found.get(record.key.rpartition("/")[0], []).append(record)
    return found
