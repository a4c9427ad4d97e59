"""All topics together: what both SQL engines share."""

from holdfast.store.sql.archive import Archives
from holdfast.store.sql.check import Check
from holdfast.store.sql.history import History
from holdfast.store.sql.journal import Journal
from holdfast.store.sql.media import Media
from holdfast.store.sql.retention import Retention
from holdfast.store.sql.schema import Schema
from holdfast.store.sql.sessions import Sessions
from holdfast.store.sql.shell import Shell
from holdfast.store.sql.sweep import Sweeping
from holdfast.store.sql.tokens import Tokens
from holdfast.store.sql.work import Worklist


class SqlStore(
    Sessions,
    Worklist,
    Journal,
    History,
    Media,
    Shell,
    Retention,
    Archives,
    Sweeping,
    Tokens,
    Check,
    Schema,
):
    """A store whose transactions are written in SQL. An engine adds connections, `write` and notifications."""
