"""Reads and writes the checkpoints of LangGraph threads. The session's name is the `thread_id`."""

import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
    get_checkpoint_id,
    get_checkpoint_metadata,
)
from langgraph.checkpoint.serde.base import SerializerProtocol

from holdfast.errors import BadInput, Conflict, SessionCleaned
from holdfast.frameworks.base import FrameworkStore, RecordWriter
from holdfast.frameworks.langgraph_deletion import KINDS, delete_checkpoints, keep_latest
from holdfast.frameworks.langgraph_deltas import delta_histories
from holdfast.frameworks.langgraph_memory import Memory, Ref, ThreadHead, new_lists, new_memories
from holdfast.frameworks.langgraph_values import (
    Encoded,
    Reading,
    Stored,
    Values,
    checkpoint_key,
    digest,
    id_key,
    join,
    keep,
    load,
    load_list,
    load_ref,
    namespace_key,
    stored_writes,
    to_json,
)
from holdfast.types import Record, Run

_LARGEST_PLAIN: Final = 1 << 14
_COPY_PAGE: Final = 500


class Threads:
    """The threads in a store. Its methods run on the event loop of the store."""

    def __init__(self, shared: FrameworkStore) -> None:
        self._shared = shared
        self._memories = new_memories()
        self._lists = new_lists()

    # Writing

    @asynccontextmanager
    async def _writing(self, session_id: str) -> AsyncGenerator[tuple[RecordWriter, Memory], None]:
        """Hold a session, with the memory of what was written. After a failure nothing is remembered."""
        async with self._shared.writing(session_id) as writer:
            epoch = writer.lease.epoch
            memory = self._memories.pop(session_id)
            if memory is None or epoch - memory.epoch not in {
                0,
                1,
            }:  # each time a session is acquired adds one
                memory = Memory()
            memory.epoch = epoch
            try:
                yield writer, memory
            except BaseException:
                for key in self._lists:
                    if key[0] == session_id:
                        self._lists.pop(key)
                raise
            memory.trim()
            self._memories.put(session_id, memory)

    async def put(
        self,
        serde: SerializerProtocol,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint."""
        name, ns, parent = _address(config)
        session_id = await self._shared.ensure_id(name)
        async with self._writing(session_id) as (writer, memory):
            before = await self._head(serde, session_id, memory, ns, parent)
            values = Values(self._shared, session_id, serde, memory, self._lists)
            versions = checkpoint["channel_versions"]
            refs: dict[str, Ref] = {}
            for channel, value in checkpoint["channel_values"].items():
                ref = before.refs.get(channel)
                unchanged = channel in versions and versions[channel] == before.versions.get(channel)
                if ref is None or channel in new_versions or not unchanged:
                    ref = await values.put(ns, channel, value, ref)
                refs[channel] = ref
            stored = get_checkpoint_metadata(config, metadata)
            rest = {key: value for key, value in checkpoint.items() if key not in {"channel_values", "id"}}
            key = checkpoint_key(ns, checkpoint["id"])
            body = {
                "c": await values.encode([rest, stored], small=_LARGEST_PLAIN),
                "r": refs,
                **({} if parent is None else {"p": parent}),
                **({"ns": ns} if ns else {}),
                **({} if key.endswith(f"/{checkpoint['id']}") else {"id": checkpoint["id"]}),
            }
            values.records.append(Record(kind="checkpoint", key=key, body=to_json(body)))
            run_id = cast("dict[str, Any]", stored).get("run_id")
            runs = [] if run_id is None else [self._run(session_id, str(run_id))]
            await writer.write(values.records, runs=[run for run in runs if run.id not in memory.runs])
            memory.runs |= {run.id: None for run in runs}
            memory.heads[namespace_key(ns)] = ThreadHead(checkpoint["id"], dict(versions), refs)
            memory.heads.move_to_end(namespace_key(ns))
            of_others = [
                task
                for task in memory.tasks
                if task.startswith(f"{namespace_key(ns)}/") and not task.startswith(f"{key}/")
            ]
            for task in of_others:
                del memory.tasks[task]
        return _config(_thread_id(config), ns, checkpoint["id"])

    async def _head(
        self, serde: SerializerProtocol, session_id: str, memory: Memory, ns: str, checkpoint_id: str | None
    ) -> ThreadHead:
        """Return the checkpoint before the one to be put."""
        head = memory.heads.get(namespace_key(ns))
        if checkpoint_id is None:
            return ThreadHead()
        if head is not None and head.id == checkpoint_id:
            return head
        found = await self._find(session_id, ns, checkpoint_id)
        if found is None:
            return ThreadHead()
        rest, _ = await self._content(serde, session_id, found)
        return ThreadHead(checkpoint_id, rest["channel_versions"], found.refs)

    async def _content(self, serde: SerializerProtocol, session_id: str, found: Stored) -> Any:
        """Return a checkpoint without its values, and its metadata."""
        return load(found.content, await Reading(self._shared, session_id).texts([found.content]), serde)

    def _run(self, session_id: str, run_id: str) -> Run:
        return Run(
            id=digest(session_id, run_id),
            parent_id=self._run_group(run_id),
            agent="langgraph",
            status="completed",
        )

    def _run_group(self, run_id: str) -> str:
        """Return the id that the runs of all sessions with this run id have as their parent."""
        return "langgraph-" + digest(self._shared.owner, run_id)

    async def put_writes(
        self,
        serde: SerializerProtocol,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str,
    ) -> None:
        """Store the writes of a task."""
        name, ns, checkpoint_id = _address(config)
        if checkpoint_id is None:
            raise BadInput(problem="put_writes needs a config with a checkpoint_id")
        session_id = await self._shared.ensure_id(name)
        async with self._writing(session_id) as (writer, memory):
            key = f"{checkpoint_key(ns, checkpoint_id)}/{id_key(task_id)}"
            head = memory.heads.get(namespace_key(ns))
            is_new = head is not None and head.id == checkpoint_id and memory.has_all_tasks
            found: list[Record] = []
            if key in memory.tasks or not is_new:
                found = await self._shared.records(session_id, "write", prefix=key, limit=1)
            rows: list[Any] = json.loads(found[0].body)["w"] if found and found[0].key == key else []
            by_number: dict[int, Any] = {row[0]: row for row in rows}
            values = Values(self._shared, session_id, serde, memory, self._lists)
            for position, (channel, value) in enumerate(writes):
                number = WRITES_IDX_MAP.get(channel, position)
                if number < 0 or number not in by_number:
                    by_number[number] = [number, channel, await values.encode(value)]
            rows = [by_number[number] for number in sorted(by_number)]
            body = {"p": task_path, "w": rows} | ({} if key.endswith(f"/{task_id}") else {"t": task_id})
            values.records.append(Record(kind="write", key=key, body=to_json(body)))
            await writer.write(values.records)
            memory.tasks[key] = None

    # Reading

    async def get_tuple(self, serde: SerializerProtocol, config: RunnableConfig) -> CheckpointTuple | None:
        """Return a checkpoint; None if there is none."""
        name, ns, checkpoint_id = _address(config)
        session = await self._shared.find(name)
        if session is None:
            return None
        thread_id = _thread_id(config)
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
            config=_config(thread_id, ns, found.id),
            checkpoint=cast("Checkpoint", {**rest, "id": found.id, "channel_values": values}),
            metadata=metadata,
            parent_config=None if found.parent is None else _config(thread_id, ns, found.parent),
            pending_writes=[(task, channel, load(value, texts, serde)) for task, channel, value in writes],
        )

    async def delta_histories(
        self, serde: SerializerProtocol, config: RunnableConfig, channels: Sequence[str]
    ) -> dict[str, DeltaChannelHistory]:
        """Return the history of each delta channel before a checkpoint."""
        name, ns, checkpoint_id = _address(config)
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
            session = await self._shared.find(_address(config)[0])
            if session is None:
                return
            sessions = [(session.id, _thread_id(config))]
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

    # Deleting and copying

    async def delete_for_runs(self, serde: SerializerProtocol, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints of runs."""
        wanted = {str(run_id) for run_id in run_ids}
        sessions: dict[str, None] = {}
        for run_id in wanted:
            cursor: str | None = None
            while True:
                page = await self._shared.store.runs(
                    parent_id=self._run_group(run_id), cursor=cursor, limit=_COPY_PAGE
                )
                sessions |= {run.session_id: None for run in page.items}
                cursor = page.next_cursor
                if cursor is None:
                    break
        refused: SessionCleaned | None = None
        for session_id in sessions:
            try:
                async with self._writing(session_id) as (writer, _):
                    await delete_checkpoints(
                        self._shared,
                        writer,
                        serde,
                        lambda found: {
                            one.key for one, metadata in found if str(metadata.get("run_id")) in wanted
                        },
                    )
                self._memories.pop(session_id)
            except SessionCleaned as error:  # its archive has them; delete those of the others first
                refused = error
        if refused is not None:
            raise refused

    async def prune(self, serde: SerializerProtocol, thread_ids: Sequence[str], strategy: str) -> None:
        """Delete all but the latest checkpoints, or the threads."""
        if strategy not in {"keep_latest", "delete"}:
            raise BadInput(problem=f"unknown strategy {strategy!r}; use keep_latest or delete")
        for thread_id in thread_ids:
            session = await self._shared.find(str(thread_id))
            if strategy == "delete":
                await self._shared.erase(str(thread_id))
            elif session is not None:
                async with self._writing(session.id) as (writer, _):
                    await delete_checkpoints(self._shared, writer, serde, keep_latest)
                self._memories.pop(session.id)

    async def copy_thread(self, serde: SerializerProtocol, source: str, target: str) -> None:
        """Copy a thread to one that has no checkpoints."""
        session = await self._shared.find(str(source))
        if session is None:
            return
        target_id = await self._shared.ensure_id(str(target))
        async with self._writing(session.id), self._writing(target_id) as (writer, _):
            if await self._shared.records(target_id, "checkpoint", limit=1, bodies=False):
                raise BadInput(problem=f"thread {target!r} has checkpoints; copy to a new thread")
            for kind in (
                KINDS
            ):  # checkpoints last: without them a copy that was interrupted is empty, and can be done again
                last: str | None = None
                while page := await self._shared.store.records(
                    session.id, kind, after=last, limit=_COPY_PAGE
                ):
                    runs: dict[str, Run] = {}
                    for record in page if kind == "checkpoint" else ():
                        _, metadata = await self._content(serde, session.id, Stored.of(record))
                        if (run_id := metadata.get("run_id")) is not None:
                            runs[str(run_id)] = self._run(target_id, str(run_id))
                    await writer.write(page, runs=list(runs.values()))
                    last = page[-1].key
        self._memories.pop(target_id)


def _address(config: RunnableConfig) -> tuple[str, str, str | None]:
    """Return the name of the session, the namespace and the id of the checkpoint."""
    ns: str = config.get("configurable", {}).get("checkpoint_ns") or ""
    return str(_thread_id(config)), ns, _checkpoint_id(config)


def _checkpoint_id(config: RunnableConfig | None) -> str | None:
    """Return the id of the checkpoint that a config names. Without one, or with an empty one, the latest is meant."""
    return None if config is None else get_checkpoint_id(config) or None


def _thread_id(config: RunnableConfig) -> Any:
    try:
        return config.get("configurable", {})["thread_id"]
    except KeyError:
        raise BadInput(
            problem="the config has no thread_id; pass {'configurable': {'thread_id': …}}"
        ) from None


def _config(thread_id: Any, ns: str, checkpoint_id: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread_id, "checkpoint_ns": ns, "checkpoint_id": checkpoint_id}}
