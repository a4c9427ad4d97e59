"""`Store`: a database of sessions. Its methods are in one module per topic; an engine runs their transactions.

One method is one transaction. Every method that changes the content of a session takes its lease, and raises `LeaseLost`
if that lease is not the newest. Three changes need no lease: to submit, to set the agent state under a version, and to
move a cursor. They take their numbers under the same lock, so the order of events stays dense.

All methods raise errors of the `HoldfastError` family, and no others. After `StoreUnavailable` and its siblings the store
works again as soon as its database does.
"""

from abc import abstractmethod
from types import TracebackType
from typing import Self

from holdfast.store.check import CheckMethods
from holdfast.store.copying import CopyMethods
from holdfast.store.history import HistoryMethods
from holdfast.store.journal import JournalMethods
from holdfast.store.media import MediaMethods
from holdfast.store.retention import RetentionMethods
from holdfast.store.schema import SchemaMethods
from holdfast.store.sessions import SessionMethods
from holdfast.store.shell import ShellMethods
from holdfast.store.sweep import SweepMethods
from holdfast.store.tokens import TokenMethods
from holdfast.store.work import WorkMethods
from holdfast.types import Batch, Lease


class Store(
    SessionMethods,
    TokenMethods,
    WorkMethods,
    JournalMethods,
    HistoryMethods,
    MediaMethods,
    ShellMethods,
    CopyMethods,
    RetentionMethods,
    SweepMethods,
    CheckMethods,
    SchemaMethods,
):
    """A database of sessions. Open it with `async with open_store(url) as store`."""

    @abstractmethod
    async def open(self) -> Self:
        """Connect and, unless told otherwise, bring the schema up to date. Safe when several processes do."""

    @abstractmethod
    async def close(self) -> None:
        """Finish the work that was accepted, then disconnect. Closing twice is harmless."""

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @abstractmethod
    def twin(self) -> "Store | None":
        """Return another store on the same database, not opened yet, for another thread; None if there can be none."""

    @abstractmethod
    async def write(self, lease: Lease, batch: Batch) -> int:
        """Write everything a step changed, in one transaction, and return the session's number after it.

        Durable when it returns. `LeaseLost` and every other error mean that nothing of it was written, except
        `StoreUnavailable`: then its fate is not known and the lease counts as lost. Release it, acquire again, and
        read what is there. A submission that is changed must exist and be open, and media that is referred to must be
        stored, else `Conflict`.
        """

    @abstractmethod
    async def shrink(self, *, limit: int = 1000) -> int:
        """Give up to `limit` free pages back to the file system and return how many remain; 0 where vacuum does it."""
