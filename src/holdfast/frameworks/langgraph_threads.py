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
    get_checkpoint_metadata,
)
from langgraph.checkpoint.serde.base import SerializerProtocol

from holdfast.errors import BadInput, SessionCleaned
from holdfast.frameworks.framework_store import FrameworkStore, RecordWriter
from holdfast.frameworks.langgraph_deletion import KINDS, delete_checkpoints, keep_latest
from holdfast.frameworks.langgraph_keys import checkpoint_key, digest, id_key, namespace_key
from holdfast.frameworks.langgraph_memory import Memory, Ref, ThreadHead, new_memories
from holdfast.frameworks.langgraph_reader import ThreadReader, address_of, config_of, thread_id_of
from holdfast.frameworks.langgraph_values import (
    Stored,
    Values,
    to_json,
)
from holdfast.types import Record, Run

_LARGEST_PLAIN: Final = 1 << 14
_COPY_PAGE: Final = 500


class Threads(ThreadReader):
    """The threads in a store, to read and write. Its methods run on the event loop of the store."""

    def __init__(self, shared: FrameworkStore) -> None:
        super().__init__(shared)
        self._memories = new_memories()

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
        name, ns, parent = address_of(config)
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
        return config_of(thread_id_of(config), ns, checkpoint["id"])

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
        name, ns, checkpoint_id = address_of(config)
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
