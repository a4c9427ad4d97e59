"""`Store`: a database of sessions. Each topic's methods are in one module; an engine runs the transactions.

One method is one transaction. Every method that changes a session's content requires its lease, and raises `LeaseLost` if the
lease is not the newest. Three changes need no lease: submitting, setting the agent state at a version, and moving a cursor. They
take event numbers under the same lock, so the numbering has no gaps.

All errors are subclasses of `HoldfastError`. After errors such as `StoreUnavailable`, the store works again as soon as its database does.
"""

from abc import abstractmethod
from types import TracebackType
from typing import Self

from holdfast.store.budgets import BudgetMethods
from holdfast.store.check import CheckMethods
from holdfast.store.copying import CopyMethods
from holdfast.store.deliveries import DeliveryMethods
from holdfast.store.history import HistoryMethods
from holdfast.store.journal import JournalMethods
from holdfast.store.media import MediaMethods
from holdfast.store.mirrored import MirrorMethods
from holdfast.store.retention import RetentionMethods
from holdfast.store.schema import SchemaMethods
from holdfast.store.shell_log import ShellLogMethods
from holdfast.store.states import StateMethods
from holdfast.store.sweep import SweepMethods
from holdfast.store.ticks import TickMethods
from holdfast.store.tokens import TokenMethods
from holdfast.store.usage import UsageMethods
from holdfast.store.work import WorkMethods
from holdfast.types import Batch, Lease


class Store(
    StateMethods,
    TokenMethods,
    WorkMethods,
    TickMethods,
    JournalMethods,
    HistoryMethods,
    MediaMethods,
    ShellLogMethods,
    CopyMethods,
    RetentionMethods,
    SweepMethods,
    UsageMethods,
    BudgetMethods,
    DeliveryMethods,
    MirrorMethods,
    CheckMethods,
    SchemaMethods,
):
    """A database of sessions. Open it with `async with open_store(url) as store`."""

    @abstractmethod
    async def open(self) -> Self:
        """Connect and, unless disabled, upgrade the schema. Safe when several processes do this at once."""

    @abstractmethod
    async def close(self) -> None:
        """Finish all accepted work, then disconnect. Closing again does nothing."""

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @abstractmethod
    def clone_for_thread(self) -> "Store | None":
        """Return another, unopened store on the same database for use in another thread; None if that is not possible."""

    @abstractmethod
    async def write(self, lease: Lease, batch: Batch) -> int:
        """Write all changes of a step in one transaction, and return the session's last event number.

        The changes are durable when it returns. `LeaseLost` and every other error mean that nothing was written, except
        `StoreUnavailable`: then the outcome is unknown and the lease counts as lost. Release it, acquire it again, and
        read the current state. Every changed submission must exist and be open, and every referenced blob must be
        stored; otherwise it raises `Conflict`.
        """

    @abstractmethod
    async def shrink(self, *, limit: int = 1000) -> int:
        """Return up to `limit` free pages to the file system and return how many remain; 0 for engines that vacuum by themselves."""
