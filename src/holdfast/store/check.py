"""`check`: each invariant of the store as a query for its violations. Read-only."""

from holdfast.diagnostics import Violation
from holdfast.store.transactions import Progress, Transactions, Tx, op, reading

_PER_INVARIANT = 100


class CheckMethods(Transactions):
    """The invariants, all checked on one snapshot of the database."""

    @reading
    def check(self, *, progress: Progress | None = None) -> Tx[list[Violation]]:
        """Check every invariant and return the violations, at most 100 per invariant.

        Before each invariant, `progress` is called with its name, its number and the number of all. It may be called in another
        thread, and more than once for the same invariant.
        """
        yield op("now")  # PostgreSQL runs the first of several statements twice, which must not be a scan
        return (yield from self._violations(limit=_PER_INVARIANT, progress=progress))
