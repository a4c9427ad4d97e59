"""`check`: each invariant of the store as a query for its violations. Read-only."""

from holdfast.store.transactions import Transactions, Tx, reading
from holdfast.types import Violation

_PER_INVARIANT = 100


class CheckMethods(Transactions):
    """The invariants, all checked on one snapshot of the database."""

    @reading
    def check(self) -> Tx[list[Violation]]:
        """Check every invariant and return the violations, at most 100 per invariant."""
        return (yield from self._violations(limit=_PER_INVARIANT))
