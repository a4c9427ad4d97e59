"""`check`: every invariant of the store as a query for what breaks it. Reads only."""

from holdfast.store.transactions import Transactions, Tx, reading
from holdfast.types import Violation

_PER_INVARIANT = 100


class CheckMethods(Transactions):
    """The invariants, all checked on one snapshot of the database."""

    @reading
    def check(self) -> Tx[list[Violation]]:
        """Verify every invariant and return what is broken; of each invariant at most 100."""
        return (yield from self._violations(limit=_PER_INVARIANT))
