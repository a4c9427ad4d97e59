"""The base of the adapters: sessions by name, and writes under a lease.

A framework names its sessions freely, and may use a name again after it deleted the session. The id of a session is made of a hash of
its name; after an erase the next id is numbered. A framework never says when it is finished, so that a lease is released after a moment
without writes.
"""

import asyncio
import hashlib
import json
import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final, TypeVar

from holdfast.errors import (
    BadInput,
    HolderLost,
    HoldfastError,
    MissingExtra,
    RetentionRefused,
    SessionBusy,
    SessionCleaned,
    SessionExists,
    SessionNotFound,
)
from holdfast.frameworks.recent import Recent
from holdfast.frameworks.threaded_store import ThreadedStore
from holdfast.guards import refuse_on_hold
from holdfast.ids import title_from
from holdfast.leases import Renewal, join
from holdfast.media import open_media
from holdfast.retention.erase import erase
from holdfast.store import Store
from holdfast.store.transactions import PAGE_BYTES
from holdfast.types import Batch, Holder, Lease, Record, Session

T = TypeVar("T")
_IDLE_SECONDS: Final = 0.2
"""How long a lease is kept after a write."""
_LONGEST_SECONDS: Final = 2.0
"""How long a lease is kept while writes follow each other, so that a second process gets its turn."""
_PATIENCE_SECONDS: Final = 30.0
"""How long a write waits for another process that holds the session. Longer than the lease of a dead process lives."""
_PAUSE_SECONDS: Final = 0.05
_PAGE: Final = 1000
_IDS_BYTES: Final = 4 << 20
"""How much memory the ids of known names may take, about."""
_SURELY_WHOLE: Final = PAGE_BYTES // 4
"""A page with fewer characters than this ended because there are no more records, not because of its size."""


def check_version(package: str, *, extra: str, at_least: tuple[int, ...], below: tuple[int, ...]) -> None:
    """Raise `MissingExtra` if a package is not installed, and `BadInput` if its version is not supported."""
    try:
        installed = version(package)
    except PackageNotFoundError:
        raise MissingExtra(extra=extra) from None
    numbers = tuple(int(number) for number in re.findall(r"\d+", installed)[:3])
    if not at_least <= numbers < below:
        low, high = (".".join(map(str, numbers)) for numbers in (at_least, below))
        problem = f"{package} {installed} is installed, but Holdfast supports {low} or later, below {high}"
        raise BadInput(problem=f"{problem}. Install it with: pip install 'holdfast[{extra}]'")


@dataclass(slots=True)
class _Held:
    """A session that this process writes to."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    lease: Lease | None = None
    known: dict[str, Any] = field(default_factory=dict[str, Any])
    since: float = 0.0
    is_active: bool = False
    """Whether a write since `since` has set the time of the last activity."""
    releasing: asyncio.TimerHandle | None = None


class FrameworkStore(ThreadedStore):
    """The sessions of one framework in a store, for its adapter.

    `store` is a URL, the path of a SQLite file, `:memory:`, or an open store. Raises `UnknownStore`.
    """

    def __init__(self, store: str | Path | Store, *, framework: str, owner: str = "local") -> None:
        super().__init__(store, name=framework)
        self.framework = framework
        self.owner = owner
        self._holder: Holder | None = None
        self._renewal: Renewal | None = None
        self._ids: Recent[str, str] = Recent(_IDS_BYTES, lambda name, known: 256 + len(name) + len(known))
        self._held: dict[str, _Held] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @classmethod
    def on_this_loop(cls, store: Store, *, framework: str, owner: str) -> "FrameworkStore":
        """Return one that uses an open store on the event loop that runs now. Await its methods; do not close it."""
        shared = cls(store, framework=framework, owner=owner)
        shared._store = store
        return shared

    async def _close(self) -> None:
        for session_id in list(self._held):
            await self._release(session_id, at_once=True)
        if self._renewal is not None and self._holder is not None:
            await self._renewal.stop()
            with suppress(HoldfastError):
                await self.store.leave(self._holder)
        await super()._close()

    # Sessions by name

    async def find(self, name: str) -> Session | None:
        """Return the session with a name; None if there is none. Raises `SessionCleaned`: a cleaned session must not look empty."""
        return (await self._find_open(name))[1]

    async def _find_open(self, name: str) -> tuple[str, Session | None]:
        session_id, session = await self._find(name)
        if session is not None and session.cleaned_at is not None:
            raise SessionCleaned(id=session_id)
        return session_id, session

    async def ensure(self, name: str, *, title: str = "", metadata: dict[str, Any] | None = None) -> Session:
        """Return the session with a name, and create it if there is none."""
        body = json.dumps({"framework": self.framework, "name": name, **(metadata or {})})
        while (place := await self._find_open(name))[1] is None:
            with suppress(SessionExists):  # another process was faster, or the id belongs to someone else
                return await self.store.create_session(
                    agent=self.framework,
                    owner=self.owner,
                    id=place[0],
                    title=title_from(title or name),
                    metadata=body,
                )
        return place[1]

    async def ensure_id(self, name: str) -> str:
        """Return the id of the session with a name, and create it if there is none. Reads nothing while the session is held."""
        return self._held_id(name) or (await self.ensure(name)).id

    async def find_id(self, name: str) -> str | None:
        """Return the id of the session with a name, as `find` does. Reads nothing while the session is held."""
        held = self._held_id(name)
        if held is not None:
            return held
        session = await self.find(name)
        return None if session is None else session.id

    def _held_id(self, name: str) -> str | None:
        known = self._ids.get(name)
        held = self._held.get(known) if known else None
        return known if held is not None and held.lease is not None and not held.lease.lost else None

    async def _find(self, name: str) -> tuple[str, Session | None]:
        """Return the session with a name, or None, and the id that it has or would have."""
        known = self._ids.get(name)
        if known is not None and (session := await self._read(known)) is not None and self._is_own(session):
            return known, session
        session_id, session = await self.store.numbered_session(
            self._id(name), owner=self.owner, agent=self.framework
        )
        self._ids.put(name, session_id)
        return session_id, session

    def _is_own(self, session: Session) -> bool:
        """Return whether an adapter of this owner created a session. Ids can be guessed, and clients may choose theirs."""
        return session.owner == self.owner and session.agent == self.framework

    def _id(self, name: str) -> str:
        digest = hashlib.sha256(f"{self.owner}\0{name}".encode("utf-8", "surrogatepass")).hexdigest()[:40]
        return f"{self.framework}-{digest}"

    async def _read(self, session_id: str) -> Session | None:
        try:
            return await self.store.session(session_id)
        except SessionNotFound:
            return None

    async def all_sessions(self) -> AsyncGenerator[Session, None]:
        """Yield all sessions of the framework that were not cleaned, most recently active first."""
        cursor: str | None = None
        while True:
            page = await self.store.sessions(
                owner=self.owner, agent=self.framework, cursor=cursor, limit=_PAGE
            )
            for session in page.items:
                if session.cleaned_at is None:
                    yield session
            cursor = page.next_cursor
            if cursor is None:
                return

    async def erase(self, name: str) -> None:
        """Erase the session with a name, so that the name can be used again. Does nothing if there is none.

        Waits while another process holds it. Raises `RetentionRefused` if that takes too long, or if it is on hold.
        """
        session_id, session = await self._find(name)
        if session is None:
            return
        async with self._locked(session_id):
            await self._release(session_id, at_once=True)
            await self._erase(session_id)
        self._held.pop(session_id, None)
        self._ids.pop(name)

    async def _erase(self, session_id: str) -> None:
        media = open_media(store=self.store, settings=self.store.settings)
        deadline = asyncio.get_running_loop().time() + _PATIENCE_SECONDS
        while True:
            try:
                await erase(self.store, media, session_id, actor=self.owner)
            except RetentionRefused as refused:
                is_held = refused.facts["guard"] == "running"
                if not is_held or asyncio.get_running_loop().time() > deadline:
                    raise
            else:
                return
            await self.store.reclaim()
            await asyncio.sleep(_PAUSE_SECONDS)

    # Records

    async def records(
        self,
        session_id: str,
        kind: str,
        *,
        prefix: str = "",
        after: str | None = None,
        before: str | None = None,
        reverse: bool = False,
        limit: int | None = None,
        bodies: bool = True,
    ) -> list[Record]:
        """Return all records of a kind whose keys begin with a prefix and are between two keys, or the first `limit` of them."""
        found: list[Record] = []
        while limit is None or len(found) < limit:
            wanted = _PAGE if limit is None else min(_PAGE, limit - len(found))
            page = await self.store.records(
                session_id,
                kind,
                prefix=prefix,
                after=after,
                before=before,
                reverse=reverse,
                limit=wanted,
                bodies=bodies,
            )
            found += page
            if page and reverse:
                before = page[-1].key
            elif page:
                after = page[-1].key
            if len(page) < wanted and sum(len(record.body) for record in page) < _SURELY_WHOLE:
                break
        return found

    async def refuse_on_hold(self, session_id: str) -> None:
        """Raise `RetentionRefused` if a session is on hold. Call it before you delete content for a user."""
        refuse_on_hold(await self.store.retention_state(session_id))

    @asynccontextmanager
    async def writing(self, session_id: str) -> AsyncGenerator["RecordWriter", None]:
        """Hold a session while the block reads and writes, so that no other process changes it meanwhile.

        Raises `SessionBusy` if another process holds it for too long, and `SessionCleaned`.
        """
        loop = asyncio.get_running_loop()
        async with self._locked(session_id) as held:
            if held.lease is not None and loop.time() > held.since + _LONGEST_SECONDS:
                await self._release(session_id, at_once=True)
                await asyncio.sleep(_PAUSE_SECONDS)  # a process that waits takes it meanwhile
            try:
                if held.lease is None or held.lease.lost:
                    held.lease = await self._acquire(session_id)
                    held.known = {}
                    held.since, held.is_active = loop.time(), False
                yield RecordWriter(self.store, held.lease, held.known, held)
            except BaseException:
                held.known.clear()  # it is unclear what was written
                raise
            finally:
                self._release_later(session_id, held)

    @asynccontextmanager
    async def _locked(self, session_id: str) -> AsyncGenerator[_Held, None]:
        held = self._held.setdefault(session_id, _Held())
        async with held.lock:
            if held.releasing is not None:
                held.releasing.cancel()
                held.releasing = None
            yield held

    async def _acquire(self, session_id: str) -> Lease:
        deadline = asyncio.get_running_loop().time() + _PATIENCE_SECONDS
        while True:
            try:
                return await self.store.acquire(session_id, await self._join())
            except HolderLost:
                self._holder = None
            except SessionBusy:
                if asyncio.get_running_loop().time() > deadline:
                    raise
                await self.store.reclaim()
                await asyncio.sleep(_PAUSE_SECONDS)

    async def _join(self) -> Holder:
        if self._holder is None or (self._renewal is not None and self._renewal.is_lost):
            if self._renewal is not None:
                await self._renewal.stop()
            self._holder = await join(self.store)
            self._renewal = Renewal(self.store, self._holder)
        return self._holder

    def _release_later(self, session_id: str, held: _Held) -> None:
        loop = asyncio.get_running_loop()
        held.releasing = loop.call_later(_IDLE_SECONDS, self._start_release, session_id)

    def _start_release(self, session_id: str) -> None:
        task = asyncio.create_task(self._release(session_id))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _release(self, session_id: str, *, at_once: bool = False) -> None:
        held = self._held.get(session_id)
        if held is None or (held.lock.locked() and not at_once):
            return  # the task that uses it now releases it later
        lease, held.lease = held.lease, None
        if held.releasing is not None:
            held.releasing.cancel()
        if not at_once:
            self._held.pop(session_id, None)
        if lease is not None and not lease.lost:
            with suppress(HoldfastError):  # it ends with the holder
                await self.store.release(lease)


@dataclass(frozen=True, slots=True)
class RecordWriter:
    """Writes to a session that is held. `known` is for facts about its records, and is empty whenever another process could write."""

    store: Store
    lease: Lease
    known: dict[str, Any]
    _held: _Held

    async def write(
        self,
        records: Sequence[Record] = (),
        dropped: Sequence[tuple[str, str]] = (),
        **more: Any,
    ) -> int:
        """Put and drop records in one write with the other parts of a `Batch`, and return the session's last event number.

        The first write after the session was acquired sets the time of its last activity, on which retention policies depend.
        """
        batch = Batch(
            records=records, records_dropped=dropped, status=None if self._held.is_active else "idle", **more
        )
        number = await self.store.write(self.lease, batch)
        self._held.is_active = True
        return number
