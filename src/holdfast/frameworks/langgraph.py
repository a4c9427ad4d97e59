"""A checkpoint saver for LangGraph: each thread is a session.

Checkpoints, the writes of tasks and the values of channels are records of the session. The module `langgraph_values` describes how values
are stored. Classes that a checkpoint names are loaded only if LangGraph lists them as safe or the serializer allows them.
"""

import json
import re
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final, cast

from holdfast.errors import BadInput, Conflict, MissingExtra
from holdfast.frameworks.base import FrameworkStore, Writer
from holdfast.store import Store
from holdfast.types import Record, Run

try:
    _INSTALLED: Final = version("langgraph-checkpoint")
except PackageNotFoundError as error:
    raise MissingExtra(extra="langgraph") from error
if tuple(map(int, re.findall(r"\d+", _INSTALLED)[:2])) < (4, 3) or not _INSTALLED.startswith("4."):
    raise BadInput(
        problem=f"langgraph-checkpoint {_INSTALLED} is not supported; install holdfast[langgraph], which requires 4.3 or later 4.x"
    )

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    get_checkpoint_id,
    get_checkpoint_metadata,
    writes_sort_key,
)
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from holdfast.frameworks.langgraph_deletion import KINDS, delete_checkpoints, keep_latest
from holdfast.frameworks.langgraph_values import (
    Head,
    Lists,
    Memory,
    Reading,
    Ref,
    Values,
    checkpoint_key,
    digest,
    id_key,
    join,
    keep,
    load,
    namespace_key,
)

_MOST_SESSIONS: Final = 256
_MOST_LISTS: Final = 256
_MOST_ELEMENTS: Final = 100_000
"""How many sessions, lists and elements of lists are kept in memory, to compare the next put with."""
_ANY_SIZE: Final = 1 << 30
_COPY_PAGE: Final = 500


class HoldfastSaver(BaseCheckpointSaver[int]):
    """Stores the checkpoints of LangGraph threads as sessions. The session's name is the `thread_id`.

    `store` is a URL, the path of a SQLite file, or an open store. All methods may be called from any thread and any event loop.
    `serde` replaces the serializer; the default one loads only classes that LangGraph lists as safe. Allow your own with
    `JsonPlusSerializer(allowed_msgpack_modules=[MyClass])`.
    """

    def __init__(
        self,
        store: str | Path | Store,
        *,
        owner: str = "local",
        serde: SerializerProtocol | None = None,
    ) -> None:
        super().__init__(serde=serde or JsonPlusSerializer(allowed_msgpack_modules=None))
        self._shared = FrameworkStore(store, framework="langgraph", owner=owner)
        self._memories: OrderedDict[str, Memory] = OrderedDict()
        self._lists: Lists = OrderedDict()

    def close(self) -> None:
        """Release all sessions and disconnect. The saver cannot be used afterwards."""
        self._shared.close()

    # The interface of LangGraph, for threads

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the checkpoint that a config names, or the latest one of its thread and namespace."""
        return self._shared.run(self._get_tuple(config))

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Yield checkpoints, newest first. Each is read when it is yielded."""
        listed = self._list(config, filter, before, limit)
        while (found := self._shared.run(_next(listed))) is not None:
            yield found

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint. Values that the checkpoint before it has as well are not stored again."""
        return self._shared.run(self._put(config, checkpoint, metadata, new_versions))

    def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Store the writes of a task that belong to a checkpoint."""
        self._shared.run(self._put_writes(config, writes, task_id, task_path))

    def delete_thread(self, thread_id: str) -> None:
        """Erase the session of a thread."""
        self._shared.run(self._delete_thread(thread_id))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete all checkpoints whose metadata has one of these run ids, and their writes."""
        self._shared.run(self._delete_for_runs(run_ids))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy all checkpoints and writes of a thread to a thread that has none."""
        self._shared.run(self._copy_thread(source_thread_id, target_thread_id))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Keep only the latest checkpoint of each namespace and those that its delta channels need, or delete the threads."""
        self._shared.run(self._prune(thread_ids, strategy))

    # The interface of LangGraph, for event loops

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Do the same as `get_tuple`."""
        return await self._shared.call(self._get_tuple(config))

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """Do the same as `list`."""
        listed = self._list(config, filter, before, limit)
        while (found := await self._shared.call(_next(listed))) is not None:
            yield found

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Do the same as `put`."""
        return await self._shared.call(self._put(config, checkpoint, metadata, new_versions))

    async def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Do the same as `put_writes`."""
        await self._shared.call(self._put_writes(config, writes, task_id, task_path))

    async def adelete_thread(self, thread_id: str) -> None:
        """Do the same as `delete_thread`."""
        await self._shared.call(self._delete_thread(thread_id))

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Do the same as `delete_for_runs`."""
        await self._shared.call(self._delete_for_runs(run_ids))

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Do the same as `copy_thread`."""
        await self._shared.call(self._copy_thread(source_thread_id, target_thread_id))

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Do the same as `prune`."""
        await self._shared.call(self._prune(thread_ids, strategy))

    # Writing

    @asynccontextmanager
    async def _writing(self, session_id: str) -> AsyncGenerator[tuple[Writer, Memory], None]:
        """Hold a session, with the memory of what was written. After a failure nothing is remembered."""
        async with self._shared.writing(session_id) as writer:
            epoch = writer.lease.epoch
            memory = self._memories.pop(session_id, None)
            if memory is None or epoch - memory.epoch not in {
                0,
                1,
            }:  # each time a session is acquired adds one
                memory = Memory()
            memory.epoch = epoch
            try:
                yield writer, memory
            except BaseException:
                for key in [key for key in self._lists if key[0] == session_id]:
                    del self._lists[key]
                raise
            memory.trim()
            self._memories[session_id] = memory
            if len(self._memories) > _MOST_SESSIONS:
                self._memories.popitem(last=False)
            self._trim_lists()

    def _trim_lists(self) -> None:
        """Forget the lists that were used longest ago, but never the last one."""
        size = sum(len(kept.stored) for kept in self._lists.values())
        while len(self._lists) > 1 and (len(self._lists) > _MOST_LISTS or size > _MOST_ELEMENTS):
            size -= len(self._lists.popitem(last=False)[1].stored)

    async def _put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        name, ns, parent = _address(config)
        session_id = await self._shared.ensure_id(name)
        async with self._writing(session_id) as (writer, memory):
            before = await self._head(session_id, memory, ns, parent)
            values = Values(self._shared, session_id, self.serde, memory, self._lists)
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
            body = {
                "id": checkpoint["id"],
                "ns": ns,
                "parent": parent,
                "checkpoint": await values.encode(rest, small=_ANY_SIZE),
                "metadata": await values.encode(stored, small=_ANY_SIZE),
                "refs": refs,
            }
            key = checkpoint_key(ns, checkpoint["id"])
            values.records.append(Record(kind="checkpoint", key=key, body=json.dumps(body)))
            run_id = cast("dict[str, Any]", stored).get("run_id")
            runs = (
                [] if run_id is None or str(run_id) in memory.runs else [self._run(session_id, str(run_id))]
            )
            await writer.write(values.records, runs=runs)
            memory.runs |= {} if run_id is None else {str(run_id): None}
            memory.heads[ns] = Head(checkpoint["id"], dict(versions), refs)
            memory.heads.move_to_end(ns)
            for task in [task for task in memory.tasks if task.startswith(f"{namespace_key(ns)}/")]:
                del memory.tasks[task]
        return _config(_thread_id(config), ns, checkpoint["id"])

    async def _head(self, session_id: str, memory: Memory, ns: str, checkpoint_id: str | None) -> Head:
        """Return the checkpoint before the one to be put."""
        head = memory.heads.get(ns)
        if checkpoint_id is None:
            return Head()
        if head is not None and head.id == checkpoint_id:
            return head
        found = await self._find(session_id, ns, checkpoint_id)
        if found is None:
            return Head()
        texts = await Reading(self._shared, session_id).texts([found["checkpoint"]])
        rest = load(found["checkpoint"], texts, self.serde)
        return Head(checkpoint_id, rest["channel_versions"], found["refs"])

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

    async def _put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str
    ) -> None:
        name, ns, checkpoint_id = _address(config)
        if checkpoint_id is None:
            raise BadInput(problem="put_writes needs a config with a checkpoint_id")
        session_id = await self._shared.ensure_id(name)
        async with self._writing(session_id) as (writer, memory):
            key = f"{checkpoint_key(ns, checkpoint_id)}/{id_key(task_id)}"
            rows: list[Any] | None = memory.tasks.get(key)
            if rows is None:
                head = memory.heads.get(ns)
                is_new = head is not None and head.id == checkpoint_id and memory.has_all_tasks
                found = [] if is_new else await self._shared.records(session_id, "write", prefix=key, limit=1)
                rows = json.loads(found[0].body)["writes"] if found and found[0].key == key else []
            by_number: dict[int, Any] = {row[0]: row for row in rows}
            values = Values(self._shared, session_id, self.serde, memory, self._lists)
            for position, (channel, value) in enumerate(writes):
                number = WRITES_IDX_MAP.get(channel, position)
                if number < 0 or number not in by_number:
                    by_number[number] = [number, channel, await values.encode(value)]
            rows = [by_number[number] for number in sorted(by_number)]
            body = {"task": task_id, "path": task_path, "writes": rows}
            values.records.append(Record(kind="write", key=key, body=json.dumps(body)))
            await writer.write(values.records)
            memory.tasks[key] = rows

    # Reading

    async def _get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
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
                return await self._load(session.id, thread_id, found, remember=True)
            except Conflict:  # it was deleted meanwhile; the latest one may be another now
                if attempt == 2:  # noqa: PLR2004
                    raise
        return None

    async def _find(self, session_id: str, ns: str, checkpoint_id: str | None) -> dict[str, Any] | None:
        prefix = f"{namespace_key(ns)}/" if checkpoint_id is None else checkpoint_key(ns, checkpoint_id)
        found = await self._shared.records(
            session_id, "checkpoint", prefix=prefix, reverse=checkpoint_id is None, limit=1
        )
        if not found or (checkpoint_id is not None and found[0].key != prefix):
            return None
        return json.loads(found[0].body)

    async def _load(
        self, session_id: str, thread_id: Any, found: dict[str, Any], *, remember: bool = False
    ) -> CheckpointTuple:
        """Return a checkpoint with its values and writes."""
        ns: str = found["ns"]
        reading = Reading(self._shared, session_id)
        writes = await self._shared.records(session_id, "write", prefix=f"{checkpoint_key(ns, found['id'])}/")
        tasks = [json.loads(record.body) for record in writes]
        encoded = [found["checkpoint"], found["metadata"]]
        encoded += [write[2] for task in tasks for write in task["writes"]]
        single: dict[str, Any] = {}
        lists: dict[str, Any] = {}
        refs: dict[str, Ref] = found["refs"]
        for channel, ref in refs.items():
            if "n" in ref:
                kept = self._lists.get((session_id, ns, channel))
                if kept is None or not kept.is_at(ref):
                    lists[channel] = await reading.elements(ref)
                    encoded += lists[channel]
            else:
                single[channel] = ref["v"] if "v" in ref else await reading.one("value", ref["k"])
                encoded.append(single[channel])
        texts = await reading.texts(encoded)
        values: dict[str, Any] = {}
        for channel, ref in refs.items():
            if channel in single:
                values[channel] = load(single[channel], texts, self.serde)
                continue
            key = (session_id, ns, channel)
            new = channel in lists
            stored = [join(one, texts) for one in lists[channel]] if new else self._lists[key].stored
            values[channel] = [self.serde.loads_typed(one) for one in stored]
            if new and remember:
                self._lists[key] = keep(ref, stored, values[channel], self.serde)
                self._trim_lists()
        rest = load(found["checkpoint"], texts, self.serde)
        pending = [
            (writes_sort_key(task["path"], task["task"], number), channel, value)
            for task in tasks
            for number, channel, value in task["writes"]
        ]
        pending.sort(key=lambda write: write[0])
        parent = found["parent"]
        return CheckpointTuple(
            config=_config(thread_id, ns, found["id"]),
            checkpoint=cast("Checkpoint", {**rest, "id": found["id"], "channel_values": values}),
            metadata=load(found["metadata"], texts, self.serde),
            parent_config=None if parent is None else _config(thread_id, ns, parent),
            pending_writes=[
                (order[1], channel, load(value, texts, self.serde)) for order, channel, value in pending
            ],
        )

    async def _list(
        self,
        config: RunnableConfig | None,
        filter: dict[str, Any] | None,
        before: RunnableConfig | None,
        limit: int | None,
    ) -> AsyncGenerator[CheckpointTuple, None]:
        below = None if before is None else get_checkpoint_id(before)
        if limit is not None and limit <= 0:
            return
        async for session_id, thread_id, found in self._matching(config, below):
            if filter:
                texts = await Reading(self._shared, session_id).texts([found["metadata"]])
                metadata = load(found["metadata"], texts, self.serde)
                if any(metadata.get(key) != value for key, value in filter.items()):
                    continue
            try:
                loaded = await self._load(session_id, thread_id, found)
            except Conflict:  # deleted since it was listed
                continue
            yield loaded
            limit = None if limit is None else limit - 1
            if limit == 0:
                return

    async def _matching(
        self, config: RunnableConfig | None, below: str | None
    ) -> AsyncGenerator[tuple[str, Any, dict[str, Any]], None]:
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
        wanted = None if config is None else get_checkpoint_id(config)
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
                    yield session_id, thread_id, json.loads(found[0].body)

    # Deleting and copying

    async def _delete_thread(self, thread_id: str) -> None:
        await self._shared.erase(str(thread_id))

    async def _delete_for_runs(self, run_ids: Sequence[str]) -> None:
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
        for session_id in sessions:
            async with self._writing(session_id) as (writer, _):
                await delete_checkpoints(
                    self._shared,
                    writer,
                    self.serde,
                    lambda found: {one.key for one in found if str(one.metadata.get("run_id")) in wanted},
                )
            self._memories.pop(session_id)

    async def _prune(self, thread_ids: Sequence[str], strategy: str) -> None:
        if strategy not in {"keep_latest", "delete"}:
            raise BadInput(problem=f"unknown strategy {strategy!r}; use keep_latest or delete")
        for thread_id in thread_ids:
            session = await self._shared.find(str(thread_id))
            if strategy == "delete":
                await self._delete_thread(thread_id)
            elif session is not None:
                async with self._writing(session.id) as (writer, _):
                    await delete_checkpoints(self._shared, writer, self.serde, keep_latest)
                self._memories.pop(session.id)

    async def _copy_thread(self, source: str, target: str) -> None:
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
                        encoded = json.loads(record.body)["metadata"]
                        texts = await Reading(self._shared, session.id).texts([encoded])
                        run_id = load(encoded, texts, self.serde).get("run_id")
                        if run_id is not None:
                            runs[str(run_id)] = self._run(target_id, str(run_id))
                    await writer.write(page, runs=list(runs.values()))
                    last = page[-1].key
        self._memories.pop(target_id)


async def _next(listed: AsyncGenerator[CheckpointTuple, None]) -> CheckpointTuple | None:
    return await anext(listed, None)


def _address(config: RunnableConfig) -> tuple[str, str, str | None]:
    """Return the name of the session, the namespace and the id of the checkpoint."""
    ns: str = config.get("configurable", {}).get("checkpoint_ns") or ""
    return str(_thread_id(config)), ns, get_checkpoint_id(config)


def _thread_id(config: RunnableConfig) -> Any:
    try:
        return config.get("configurable", {})["thread_id"]
    except KeyError:
        raise BadInput(
            problem="the config has no thread_id; pass {'configurable': {'thread_id': …}}"
        ) from None


def _config(thread_id: Any, ns: str, checkpoint_id: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread_id, "checkpoint_ns": ns, "checkpoint_id": checkpoint_id}}
