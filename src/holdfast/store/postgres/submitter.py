"""Queue the submissions of a process in groups: those that arrive while a group is written are the next group."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeAlias

from holdfast.errors import StoreUnavailable
from holdfast.priority import RANKS
from holdfast.store.rows import Row, Rows
from holdfast.store.submissions import NewSubmission, queued, title_of
from holdfast.store.transactions import Tx, Unfinished, op

_LARGEST_GROUP = 64
_LARGEST_GROUP_CHARACTERS = 8 * 1024 * 1024
_log = logging.getLogger(__name__)

_Waiting: TypeAlias = "tuple[NewSubmission, asyncio.Future[Row | None]]"


class Submitter:
    """Writes the waiting submissions in groups, with at most one submission per session in a group."""

    def __init__(
        self, write: Callable[[Sequence[NewSubmission]], Coroutine[Any, Any, Rows]], unfinished: Unfinished
    ) -> None:
        self._write = write
        self._unfinished = unfinished
        self._waiting: deque[_Waiting] = deque()
        self._group: dict[str, _Waiting] = {}
        self._is_writing = False

    async def submit(self, new: NewSubmission) -> Row | None:
        """Queue a submission and return its row after the commit; None if it was not queued, or may not have been.

        That is so if it needs more than an insert: the session is locked, full or closed, the submission exists, or the server failed.
        Raises `StoreUnavailable` if no connection is free.
        """
        future: asyncio.Future[Row | None] = asyncio.get_running_loop().create_future()
        self._waiting.append((new, future))
        if not self._is_writing:
            self._start()
        return await future

    def _start(self) -> None:
        self._is_writing = True
        self._unfinished.start(self._write_waiting()).add_done_callback(self._end)

    async def _write_waiting(self) -> None:
        while self._waiting:
            self._group = self._next_group()
            rows: Rows = ()
            try:
                rows = await self._write([new for new, _ in self._group.values()])
            except StoreUnavailable as error:
                # No connection is free: nothing was sent, and the others would only wait for as long again.
                for _, future in (*self._group.values(), *self._waiting):
                    if not future.done():
                        future.set_exception(error)
                self._waiting.clear()
            except Exception as error:  # noqa: BLE001 - each is then queued on its own, which raises the error
                _log.debug("cannot queue %d submissions at once: %s", len(self._group), error)
            by_session = {row["session_id"]: row for row in rows}
            for session_id, (_, future) in self._group.items():
                if not future.done():
                    future.set_result(by_session.get(session_id))

    def _end(self, task: "asyncio.Task[None]") -> None:
        """Let nobody wait for a task that was cancelled, even before it began. Continue with what has arrived since it ended."""
        self._is_writing = False
        unwritten = [*self._group.values(), *(self._waiting if task.cancelled() else ())]
        for _, future in unwritten:
            if not future.done():
                future.set_result(None)
        self._group = {}
        if task.cancelled():
            self._waiting.clear()
        elif self._waiting:
            self._start()

    def _next_group(self) -> dict[str, _Waiting]:
        """Return the submissions to write at once, by session."""
        group: dict[str, _Waiting] = {}
        later: list[_Waiting] = []
        size = 0
        while self._waiting and len(group) < _LARGEST_GROUP and size < _LARGEST_GROUP_CHARACTERS:
            new, future = self._waiting.popleft()
            if new["session_id"] in group:
                later.append((new, future))
            else:
                group[new["session_id"]] = (new, future)
                size += len(new["payload"])
        self._waiting.extendleft(reversed(later))
        return group


def queue_all(group: Sequence[NewSubmission], max_pending: int) -> Tx[Rows]:
    """Queue those of these submissions that need no more than an insert, with their events; return their rows."""
    locked = yield op("lock_free_heads", session_ids=[new["session_id"] for new in group])
    ours = {row["session_id"] for row in locked}
    free = [new for new in group if new["session_id"] in ours]
    if not free:
        return ()
    titles = [title_of(new) for new in free]
    return (
        yield op(
            "queue_submissions",
            session_ids=[new["session_id"] for new in free],
            ids=[new["id"] for new in free],
            kinds=[new["kind"] for new in free],
            lanes=[new["lane"] for new in free],
            when_busy=[new["when_busy"] for new in free],
            payloads=[new["payload"] for new in free],
            idempotency_keys=[new["idempotency_key"] for new in free],
            traces=[new["trace"] for new in free],
            titles=titles,
            titles_folded=[title.casefold() for title in titles],
            events=[queued(new) for new in free],
            priorities=[new["priority"] for new in free],
            ranks=[RANKS[new["priority"]] for new in free],
            max_pending=max_pending,
        )
    )
