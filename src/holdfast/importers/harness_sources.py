"""The step stores of pydantic-ai-harness: a folder, a SQLite file, PostgreSQL. Read-only.

Records are returned unchanged, each with the place where it was found; harness.py interprets them.
"""

import asyncio
import json
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeGuard

from holdfast.errors import BadImport
from holdfast.importers.report import Notes
from holdfast.jsontext import lenient_json
from holdfast.types import Json

Found: TypeAlias = tuple[str, dict[str, Any]]
"""A record, and where it was found."""

TABLE: Final = "step_persistence"
_TABLES: Final = ("runs", "events", "snapshots", "tool_effects")
_BESIDE: Final = {"snapshot_idempotency_keys", "sqlite_sequence"}
"""Tables that only prevent the harness from writing something twice."""
_IN_A_RUN: Final = {"run.json", "events.jsonl", "tool_effects.jsonl", "snapshot-keys.jsonl", "snapshots"}


def is_object(value: object) -> TypeGuard[dict[str, Any]]:
    """Return whether a JSON value is an object."""
    return isinstance(value, dict)


def is_list(value: object) -> TypeGuard[list[Any]]:
    """Return whether a JSON value is a list."""
    return isinstance(value, list)


class HarnessSource(ABC):
    """A step store of the harness. `name` is its address without a password, for messages."""

    name: str

    @abstractmethod
    async def run_ids(self) -> list[str]:
        """Return the ids of all runs with any records."""

    @abstractmethod
    async def run(self, run_id: str) -> Found | None:
        """Return the record of a run, if it was registered."""

    @abstractmethod
    async def events(self, run_id: str) -> list[Found]:
        """Return its events in the order in which they were written."""

    @abstractmethod
    async def effects(self, run_id: str) -> list[Found]:
        """Return the entries of its ledger; for duplicate calls the later entry counts."""

    @abstractmethod
    def snapshots(self, run_id: str) -> AsyncGenerator[Found, None]:
        """Yield its snapshots in the order in which they were written; `messages` is a list of texts."""

    @abstractmethod
    async def media(self, sha256: str) -> bytes | None:
        """Return content that was moved out of messages; None if it is missing."""

    @abstractmethod
    async def note_unknown(self, notes: Notes) -> None:
        """Add notes for everything else in the source."""

    def bad(self, problem: str) -> BadImport:
        """Return the error that explains why nothing was imported."""
        return BadImport(source=self.name, problem=problem)

    def parsed(self, text: str | bytes, where: str) -> Any:
        """Parse a text as JSON. Raises `BadImport`."""
        try:
            return json.loads(text)
        except (TypeError, ValueError, RecursionError) as error:
            raise self.bad(f"{where} is not valid JSON, or is truncated ({error})") from None

    def texts(self, messages: object, where: str) -> list[Json]:
        """Return the texts of inline messages."""
        if not isinstance(messages, list):
            raise self.bad(f"{where} has no list of messages: it is damaged or of an unknown version")
        each: list[Any] = messages  # pyright: ignore[reportUnknownVariableType]
        return [lenient_json(message, separators=(",", ":")) for message in each]


class FileSource(HarnessSource):
    """A folder of `FileStepStore` with one folder per run."""

    def __init__(self, root: Path) -> None:
        self.name = str(root)
        self._root = root

    async def run_ids(self) -> list[str]:
        return await asyncio.to_thread(self._run_ids)

    def _run_ids(self) -> list[str]:
        marks = ("run.json", "events.jsonl", "tool_effects.jsonl", "snapshots")
        results = [
            path.name for path in self._root.iterdir() if any((path / mark).exists() for mark in marks)
        ]
        if not results:
            raise self.bad("no folder in it has the records of a run, so it is not a step store")
        return sorted(results)

    async def run(self, run_id: str) -> Found | None:
        path = self._root / run_id / "run.json"
        return await asyncio.to_thread(self._object, path) if path.exists() else None

    async def events(self, run_id: str) -> list[Found]:
        return await asyncio.to_thread(lambda: list(self._lines(run_id, "events.jsonl")))

    async def effects(self, run_id: str) -> list[Found]:
        return await asyncio.to_thread(lambda: list(self._lines(run_id, "tool_effects.jsonl")))

    async def snapshots(self, run_id: str) -> AsyncGenerator[Found, None]:
        folder = self._root / run_id / "snapshots"
        numbered = [path for path in folder.glob("*.json") if path.stem.isdecimal()]
        for path in sorted(numbered, key=lambda path: int(path.stem)):
            where, data = await asyncio.to_thread(self._object, path)
            if not {"messages", "timestamp", "step_index"} <= set(data):
                raise self.bad(f"{where} is not a snapshot; if it is damaged, move it away")
            yield where, {**data, "messages": self.texts(data["messages"], where)}

    async def media(self, sha256: str) -> bytes | None:
        path = self._root / "media" / f"{sha256}.bin"
        return await asyncio.to_thread(path.read_bytes) if path.exists() else None

    async def note_unknown(self, notes: Notes) -> None:
        await asyncio.to_thread(self._note_unknown, notes)

    def _note_unknown(self, notes: Notes) -> None:
        runs = set(self._run_ids())
        for path in self._root.iterdir():
            if path.name in runs:
                for inner in path.iterdir():
                    if inner.name not in _IN_A_RUN and inner.suffix != ".tmp":
                        notes.add("files that do not belong to a step store", str(inner))
                for snapshot in path.glob("snapshots/*"):
                    if (
                        not (snapshot.suffix == ".json" and snapshot.stem.isdecimal())
                        and snapshot.suffix != ".tmp"
                    ):
                        notes.add("files that do not belong to a step store", str(snapshot))
            elif path.name != "media":
                notes.add("files that do not belong to a step store", str(path))

    def _object(self, path: Path) -> Found:
        value = self.parsed(path.read_bytes(), str(path))
        if not is_object(value):
            raise self.bad(f"{path} is not a JSON object")
        return str(path), value

    def _lines(self, run_id: str, name: str) -> Iterator[Found]:
        path = self._root / run_id / name
        if not path.exists():
            return
        for number, line in enumerate(path.read_bytes().split(b"\n"), 1):
            if line.strip():
                where = f"{path}:{number}"
                value = self.parsed(line, where)
                if not is_object(value):
                    raise self.bad(f"{where} is not a JSON object")
                yield where, value


class Tables(HarnessSource):
    """The common part of the two SQL stores: the same columns, as text."""

    def __init__(self, name: str, prefix: str) -> None:
        self.name = name
        self._prefix = prefix
        self._messages: dict[str, Json] = {}

    @abstractmethod
    async def _rows(self, text: str, *values: object) -> list[dict[str, Any]]:
        """Run a query with the parameters $1, $2 and so on."""

    @abstractmethod
    async def _history(self, seq: int, refers: Mapping[str, Any], where: str) -> list[Json]:
        """Return the texts of the messages that a snapshot refers to."""

    @abstractmethod
    async def _tables(self) -> set[str]:
        """Return the names of all tables."""

    async def run_ids(self) -> list[str]:
        tables = await self._tables()
        missing = [self._prefix + name for name in _TABLES if self._prefix + name not in tables]
        if missing:
            raise self.bad(f"it has no table {', '.join(missing)}, so it is not a step store of the harness")
        union = " UNION ".join(f"SELECT run_id FROM {self._prefix}{name}" for name in _TABLES)  # noqa: S608
        return sorted(row["run_id"] for row in await self._rows(union))

    async def run(self, run_id: str) -> Found | None:
        rows = await self._rows(f"SELECT * FROM {self._prefix}runs WHERE run_id = $1", run_id)  # noqa: S608
        return (f"run {run_id}", rows[0]) if rows else None

    async def events(self, run_id: str) -> list[Found]:
        rows = await self._rows(
            f"SELECT * FROM {self._prefix}events WHERE run_id = $1 ORDER BY seq",  # noqa: S608
            run_id,
        )
        return [(f"event {row.pop('seq')} of run {run_id}", row) for row in rows]

    async def effects(self, run_id: str) -> list[Found]:
        rows = await self._rows(
            f"SELECT * FROM {self._prefix}tool_effects WHERE run_id = $1 ORDER BY started_at, tool_call_id",  # noqa: S608
            run_id,
        )
        return [(f"the ledger of run {run_id}", row) for row in rows]

    async def snapshots(self, run_id: str) -> AsyncGenerator[Found, None]:
        self._messages.clear()
        numbers = await self._rows(
            f"SELECT seq FROM {self._prefix}snapshots WHERE run_id = $1 ORDER BY seq",  # noqa: S608
            run_id,
        )
        for number in numbers:
            (row,) = await self._rows(
                f"SELECT * FROM {self._prefix}snapshots WHERE seq = $1",  # noqa: S608
                number["seq"],
            )
            where = f"snapshot {row['seq']} of run {run_id}"
            messages = self.parsed(row["messages"], where)
            if is_object(messages):
                texts = await self._history(row["seq"], messages, where)
            else:
                texts = self.texts(messages, where)
            del row["seq"]
            yield where, {**row, "messages": texts}

    async def media(self, sha256: str) -> bytes | None:
        table = f"{self._prefix}media"
        if table not in await self._tables():
            return None
        rows = await self._rows(f"SELECT bytes FROM {table} WHERE sha256 = $1", sha256)  # noqa: S608
        return bytes(rows[0]["bytes"]) if rows else None


class SqliteFile(Tables):
    """A file of `SqliteStepStore`, read in one transaction."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        super().__init__(str(path), "")
        self._connection = connection

    async def _rows(self, text: str, *values: object) -> list[dict[str, Any]]:
        return await asyncio.to_thread(self._read, text, values)

    def _read(self, text: str, values: Iterable[object]) -> list[dict[str, Any]]:
        try:
            cursor = self._connection.execute(text, {str(n): value for n, value in enumerate(values, 1)})
            names = [column[0] for column in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in cursor]
        except sqlite3.Error as error:
            raise self.bad(f"it cannot be read: {error}") from error

    async def _history(self, seq: int, refers: Mapping[str, Any], where: str) -> list[Json]:
        count = refers.get("stored_messages")
        if set(refers) != {"stored_messages"} or type(count) is not int:
            raise self.bad(f"{where} stores its messages in an unknown format; upgrade Holdfast")
        rows = await self._rows(
            "SELECT m.message AS message FROM snapshot_message_refs r JOIN snapshot_messages m ON m.sha256 = r.sha256"
            " WHERE r.snapshot_seq = $1 ORDER BY r.position",
            seq,
        )
        if len(rows) != count:
            raise self.bad(f"{where} is missing {count - len(rows)} of its {count} messages")
        return [self._messages.setdefault(row["message"], row["message"]) for row in rows]

    async def _tables(self) -> set[str]:
        return {
            row["name"] for row in await self._rows("SELECT name FROM sqlite_master WHERE type = 'table'")
        }

    async def note_unknown(self, notes: Notes) -> None:
        known = {*_TABLES, *_BESIDE, "media", "snapshot_messages", "snapshot_message_refs"}
        for table in sorted(await self._tables() - known):
            (row,) = await self._rows(f'SELECT count(*) AS n FROM "{table}"')  # noqa: S608
            if row["n"]:
                notes.add("rows of tables that do not belong to a step store", table, row["n"])


class Postgres(Tables):
    """The tables of `PostgresStepStore`, read in one transaction."""

    def __init__(self, name: str, table: str, connection: Any) -> None:
        super().__init__(name, f"{table}_")
        self._connection = connection

    async def _rows(self, text: str, *values: object) -> list[dict[str, Any]]:
        return [dict(row) for row in await self._connection.fetch(text, *values)]

    async def _history(self, seq: int, refers: Mapping[str, Any], where: str) -> list[Json]:
        del seq  # the keys are in the snapshot itself
        keys = referred(self, refers, where)
        wanted = sorted(set(keys) - set(self._messages))
        for row in await self._rows(
            f"SELECT sha256, message FROM {self._prefix}messages WHERE sha256 = ANY($1::text[])",  # noqa: S608
            wanted,
        ):
            self._messages[row["sha256"]] = row["message"]
        return looked_up(self, keys, self._messages, where)

    async def _tables(self) -> set[str]:
        rows = await self._rows(
            "SELECT relname AS name FROM pg_class WHERE relkind IN ('r', 'p') AND pg_table_is_visible(oid)"
        )
        return {row["name"] for row in rows}

    async def note_unknown(self, notes: Notes) -> None:
        del notes  # the database may contain tables of other applications


def referred(source: HarnessSource, refers: Mapping[str, Any], where: str) -> Sequence[str]:
    """Return the keys of the messages that a snapshot refers to."""
    keys: Any = refers.get("message_refs")
    if set(refers) != {"message_refs"} or not is_list(keys):
        raise source.bad(f"{where} stores its messages in an unknown format; upgrade Holdfast")
    return [str(key) for key in keys]


def looked_up(
    source: HarnessSource, keys: Sequence[str], messages: Mapping[str, Json], where: str
) -> list[Json]:
    """Return the messages with these keys."""
    missing = sum(key not in messages for key in set(keys))
    if missing:
        raise source.bad(f"{where} is missing {missing} of its {len(keys)} messages")
    return [messages[key] for key in keys]
