"""The arms of a write, from write.sql, in the form of each engine.

For SQLite the columns of an arm are numbered parameters, and `:head_seq` follows them. For PostgreSQL they are columns of `x_rows`, the
rows for arm `x` of all batches that the fence accepted. The number of a run is looked up in both.
"""

import re

from holdfast.store.sql.catalogue import Dialect
from holdfast.store.sql.lookups import stored_name
from holdfast.store.write import ARMS, CONTENT
from holdfast.tables import BY_NAME, SHARED

_PARAMETER = re.compile(r":([a-z]\w*)")
_TABLE = re.compile(r"INSERT INTO (\w+)")
_RUN = "(SELECT n.number FROM run_numbers n WHERE n.session = :session AND n.id = :run_id)"


def arm_text(arm: str, text: str, dialect: Dialect) -> str:
    """Return the statement of an arm for an engine."""
    names = [name for name, _ in ARMS[arm]]
    inserted = _TABLE.search(text)
    if inserted and "*" in text:
        table = inserted[1]
        columns = [stored_name(table, name) for name in names if name in (BY_NAME | SHARED)[table].names]
        values = [_RUN if column == "run" else f":{column}" for column in columns]
        text = text.replace("*", ", ".join(columns), 1).replace("*", ", ".join(values), 1)
    if dialect == "postgres":
        source = f"{arm}_rows AS rows"
        if inserted:
            selected = rf"SELECT \1 FROM {source} WHERE TRUE"  # noqa: S608
            text = re.sub(r"VALUES \((.+)\)$", selected, text, count=1, flags=re.MULTILINE)
        else:
            joined = "USING" if text.startswith("DELETE") else "FROM"
            text = re.sub(r"\bWHERE\b", f"{joined} {source} WHERE", text, count=1)
        return _PARAMETER.sub(r"rows.\1", text)
    order = ["session" if arm in CONTENT else "session_id", *names[1:], "head_seq"]
    return _PARAMETER.sub(lambda parameter: f"?{order.index(parameter[1]) + 1}", text)
