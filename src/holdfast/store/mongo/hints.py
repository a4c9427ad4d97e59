"""Wake tasks that wait for commits of other processes, by a change stream and, in case it loses changes, by polling once a second.

Signals are only hints. After a disconnect the stream continues from its resume token; if the server no longer has
that position, all tasks are woken.
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

_POLL_SECONDS = 1.0
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
            f"{_FIELDS}.holder": 1,
        }
    },
]


def topics_of(change: Mapping[str, Any], *, limited: bool = False) -> list[str]:
    """Return the topics of a change: the session, its inbox, its drafts, a command, or sessions that are ready.

    If the number of running sessions is `limited`, another one may start when a session is released.
    """
    key = change.get("documentKey", {}).get("_id")
    updated = change.get("updateDescription", {}).get("updatedFields", {})
    match change["ns"]["coll"]:
        case "heads":
            result = [key] if "seq" in updated or change["operationType"] != "update" else []
            is_free = limited and updated.get("holder", "") is None
            return [*result, READY] if updated.get("ready_at") or is_free else result
        case "submissions":
            return [inbox(key["session_id"])] if change["operationType"] == "insert" else []
        case "drafts":
            return [drafts(key["session_id"])]
        case _:
            return [outputs(key)]


class Hints:
    """The two tasks that wake the hub for changes of other processes."""

    def __init__(
        self,
        database: AsyncDatabase[MongoRow],
        hub: Hub,
        poll: Callable[[], Coroutine[Any, Any, None]],
        *,
        limited: bool,
    ) -> None:
        self._database = database
        self._hub = hub
        self._poll = poll
        self._limited = limited
        self._tasks = [
            asyncio.create_task(self._listen(), name="holdfast-hints"),
            asyncio.create_task(self._keep_polling(), name="holdfast-poll"),
        ]

    async def close(self) -> None:
        """Stop both tasks."""
        await end(*self._tasks)

    async def _listen(self) -> None:
        token: Mapping[str, Any] | None = None
        while not self._hub.has_readers.is_set():  # noqa: ASYNC110 - may be set by a thread
            await asyncio.sleep(_PAUSE_SECONDS)  # a store that is opened for one call does not need a stream
        while True:
            try:
                async with await self._database.watch(_WATCHED, resume_after=token) as stream:
                    if token is None:
                        self._hub.wake_all()  # changes before the stream started may have been missed
                    async for change in stream:
                        self._hub.changed(topics_of(change, limited=self._limited))
                        token = stream.resume_token
            except OperationFailure as error:
                token = None  # that position is lost, or we may not use change streams
                _log.info("changes of other processes are polled once a second for now: %s", error)
                await asyncio.sleep(_POLL_SECONDS)
            except PyMongoError as error:
                _log.info("changes of other processes are delayed until the server is back: %s", error)
                await asyncio.sleep(_PAUSE_SECONDS)

    async def _keep_polling(self) -> None:
        while True:
            await asyncio.sleep(_POLL_SECONDS)
            try:
                await self._poll()
            except Exception as error:  # noqa: BLE001 - a boundary: polling must survive any error
                _log.info("cannot poll for changes: %s", error)
