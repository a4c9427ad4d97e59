"""A checkpoint saver for LangGraph: each thread is a session.

Checkpoints, the writes of tasks and the values of channels are records of the session. The module `langgraph_values` describes how values
are stored. Classes that a checkpoint names are loaded only if LangGraph lists them as safe or the serializer allows them.
"""

import asyncio
import json
import re
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Generator,
    Iterator,
    Mapping,
    Sequence,
)
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final, Self

from holdfast.errors import BadInput, MissingExtra
from holdfast.frameworks.framework_store import FrameworkStore
from holdfast.store import Store

try:
    _INSTALLED: Final = version("langgraph-checkpoint")
except PackageNotFoundError as error:
    raise MissingExtra(extra="langgraph") from error
if tuple(map(int, re.findall(r"\d+", _INSTALLED)[:2])) < (4, 3) or not _INSTALLED.startswith("4."):
    raise BadInput(
        problem=f"langgraph-checkpoint {_INSTALLED} is not supported; install holdfast[langgraph], which requires 4.3 or later 4.x"
    )

from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
)
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from holdfast.frameworks.langgraph_keys import namespace_key
from holdfast.frameworks.langgraph_threads import Threads
from holdfast.frameworks.langgraph_values import Reading, Stored


class HoldfastSaver(BaseCheckpointSaver[int]):
    """Stores the checkpoints of LangGraph threads as sessions. The session's name is the `thread_id`.

    `store` is a URL, the path of a SQLite file, `:memory:`, or an open store. All methods may be called from any thread and any event loop.
    It connects when it is first used. Use it in a `with` or `async with` block, or call `close` at the end.
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
        self._threads = Threads(self._shared)

    @classmethod
    def from_conn_string(
        cls, conn_string: str, *, owner: str = "local", serde: SerializerProtocol | None = None
    ) -> Self:
        """Return a saver for a `with` or `async with` block, as the method of LangGraph's savers does."""
        return cls(conn_string, owner=owner, serde=serde)

    def setup(self) -> Awaitable[None]:
        """Connect, and create or upgrade the tables. The first use does the same. You may await the result, as with LangGraph's savers."""
        self._shared.open()
        return _Done()

    def close(self) -> None:
        """Release all sessions and disconnect. The saver cannot be used afterwards."""
        self._shared.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await asyncio.to_thread(self.close)

    # The interface of LangGraph, for threads

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the checkpoint that a config names, or the latest one of its thread and namespace."""
        return self._shared.run(self._threads.get_tuple(self.serde, config))

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Yield checkpoints, newest first. Each is read when it is yielded."""
        listed = self._threads.list(self.serde, config, filter, before, limit)
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
        return self._shared.run(self._threads.put(self.serde, config, checkpoint, metadata, new_versions))

    def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Store the writes of a task that belong to a checkpoint."""
        self._shared.run(self._threads.put_writes(self.serde, config, writes, task_id, task_path))

    def delete_thread(self, thread_id: str) -> None:
        """Erase the session of a thread."""
        self._shared.run(self._shared.erase(str(thread_id)))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete all checkpoints whose metadata has one of these run ids, and their writes."""
        self._shared.run(self._threads.delete_for_runs(self.serde, run_ids))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy all checkpoints and writes of a thread to a thread that has none."""
        self._shared.run(self._threads.copy_thread(self.serde, source_thread_id, target_thread_id))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Keep only the latest checkpoint of each namespace and those that its delta channels need, or delete the threads."""
        self._shared.run(self._threads.prune(self.serde, thread_ids, strategy))

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Return the last stored value of each delta channel before a checkpoint, and the writes since, with a few reads for all."""
        return self._shared.run(self._threads.delta_histories(self.serde, config, channels))

    # The interface of LangGraph, for event loops

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Do the same as `get_tuple`."""
        return await self._shared.call(self._threads.get_tuple(self.serde, config))

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """Do the same as `list`."""
        listed = self._threads.list(self.serde, config, filter, before, limit)
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
        return await self._shared.call(
            self._threads.put(self.serde, config, checkpoint, metadata, new_versions)
        )

    async def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Do the same as `put_writes`."""
        await self._shared.call(self._threads.put_writes(self.serde, config, writes, task_id, task_path))

    async def adelete_thread(self, thread_id: str) -> None:
        """Do the same as `delete_thread`."""
        await self._shared.call(self._shared.erase(str(thread_id)))

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Do the same as `delete_for_runs`."""
        await self._shared.call(self._threads.delete_for_runs(self.serde, run_ids))

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Do the same as `copy_thread`."""
        await self._shared.call(self._threads.copy_thread(self.serde, source_thread_id, target_thread_id))

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Do the same as `prune`."""
        await self._shared.call(self._threads.prune(self.serde, thread_ids, strategy))

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Do the same as `get_delta_channel_history`."""
        return await self._shared.call(self._threads.delta_histories(self.serde, config, channels))


class _Done:
    """An awaitable whose work is done."""

    def __await__(self) -> Generator[None, None, None]:
        yield from ()


async def latest_messages(
    shared: FrameworkStore, session_id: str, start: int
) -> AsyncGenerator[tuple[int, int, Callable[[], Any]], None]:
    """Yield the messages in the latest checkpoint of a thread from a position on: the position, the size, and how it is read as JSON.

    Reads little more than what is used of it.
    """
    found = await shared.records(
        session_id, "checkpoint", prefix=f"{namespace_key('')}/", reverse=True, limit=1
    )
    ref = Stored.of(found[0]).refs.get("messages", {}) if found else {}
    if "n" not in ref:
        return
    serde = JsonPlusSerializer(allowed_msgpack_modules=None)

    def read(join: Callable[[], tuple[str, bytes]]) -> Any:
        message = serde.loads_typed(join())
        if isinstance(message, BaseMessage):
            return message.model_dump(mode="json")
        return json.loads(json.dumps(message, default=str, skipkeys=True))

    async for position, size, join in Reading(shared, session_id).elements_from(ref, start):
        yield position, size, partial(read, join)


async def _next(listed: AsyncGenerator[CheckpointTuple, None]) -> CheckpointTuple | None:
    return await anext(listed, None)
