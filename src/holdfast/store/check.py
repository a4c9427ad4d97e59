"""`check`: every invariant of the store as a query for what breaks it. Reads only."""

from holdfast.store.transactions import Transactions, Tx, op, reading, slow
from holdfast.types import Violation

_PER_INVARIANT = 100


class CheckMethods(Transactions):
    """The invariants, all checked on one snapshot of the database."""

    @reading
    def check(self) -> Tx[list[Violation]]:
        """Verify every invariant and return what is broken; of each invariant at most 100."""
        return (yield from self._check())

    def _check(self) -> Tx[list[Violation]]:
        violations: list[Violation] = []
        for name in self._invariants():
            rows = yield slow(op(name, limit=_PER_INVARIANT))
            invariant = name.removeprefix("check_").replace("_", " ")
            violations += [
                Violation(invariant=invariant, session_id=row["session_id"], detail=row["detail"])
                for row in rows
            ]
        return violations
