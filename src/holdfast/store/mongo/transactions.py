"""Run transactions: each statement is in the catalogue, or a function of the same name in one of these modules."""

import asyncio
import inspect
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from types import ModuleType
from typing import Any, Final, TypeVar

import pymongo
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.errors import PyMongoError

from holdfast.store.catalogue import PLAIN, Insert
from holdfast.store.mongo import (
    budgets,
    check,
    copying,
    journal,
    leases,
    line,
    media,
    retention,
    schedules,
    schema,
    sessions,
    shell,
    states,
    submissions,
    sweep,
    usage,
)
from holdfast.store.mongo.catalogue import plain
from holdfast.store.mongo.client import TimeLimit
from holdfast.store.mongo.documents import Documents, MongoRow, PageSize
from holdfast.store.mongo.failures import is_unknown
from holdfast.store.rows import CutRows, Rows
from holdfast.store.transactions import Statement, Tx

T = TypeVar("T")
Handler = Callable[..., Coroutine[Any, Any, list[MongoRow]]]

LONG_SECONDS = 3600.0
PAUSE_SECONDS = 0.1


def _statements(*topics: ModuleType) -> dict[str, Handler]:
    """Return every function of these modules that is a statement, by name."""
    return {
        name: function
        for topic in topics
        for name, function in vars(topic).items()
        if inspect.iscoroutinefunction(function) and function.__module__ == topic.__name__ and name[0] != "_"
    }


STATEMENTS: Final[dict[str, Handler]] = {
    **_statements(
        *(sessions, states, leases, line, submissions, schedules, journal, media, retention, copying),
        *(shell, sweep, usage, budgets, check, schema),
    ),
    **{name: partial(plain, name) for name in PLAIN},
}


class SessionTurns:
    """Serializes the changes to one session in the order in which they were requested."""

    def __init__(self) -> None:
        self._locks: dict[str, asyncio.Lock] = {}
        self._users: Counter[str] = Counter()

    @asynccontextmanager
    async def of(self, session_id: str) -> AsyncGenerator[None, None]:
        """Wait for the turn of a change to this session, which ends with the block."""
        self._users[session_id] += 1
        try:
            async with self._locks.setdefault(session_id, asyncio.Lock()):
                yield
        finally:
            self._users[session_id] -= 1
            if not self._users[session_id]:
                del self._users[session_id], self._locks[session_id]


async def commit(session: AsyncClientSession, deadline: float, limit: TimeLimit) -> None:
    """Commit, and repeat the commit until its outcome is known: the server recognizes a committed transaction."""
    while True:
        try:
            with limit():
                await session.commit_transaction()
        except PyMongoError as error:
            if not is_unknown(error) or asyncio.get_running_loop().time() > deadline:
                raise
            await asyncio.sleep(PAUSE_SECONDS)
        else:
            return


async def run(db: Documents, tx: Tx[T], limit: TimeLimit) -> T:
    """Run the operations of a transaction."""
    try:
        statement = next(tx)
        while True:
            statement = tx.send(await _execute(db, statement, limit))
    except StopIteration as end:
        with limit():
            await db.flush()
        return end.value
    finally:
        tx.close()


_GATHERED: Final = frozenset(name for name, each in PLAIN.items() if isinstance(each, Insert) and each.many)
"""Statements that are issued in large numbers and sent as one."""


async def _execute(db: Documents, statement: Statement, limit: TimeLimit) -> Rows:
    handler: Handler = STATEMENTS[statement.name]
    if statement.name not in _GATHERED:
        with limit():
            await db.flush()
    with pymongo.timeout(LONG_SECONDS) if statement.slow else limit():
        db.page = PageSize(() if statement.slow else statement.sized, statement.page_bytes)
        rows = await handler(db, **statement.params)
        return CutRows(rows) if db.page.cut(rows) else rows
