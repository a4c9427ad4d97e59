"""The collections of `MongoStepStore` of pydantic-ai-harness. Read-only; needs PyMongo."""

import hashlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from holdfast.importers.harness_sources import Found, HarnessSource, is_object, looked_up, referred
from holdfast.importers.mongo import open_database
from holdfast.importers.report import Notes
from holdfast.types import Json

_KNOWN = ("runs", "events", "snapshots", "tool_effects")
_AT_ONCE = 1000


class Mongo(HarnessSource):
    """A database of `MongoStepStore`. Each record is read in its current state."""

    def __init__(self, name: str, database: Any) -> None:
        self.name = name
        self._database = database
        self._messages: dict[str, Json] = {}

    async def run_ids(self) -> list[str]:
        names = await self._database.list_collection_names()
        if "runs" not in names:
            raise self.bad("it has no collection named runs, so it is not a step store of the harness")
        results: set[str] = set()
        for name in _KNOWN:
            results.update(map(str, await self._database[name].distinct("run_id")))
        return sorted(results)

    async def run(self, run_id: str) -> Found | None:
        records = await self._records("runs", run_id, "started_at")
        return (f"run {run_id}", records[0]) if records else None

    async def events(self, run_id: str) -> list[Found]:
        records = await self._records("events", run_id, "seq")
        return [(f"event {record.pop('seq', '?')} of run {run_id}", record) for record in records]

    async def effects(self, run_id: str) -> list[Found]:
        records = await self._records("tool_effects", run_id, "started_at")
        return [(f"the ledger of run {run_id}", record) for record in records]

    async def snapshots(self, run_id: str) -> AsyncGenerator[Found, None]:
        self._messages.clear()
        async for record in self._database["snapshots"].find({"run_id": run_id}).sort("seq", 1):
            where = f"snapshot {record.pop('seq', '?')} of run {run_id}"
            del record["_id"]
            messages = self.parsed(record.get("messages"), where)
            if is_object(messages):
                texts = await self._history(messages, where)
            else:
                texts = self.texts(messages, where)
            yield where, {**record, "messages": texts}

    async def media(self, sha256: str) -> bytes | None:
        manifest = await self._database["media"].find_one({"_id": sha256})
        if manifest is None:
            return None
        size = manifest.get("chunk_size", {"$exists": False})
        where = {"files_id": sha256, "chunk_size": size, "n": {"$lt": manifest.get("chunk_count", 0)}}
        data = b"".join(
            [chunk["data"] async for chunk in self._database["media_chunks"].find(where).sort("n", 1)]
        )
        return data if hashlib.sha256(data).hexdigest() == sha256 else None

    async def note_unknown(self, notes: Notes) -> None:
        beside = {"snapshot_messages", "snapshot_idempotency_keys", "counters", "media", "media_chunks"}
        for name in sorted(set(await self._database.list_collection_names()) - {*_KNOWN, *beside}):
            notes.add("collections that do not belong to a step store", name)

    async def _records(self, collection: str, run_id: str, order: str) -> list[dict[str, Any]]:
        cursor = self._database[collection].find({"run_id": run_id}, {"_id": 0}).sort(order, 1)
        return [record async for record in cursor]

    async def _history(self, refers: dict[str, Any], where: str) -> list[Json]:
        keys = referred(self, refers, where)
        wanted = sorted(set(keys) - set(self._messages))
        for start in range(0, len(wanted), _AT_ONCE):
            some = {"_id": {"$in": wanted[start : start + _AT_ONCE]}}
            async for record in self._database["snapshot_messages"].find(some):
                self._messages[record["_id"]] = record["message"]
        return looked_up(self, keys, self._messages, where)


@asynccontextmanager
async def open_mongo(address: str, name: str, database: str | None) -> AsyncGenerator[HarnessSource, None]:
    """Open the database in the address, or `database`."""
    async with open_database(address, name, database) as opened:
        yield Mongo(name, opened)
