"""Reads the checkpoints of threads, with their values and writes."""

import json
from collections.abc import AsyncGenerator, Sequence
from typing import Any, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    Checkpoint,
    CheckpointTuple,
    DeltaChannelHistory,
    get_checkpoint_id,
)
from langgraph.checkpoint.serde.base import SerializerProtocol

from holdfast.errors import BadInput, Conflict
from holdfast.frameworks.framework_store import FrameworkStore
from holdfast.frameworks.langgraph_deltas import delta_histories
from holdfast.frameworks.langgraph_keys import checkpoint_key, id_key, namespace_key
from holdfast.frameworks.langgraph_memory import new_lists
from holdfast.frameworks.langgraph_values import (
    Encoded,
    Reading,
    Stored,
    join,
    keep,
    load,
    load_list,
    load_ref,
    stored_writes,
)


class ThreadReader:
    """The threads in a store. Its methods run on the event loop of the store."""

    def __init__(self, shared: FrameworkStore) -> None:
        self._shared = shared
        self._lists = new_lists()

    async def get_tuple(self, serde: SerializerProtocol, config: RunnableConfig) -> CheckpointTuple | None:
        """Return a checkpoint; None if there is none."""
        name, ns, checkpoint_id = address_of(config)
        session = await self._shared.find(name)
        if session is None:
            return None
        thread_id = thread_id_of(config)
        for attempt in (1, 2):
            found = await self._find(session.id, ns, checkpoint_id)
            if found is None:
                return None
            try:
                return await self._load(serde, session.id, thread_id, found, remember=True)
            except Conflict:  # it was deleted meanwhile; the latest one may be another now
                if attempt == 2:  # noqa: PLR2004
                    raise
        return None

    async def _find(self, session_id: str, ns: str, checkpoint_id: str | None) -> Stored | None:
        prefix = f"{namespace_key(ns)}/" if checkpoint_id is None else checkpoint_key(ns, checkpoint_id)
        found = await self._shared.records(
            session_id, "checkpoint", prefix=prefix, reverse=checkpoint_id is None, limit=1
        )
        if not found or (checkpoint_id is not None and found[0].key != prefix):
            return None
        return Stored.of(found[0])

    async def _load(
        self,
        serde: SerializerProtocol,
        session_id: str,
        thread_id: Any,
        found: Stored,
        *,
        remember: bool = False,
    ) -> CheckpointTuple:
        """Return a checkpoint with its values and writes."""
        ns = found.ns
        reading = Reading(self._shared, session_id)
        writes = stored_writes(await self._shared.records(session_id, "write", prefix=f"{found.key}/"))
        encoded = [found.content, *(value for _, _, value in writes)]
        parts: dict[str, list[Encoded]] = {}
        ready: dict[str, list[tuple[str, bytes]]] = {}
        for channel, ref in found.refs.items():
            kept = self._lists.get((session_id, ns, channel)) if "n" in ref else None
            if kept is not None and kept.is_at(ref):
                ready[channel] = list(kept.stored)  # the next put changes it
            else:
                parts[channel] = await reading.encoded(ref)
                encoded += parts[channel]
        texts = await reading.texts(encoded)
        values: dict[str, Any] = {}
        for channel, ref in found.refs.items():
            if "n" not in ref:
                values[channel] = load_ref(ref, parts[channel], texts, serde)
                continue
            stored = ready.get(channel) or [join(one, texts) for one in parts.get(channel, ())]
            values[channel] = load_list(stored, serde)
            if channel in parts and remember:
                self._lists.put((session_id, ns, channel), keep(ref, stored, values[channel], serde))
        rest, metadata = load(found.content, texts, serde)
        return CheckpointTuple(
            config=config_of(thread_id, ns, found.id),
            checkpoint=cast("Checkpoint", {**rest, "id": found.id, "channel_values": values}),
            metadata=metadata,
            parent_config=None if found.parent is None else config_of(thread_id, ns, found.parent),
            pending_writes=[(task, channel, load(value, texts, serde)) for task, channel, value in writes],
        )

    async def delta_histories(
        self, serde: SerializerProtocol, config: RunnableConfig, channels: Sequence[str]
    ) -> dict[str, DeltaChannelHistory]:
        """Return the history of each delta channel before a checkpoint."""
        name, ns, checkpoint_id = address_of(config)
        session_id = await self._shared.find_id(name)
        target = None if session_id is None else await self._find(session_id, ns, checkpoint_id)
        if session_id is None or target is None:
            return {channel: {"writes": []} for channel in channels}
        return await delta_histories(self._shared, session_id, serde, target, channels)

    async def list(
        self,
        serde: SerializerProtocol,
        config: RunnableConfig | None,
        filter: dict[str, Any] | None,
        before: RunnableConfig | None,
        limit: int | None,
    ) -> AsyncGenerator[CheckpointTuple, None]:
        """Yield checkpoints, newest first."""
        below = _checkpoint_id(before)
        if limit is not None and limit <= 0:
            return
        async for session_id, thread_id, found in self._matching(config, below):
            if filter:
                _, metadata = await self._content(serde, session_id, found)
                if any(metadata.get(key) != value for key, value in filter.items()):
                    continue
            try:
                loaded = await self._load(serde, session_id, thread_id, found)
            except Conflict:  # deleted since it was listed
                continue
            yield loaded
            limit = None if limit is None else limit - 1
            if limit == 0:
                return

    async def _matching(
        self, config: RunnableConfig | None, below: str | None
    ) -> AsyncGenerator[tuple[str, Any, Stored], None]:
        """Yield checkpoints before one, newest first, with the id of the session and of the thread."""
        if config is None:
            sessions = [
                (session.id, json.loads(session.metadata)["name"])
                async for session in self._shared.all_sessions()
            ]
        else:
            session = await self._shared.find(address_of(config)[0])
            if session is None:
                return
            sessions = [(session.id, thread_id_of(config))]
        wanted = _checkpoint_id(config)
        ns = None if config is None else config.get("configurable", {}).get("checkpoint_ns")
        if wanted is not None and ns is not None:
            found = await self._find(sessions[0][0], ns, wanted)
            if found is not None and (below is None or wanted < below):
                yield *sessions[0], found
            return
        keys = [
            (record.key.partition("/")[2], session_id, thread_id, record.key)
            for session_id, thread_id in sessions
            for record in await self._shared.records(
                session_id, "checkpoint", prefix="" if ns is None else f"{namespace_key(ns)}/", bodies=False
            )
        ]
        keys.sort(key=lambda key: key[0], reverse=True)
        for position, session_id, thread_id, key in keys:
            if (below is None or position < id_key(below)) and (wanted is None or position == id_key(wanted)):
                found = await self._shared.records(session_id, "checkpoint", prefix=key, limit=1)
                if found and found[0].key == key:
                    yield session_id, thread_id, Stored.of(found[0])

    async def _content(self, serde: SerializerProtocol, session_id: str, found: Stored) -> Any:
        """Return a checkpoint without its values, and its metadata."""
        return load(found.content, await Reading(self._shared, session_id).texts([found.content]), serde)


def address_of(config: RunnableConfig) -> tuple[str, str, str | None]:
    """Return the name of the session, the namespace and the id of the checkpoint."""
    ns: str = config.get("configurable", {}).get("checkpoint_ns") or ""
    return str(thread_id_of(config)), ns, _checkpoint_id(config)


def _checkpoint_id(config: RunnableConfig | None) -> str | None:
    """Return the id of the checkpoint that a config names. Without one, or with an empty one, the latest is meant."""
    return None if config is None else get_checkpoint_id(config) or None


def thread_id_of(config: RunnableConfig) -> Any:
    """Return the id of the thread that a config names. Raises `BadInput` if it names none."""
    try:
        return config.get("configurable", {})["thread_id"]
    except KeyError:
        raise BadInput(
            problem="the config has no thread_id; pass {'configurable': {'thread_id': …}}"
        ) from None


def config_of(thread_id: Any, ns: str, checkpoint_id: str) -> RunnableConfig:
    """Return the config that names a checkpoint."""
    return {"configurable": {"thread_id": thread_id, "checkpoint_ns": ns, "checkpoint_id": checkpoint_id}}
