"""Transactions that are written once and run by every engine.

A transaction is a generator: it yields statements, receives their rows, and returns the result. It does no I/O
itself, so SQLite runs it on its writer thread and the other engines on the event loop, with the same order of locks, checks and
writes. An engine may run it again from the start after a rollback.
"""

import asyncio
import functools
import inspect
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, ParamSpec, TypeAlias, TypeVar, cast

from holdfast.config import Settings
from holdfast.counting import count
from holdfast.diagnostics import Violation
from holdfast.errors import (
    HoldfastError,
    LeaseLost,
    PayloadTooLarge,
    SessionCleaned,
    SessionMoved,
    SessionNotFound,
    StoreForked,
    StoreUnavailable,
)
from holdfast.ids import check_id, check_text
from holdfast.jsontext import parse_json, parse_object
from holdfast.store.hub import READY, inbox
from holdfast.store.rows import Rows
from holdfast.types import Json, Lease

if TYPE_CHECKING:
    from types import CoroutineType

T = TypeVar("T")
P = ParamSpec("P")

Progress: TypeAlias = Callable[[str, int, int], None]
"""Called before each step of a long transaction, with its name, its number from 1, and how many there are."""

PAGE_BYTES = 4 * 1024 * 1024
"""A page ends with the row that reaches this size, so that readers need memory for one page and one row."""


@dataclass(frozen=True, slots=True)
class Statement:
    """One step of a transaction, by its name and its parameters.

    The SQL engines have a statement of that name in store/sql, MongoDB a function. `sized` names columns with content: the
    rows end with the one that reaches `page_bytes`. A `slow` statement has no time limit. One that `scans` reads whole tables; all others
    use an index.
    """

    name: str
    params: Mapping[str, object]
    sized: tuple[str, ...] = ()
    page_bytes: int = PAGE_BYTES
    slow: bool = False
    scans: bool = False


Tx: TypeAlias = Generator[Statement, Rows, T]


@dataclass(frozen=True, slots=True)
class Head:
    """The head of a locked session, its last status, its number of open submissions, and whether it has no title.

    `names_framework`: its metadata may be that of another framework's session.
    """

    epoch: int
    seq: int
    holder: str | None
    tenure: str | None
    orphaned_by: str | None
    status: str
    pending: int
    untitled: bool
    names_framework: bool


class Unfinished:
    """Work that continues when its caller is cancelled, and that `close` waits for."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run the work to its end. A cancelled caller returns at once; the work continues."""
        return await asyncio.shield(self.start(work))

    async def run_or_undo(
        self, work: Coroutine[Any, Any, T], undo: Callable[[T], Coroutine[Any, Any, None]]
    ) -> T:
        """Run the work; if the caller is cancelled before it has the result, undo it."""
        task = self.start(work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            await asyncio.shield(self.start(_undo(task, undo)))
            raise

    async def wait(self) -> None:
        """Wait until nothing is left."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def start(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Run the work in a task."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # retrieved, since a cancelled caller does not


async def _undo(task: "asyncio.Task[T]", undo: Callable[[T], Coroutine[Any, Any, None]]) -> None:
    with suppress(HoldfastError):  # then there is nothing to undo, or the deadline undoes it
        await undo(await task)


class Transactions(ABC):
    """The base of the store's methods: runs their transactions, and has the checks that they share."""

    engine: ClassVar[str]
    url: str
    settings: Settings

    def __init__(self, url: str, settings: Settings) -> None:
        self.url = url
        self.settings = settings
        self._max_payload_bytes = settings.max_payload_bytes
        self._max_pending = settings.max_pending
        self._unfinished = Unfinished()
        self._opened_by = 0

    @property
    def limits_running(self) -> bool:
        """Whether the settings limit how many sessions of an owner or an agent run at once. Then other sessions may start when one ends."""
        return (
            self.settings.max_running_per_agent is not None or self.settings.max_running_per_owner is not None
        )

    @abstractmethod
    async def _transact(
        self,
        make: Callable[[], Tx[T]],
        *,
        repeatable: bool,
        changes: Sequence[str] = (),
        long: bool = False,
    ) -> T:
        """Run a writing transaction and return after the commit. May send it again if it is `repeatable`.

        A `long` transaction does not run on the event loop if the engine can avoid it. Tasks that wait for the topics in `changes` are
        woken, here and in other processes.
        """

    @abstractmethod
    async def _read(self, make: Callable[[], Tx[T]]) -> T:
        """Run a read-only transaction on one snapshot."""

    @abstractmethod
    def _violations(
        self, *, limit: int, session_id: str | None = None, progress: Progress | None = None
    ) -> Tx[list[Violation]]:
        """Return the violations of all invariants, at most `limit` each, in all sessions or in one."""

    @abstractmethod
    def _announce(self, *topics: str) -> None:
        """Wake the tasks that wait for these topics, here and in other processes."""

    def _is_inherited(self) -> bool:
        """Return whether another process opened this store, so that its connections, locks and threads are unusable here."""
        return self._opened_by not in {0, os.getpid()}

    def _refuse_inherited(self) -> None:
        if self._is_inherited():
            raise StoreForked(url=self.url, opened_by=self._opened_by, process=os.getpid())

    def _check_size(self, text: str, what: str) -> int:
        size = check_text(text, what)
        if size > self._max_payload_bytes:
            raise PayloadTooLarge(what=what, size=size, limit=self._max_payload_bytes)
        return size

    def _check_json(self, text: Json, what: str) -> None:
        self._check_size(text, what)
        parse_json(text, what)

    def _check_object(self, text: Json, what: str) -> None:
        self._check_size(text, what)
        parse_object(text, what)

    def _fence(self, lease: Lease, count: int) -> Tx[int]:
        """Check the lease and take `count` event numbers; return the last of them."""
        if lease.lost:
            raise lease_lost(lease, "it was released or lost before")
        rows = yield Statement(
            "fence",
            {"session_id": lease.session_id, "epoch": lease.epoch, "holder": lease.holder, "count": count},
        )
        if not rows:
            raise lease_lost(lease, "another holder has acquired it, or it was released")
        lease.seq = rows[0]["seq"]
        return lease.seq

    def _of_session(self, session_id: str, statement: Statement) -> Tx[Rows]:
        """Return the rows. Raise `SessionNotFound` if there are none because the session does not exist."""
        rows = yield statement
        if not rows and not (yield op("head", session_id=check_id(session_id, "session id"))):
            raise SessionNotFound(id=session_id)
        return rows

    def _lock_head(self, session_id: str) -> Tx[Head]:
        """Lock a session against all other changes, then read its state: earlier reads may be outdated."""
        rows = yield op("lock_head", session_id=session_id)
        if not rows:
            raise SessionNotFound(id=session_id)
        (head,) = yield op("locked_head", session_id=session_id)
        return Head(
            epoch=head["epoch"],
            seq=head["seq"],
            holder=head["holder"],
            tenure=head["tenure"],
            orphaned_by=head["orphaned_by"],
            status=head["status"],
            pending=head["pending"],
            untitled=bool(head["untitled"]),
            names_framework=bool(head["names_framework"]),
        )

    def _refuse_cleaned(self, session_id: str) -> Tx[Head]:
        """Lock a session. Raise an error if it was moved, or if it was cleaned, since a clean would not delete later content."""
        head = yield from self._lock_head(check_id(session_id, "session id"))
        refuse_closed(session_id, head)
        return head


def refuse_closed(session_id: str, head: Head) -> None:
    """Raise `SessionCleaned` or `SessionMoved` if the session accepts no changes."""
    if head.status == "moved":
        raise SessionMoved(id=session_id)
    if head.status in {"cleaning", "cleaned"}:
        raise SessionCleaned(id=session_id)


S = TypeVar("S", bound=Transactions)


def reading(
    method: Callable[Concatenate[S, P], Tx[T]],
) -> "Callable[Concatenate[S, P], CoroutineType[Any, Any, T]]":
    """Turn a read-only transaction into a method."""

    @functools.wraps(method)
    async def run(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._read(lambda: method(self, *args, **kwargs))  # pyright: ignore[reportPrivateUsage]

    return run


def writing(
    *, changes: str | None = None, wakes: bool = False, repeatable: bool = False
) -> (
    "Callable[[Callable[Concatenate[S, P], Tx[T]]], Callable[Concatenate[S, P], CoroutineType[Any, Any, T]]]"
):
    """Turn a writing transaction into a method.

    `changes` names the parameter that identifies the changed object: a session, by its id or its lease, or a shell command. Its
    readers are woken. If it `wakes`, a session may be ready afterwards or have new submissions. A `repeatable` transaction takes
    effect once, even if it is sent repeatedly. After a lost response of any other, its outcome is unknown, and its lease counts
    as lost.
    """

    def decorate(
        method: Callable[Concatenate[S, P], Tx[T]],
    ) -> "Callable[Concatenate[S, P], CoroutineType[Any, Any, T]]":
        place = None if changes is None else list(inspect.signature(method).parameters).index(changes) - 1

        @functools.wraps(method)
        async def run(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
            subject: Any = None
            if place is not None:
                subject = args[place] if place < len(args) else kwargs.get(str(changes))
            lease = subject if isinstance(subject, Lease) else None
            changed = cast("str", subject) if lease is None else lease.session_id
            try:
                return await self._transact(  # pyright: ignore[reportPrivateUsage]
                    lambda: method(self, *args, **kwargs),
                    repeatable=repeatable,
                    changes=topics(changed, wakes=wakes),
                )
            except StoreUnavailable:
                if lease is not None and not repeatable:
                    lease.lost = True
                raise

        return run

    return decorate


def topics(changed: str | None, *, wakes: bool) -> tuple[str, ...]:
    """Return the topics of a change: the session or command that changed, and those of its queue."""
    if changed is None:
        return (READY,) if wakes else ()
    return (changed, inbox(changed), READY) if wakes else (changed,)


def op(name: str, /, **params: object) -> Statement:
    """Return a statement with these parameters, after checking its ids."""
    for name_of_id in ("session_id", "id"):
        value = params.get(name_of_id)
        if isinstance(value, str):
            check_id(value, name_of_id.replace("_", " "))
    return Statement(name, params)


def lease_lost(lease: Lease, reason: str) -> LeaseLost:
    """Mark the lease as lost, and return the error to raise."""
    lease.lost = True
    count("refused_writes")
    return LeaseLost(session_id=lease.session_id, epoch=lease.epoch, reason=reason)


def slow(statement: Statement) -> Statement:
    """Return the statement without a time limit."""
    return replace(statement, slow=True)


def scanning(statement: Statement) -> Statement:
    """Return a statement that reads whole tables, without a time limit."""
    return replace(statement, slow=True, scans=True)


def bounded(statement: Statement, *columns: str, page_bytes: int = PAGE_BYTES) -> Statement:
    """Return the statement with rows that end once the content of these columns reaches `page_bytes`."""
    return replace(statement, sized=columns, page_bytes=page_bytes)
