"""Copy a whole store into another one, on any engine: sessions with their media, and all other rows.

Sessions are copied as archives, each in one transaction, and compared by digest afterwards. A session with open submissions is first
marked as moved in the source: from then on it accepts and runs nothing there, so that no message is processed twice and no approval
answered twice. So are all schedules, so that no tick is submitted twice. A copy that was killed is continued by running it again.
"""

import hashlib
import json
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

from pydantic_core import from_json, to_json

from holdfast.errors import (
    BadInput,
    HoldfastError,
    SessionErased,
    SessionNotFound,
    StoreError,
    StoreInUse,
)
from holdfast.leases import joined
from holdfast.media import MediaStore, open_media, to_uri
from holdfast.media.move import copy_blob
from holdfast.retention.archive import spool, write_archive
from holdfast.retention.holding import hold_for_retention
from holdfast.retention.rehydrate import import_archive
from holdfast.store import Store
from holdfast.tables import SHARED
from holdfast.types import Holder, Session
from holdfast.usage import USAGE_SUMS

NAME = "copy"
"""The name under which it joins as a holder."""
_PAGE = 100
_OTHERS: Final = tuple(name for name in SHARED if name not in {"cleaned", "tombstones", "usage", "budgets"})
_RUNNING: Final = b'"ended_at":null'


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """The result of a copy. `copied` and `already_present` count sessions, `records` the other rows by table.

    `moved` names the sessions that continue only in the target; `failed` lists what is missing or different in the target, with reasons.
    """

    copied: int = 0
    already_present: int = 0
    cleaned: int = 0
    moved: tuple[str, ...] = ()
    records: Mapping[str, int] = field(default_factory=dict[str, int])
    failed: tuple[str, ...] = ()


async def copy(
    source: Store,
    target: Store,
    *,
    actor: str,
    media: MediaStore | None = None,
    progress: Callable[[Copied], None] | None = None,
) -> Copied:
    """Copy everything in `source` to `target`, and its media to `media`, by default the media store of the target's settings.

    Raises `StoreInUse` if a worker, or another process that writes, is connected to the source. Existing data of the target is left
    unchanged; an existing session that differs is reported.
    """
    async with joined(source, NAME) as holder:
        if any(each.id == holder.id for each in await target.holders()):
            raise BadInput(problem=f"{source.url} is both the source and the target of the copy")
        await _refuse_live(source, holder)
        work = _Copy(source, target, media or open_media(store=target), actor, holder, progress)
        return await work.run()


async def undo_copy(source: Store, target: Store) -> list[str]:
    """Reopen the sessions and schedules of `source` that are marked as moved and that `target` does not have; return the sessions' ids.

    Use it after a copy that was interrupted and will not be continued. Raises `StoreInUse`.
    """
    async with joined(source, NAME) as holder:
        await _refuse_live(source, holder)
        moved = [session.id async for session in _sessions(source) if session.status == "moved"]
        reopened: list[str] = []
        for session_id in moved:
            if await target.erased_at(session_id) is None and not await _has(target, session_id):
                await source.reopen_session(session_id)
                reopened.append(session_id)
        there = {row["id"] async for row in _rows(target, "schedules")}
        async for row in _rows(source, "schedules"):
            if row["id"] not in there:
                await source.reopen_schedule(row["id"])
        return reopened


async def _refuse_live(store: Store, own: Holder) -> None:
    await store.reclaim()  # processes that have ended do not count
    now = await store.now()
    names = [each.name for each in await store.holders() if each.id != own.id and each.deadline > now]
    if names:
        raise StoreInUse(url=store.url, holders=", ".join(sorted(names)))


class _Copy:
    """One pass over a store."""

    def __init__(
        self,
        source: Store,
        target: Store,
        media: MediaStore,
        actor: str,
        holder: Holder,
        progress: Callable[[Copied], None] | None,
    ) -> None:
        self._source = source
        self._from = open_media(store=source)
        self._target = target
        self._to = media
        self._actor = actor
        self._holder = holder
        self._progress = progress
        self._done = Copied()

    async def run(self) -> Copied:
        """Copy the tombstones first, since they prevent erased sessions from returning, then the sessions, the rest, and the audit last.

        The usage comes before the sessions: one that continues in the target adds to its sums.
        """
        await self._shared_rows("tombstones")
        await self._shared_rows("usage")
        await self._shared_rows("budgets")
        async for session in _sessions(self._source):
            if session.status != "cleaned":
                with self._failing(session.id):
                    await self._session(session)
        async for row in _rows(self._source, "cleaned"):
            with self._failing(row["id"]):
                await self._cleaned(row)
        for name in _OTHERS:
            await self._shared_rows(name)
        for name in ("tombstones", "usage", "budgets", *_OTHERS):
            await self._compare(name)
        return self._done

    @contextmanager
    def _failing(self, session_id: str) -> Generator[None, None, None]:
        """Report the failure of one session, and continue with the others."""
        try:
            yield
        except StoreError:
            raise
        except HoldfastError as error:
            self._fail(f"session {session_id}: {error}")
        if self._progress is not None:
            self._progress(self._done)

    async def _session(self, session: Session) -> None:
        if await self._target.erased_at(session.id) is not None:
            raise SessionErased(id=session.id)
        if await _has(self._target, session.id):
            await self._check(session)
        else:
            await self._move_or_copy(session)

    async def _move_or_copy(self, session: Session) -> None:
        """Import a session. One with open submissions is closed in the source before it is read."""
        moves = session.status == "moved" or session.pending > 0
        if moves and session.status != "moved":
            async with hold_for_retention(self._source, session.id, self._holder) as lease:
                detail = json.dumps({"to": self._target.url})
                await self._source.move_session(lease, actor=self._actor, detail=detail)
        try:
            with await spool(write_archive(self._source, self._from, session.id)) as archive:
                await import_archive(self._target, self._to, archive, actor=self._actor, action=NAME)
        except BaseException:
            with suppress(HoldfastError):  # it stays marked, and the next run continues
                if moves and not await _has(self._target, session.id):
                    await self._source.reopen_session(session.id)
            raise
        self._done = replace(self._done, copied=self._done.copied + 1)
        if moves:  # it may already have continued in the target
            self._done = replace(self._done, moved=(*self._done.moved, session.id))
        else:
            await self._compare_session(session.id)

    async def _check(self, session: Session) -> None:
        """Check that an existing session of the target is the same. A moved session continues there, and may be ahead."""
        if session.status != "moved":
            await self._compare_session(session.id)
        self._done = replace(self._done, already_present=self._done.already_present + 1)

    async def _compare_session(self, session_id: str) -> None:
        ours = await _digest(self._source, self._from, session_id)
        theirs = await _digest(self._target, self._to, session_id)
        if ours != theirs:
            here, there = await self._source.session(session_id), await self._target.session(session_id)
            self._fail(
                f"session {session_id}: it differs; the source has {here.seq} events, the target {there.seq}"
            )

    async def _cleaned(self, row: Mapping[str, Any]) -> None:
        """Copy a cleaned session and its stored archive."""
        if await _has(self._target, row["id"]):
            self._done = replace(self._done, already_present=self._done.already_present + 1)
            return
        if row["archive"] is not None:
            await copy_blob(self._from, self._to, await self._from.metadata(to_uri(row["archive"])))
        await self._target.import_cleaned(row, (await self._source.session(row["id"])).seq)
        self._done = replace(self._done, cleaned=self._done.cleaned + 1)

    async def _shared_rows(self, name: str) -> None:
        count = 0
        if name == "schedules":
            await self._source.move_schedules()
        async for page in _pages(self._source, name):
            rows = [row | {"moved": 0} for row in page] if name == "schedules" else page
            await self._target.add_shared_rows(name, rows)
            count += len(rows)
        self._done = replace(self._done, records={**self._done.records, name: count})

    async def _compare(self, name: str) -> None:
        """Read the rows of a table in both stores, in order, and report those that are missing or different in the target.

        A schedule may be different: it has moved, and may have continued in the target. Usage there may have grown, and so may what counts
        towards a budget.
        """
        key = SHARED[name].key
        async with aclosing(_rows(self._source, name)) as ours, aclosing(_rows(self._target, name)) as theirs:
            there = await anext(theirs, None)
            async for row in ours:
                place = [row[column] for column in key]
                while there is not None and [there[column] for column in key] < place:
                    there = await anext(theirs, None)
                if there is None or not _is_same(name, row, there):
                    self._fail(f"{name} {' '.join(map(str, place))}: missing or different in the target")

    def _fail(self, problem: str) -> None:
        self._done = replace(self._done, failed=(*self._done.failed, problem))


def _is_same(name: str, row: Mapping[str, Any], there: Mapping[str, Any]) -> bool:
    """Return whether a row of the target is that of the source, or has continued from it."""
    if name == "schedules":
        return there["id"] == row["id"]
    if name == "budgets":
        return all(there[column] == row[column] for column in row if column.startswith("most_"))
    sums = USAGE_SUMS if name == "usage" else ()
    return all(
        there[column] >= row[column] if column in sums else there[column] == row[column] for column in row
    )


async def _has(store: Store, session_id: str) -> bool:
    try:
        await store.retention_state(session_id)
    except SessionNotFound:
        return False
    return True


async def _sessions(store: Store) -> AsyncGenerator[Session, None]:
    cursor: str | None = None
    while True:
        page = await store.sessions(cursor=cursor, limit=_PAGE)
        for session in page.items:
            yield session
        cursor = page.next_cursor
        if cursor is None:
            return


async def _pages(store: Store, name: str) -> AsyncGenerator[list[dict[str, Any]], None]:
    after: tuple[object, ...] | None = None
    while rows := await store.shared_rows(name, after=after):
        yield rows
        after = tuple(rows[-1][column] for column in SHARED[name].key)


async def _rows(store: Store, name: str) -> AsyncGenerator[dict[str, Any], None]:
    async with aclosing(_pages(store, name)) as pages:
        async for rows in pages:
            for row in rows:
                yield row


async def _digest(store: Store, media: MediaStore, session_id: str) -> str:
    """Return the digest of a session's archive with all commands ended: an import ends those whose process is not there."""
    digest = hashlib.sha256()
    async with aclosing(write_archive(store, media, session_id)) as pieces:
        async for piece in pieces:
            for line in piece.split(b"\n"):
                if line.startswith(b'{"end"'):
                    break
                running = line.startswith(b'{"commands"') and _RUNNING in line
                digest.update(_ended(line) if running else line)
    return digest.hexdigest()


def _ended(line: bytes) -> bytes:
    row = from_json(line)["commands"]
    if row["ended_at"] is None:
        row |= {"state": "lost", "exit_code": -1, "ended_at": row["last_at"]}
    return to_json({"commands": row})
