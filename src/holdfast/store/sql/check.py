"""`check`: every invariant of the store as a query for what breaks it. Reads only."""

from holdfast.store.sql.core import SqlCore, Tx, reading, sql
from holdfast.store.sql.library import statement_names
from holdfast.types import Violation

_PER_INVARIANT = 100


class Check(SqlCore):
    """The queries of check.sql, all on one cut of the database."""

    @reading
    def check(self) -> Tx[list[Violation]]:
        found: list[Violation] = []
        for name in sorted(name for name in statement_names() if name.startswith("check_")):
            rows = yield sql(name, limit=_PER_INVARIANT)
            invariant = name.removeprefix("check_").replace("_", " ")
            found += [
                Violation(invariant=invariant, session_id=row["session_id"], detail=row["detail"])
                for row in rows
            ]
        return found
