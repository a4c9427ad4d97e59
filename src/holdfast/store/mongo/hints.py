"""Wakes those who wait for what other processes commit: a change stream, and a look once a second for what it lost.

It carries hints only. After a break it goes on where it was, by its resume token; if the server has forgotten that
place, everybody looks.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

from pymongo.asynchronous.database import AsyncDatabase
from pymongo.errors import OperationFailure, PyMongoError

from holdfast.store.hub import READY, Hub, drafts, inbox, outputs
from holdfast.store.mongo.documents import MongoRow
from holdfast.tasks import end

_log = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0
_PAUSE_SECONDS = 0.1
_FIELDS = "updateDescription.updatedFields"
_WATCHED: Final[list[dict[str, Any]]] = [
    {"$match": {"ns.coll": {"$in": ["heads", "submissions", "drafts", "commands"]}}},
    {
        "$project": {
            "ns.coll": 1,
            "documentKey": 1,
            "operationType": 1,
            f"{_FIELDS}.seq": 1,
            f"{_FIELDS}.ready_at": 1,
        }
    },
]


def topics_of(change: Mapping[str, Any]) -> list[str]:
    """Return what a change may interest: the session, its inbox, its drafts, a command, or who wants work."""
    key = change.get("documentKey", {}).get("_id")
    updated = change.get("updateDescription", {}).get("updatedFields", {})
    match change["ns"]["coll"]:
        case "heads":
            result = [key] if "seq" in updated or change["operationType"] != "update" else []
            return [*result, READY] if updated.get("ready_at") else result
        case "submissions":
            return [inbox(key["session_id"])] if change["operationType"] == "insert" else []
        case "drafts":
            return [drafts(key["session_id"])]
        case _:
            return [outputs(key)]


class Hints:
    """The two tasks that ring the hub for others' changes."""

    def __init__(
        self, database: AsyncDatabase[MongoRow], hub: Hub, look: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        self._database = database
        self._hub = hub
        self._look = look
        self._tasks = [
            asyncio.create_task(self._listen(), name="holdfast-hints"),
            asyncio.create_task(self._keep_looking(), name="holdfast-look"),
        ]

    async def close(self) -> None:
        """Stop both."""
        await end(*self._tasks)

    async def _listen(self) -> None:
        token: Mapping[str, Any] | None = None
        while not self._hub.has_readers.is_set():  # noqa: ASYNC110 - may be set by a thread
            await asyncio.sleep(
                _PAUSE_SECONDS
            )  # many stores are opened for one call: a stream costs more than that
        while True:
            try:
                async with await self._database.watch(_WATCHED, resume_after=token) as stream:
                    if token is None:
                        self._hub.everyone()  # whatever was said while nobody listened
                    async for change in stream:
                        self._hub.changed(topics_of(change))
                        token = stream.resume_token
            except OperationFailure as error:
                token = None  # that place is gone, or we may not listen
                _log.info("hints come once a second for now: %s", error)
                await asyncio.sleep(_LOOK_SECONDS)
            except PyMongoError as error:
                _log.info("hints are late until the server is back: %s", error)
                await asyncio.sleep(_PAUSE_SECONDS)

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            try:
                await self._look()
            except Exception as error:  # noqa: BLE001 - hints must not end with one bad moment
                _log.info("could not look for changes: %s", error)
