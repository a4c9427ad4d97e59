"""The archive: one session as a self-contained, versioned stream of lines with a digest. See docs/reference/archive.md.

It is written and read a line at a time, whatever its size. A reader trusts nothing: it checks the order, every type and id, that each
record belongs to the session, that referenced media is included, and the length of each line.
"""

import asyncio
import base64
import hashlib
import json
import tempfile
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import IO, Any, Final, cast

from pydantic_core import from_json, to_json

from holdfast.errors import ArchiveFailed, ArchiveTooNew, BadArchive, BadId, BadInput, BadText
from holdfast.ids import check_id
from holdfast.jsontext import MOST_RECORDED_VALUES, has_many_values, read_recorded
from holdfast.media import MediaContext, MediaStore, to_uri, walker
from holdfast.retention.packing import Packer, unpack
from holdfast.store import Store
from holdfast.tables import BY_NAME, SESSION, TABLES, Column, Table
from holdfast.types import STATUSES, SUSPENDED

FORMAT: Final = "holdfast-archive"
VERSION: Final = 1
_MOST_PARTS: Final = 5000
"""The most parts of a recorded message: readers process all of them at once."""
_LONG_LINE: Final = 1024 * 1024
_MOST_FIELDS: Final = 1000
MEDIA_TYPE: Final = "application/vnd.holdfast.archive+ndjson"
BLOB_BYTES: Final = 768 * 1024
"""How many bytes of a blob are on one line: a mebibyte in base64."""
_ORDER: Final = {name: n for n, name in enumerate((SESSION.name, *(t.name for t in TABLES), "end"))}
_BLOB: Final = Table(
    "blob_references",
    ("sha256",),
    (
        *BY_NAME["blob_references"].columns,
        Column("size", "int"),
        Column("media_type", "text"),
        Column("file_name", "text", optional=True),
        Column("metadata", "text"),
    ),
)
"""A reference is archived together with its content."""
_REFERRING: Final = {"messages": ("body",), "effects": ("result", "undo")}
"""The columns with references to media. An archive must include all media that it refers to, or it could reveal media of others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """The facts of an archive: its session, the number of records of each kind, and the digest in its footer."""

    session_id: str
    session: Mapping[str, Any]
    counts: Mapping[str, int]
    sha256: str
    blob_bytes: int = 0
    version: int = VERSION


@dataclass(frozen=True, slots=True)
class ArchiveRow:
    """A row or, without one, the next bytes of the preceding blob."""

    table: str
    row: Mapping[str, Any] = field(default_factory=dict[str, Any])
    data: bytes = b""


def longest_line(max_payload_bytes: int) -> int:
    """Return the longest allowed line: the largest texts after escaping."""
    return 4 * max_payload_bytes + 2 * 1024 * 1024


async def write_archive(
    store: Store, media: MediaStore, session_id: str, *, compress: bool = False
) -> AsyncGenerator[bytes, None]:
    """Yield the archive of a session from one snapshot, in pieces of at most a few mebibytes.

    The same content gives the same bytes, wherever it is stored. Raises `SessionNotFound` or `SessionCleaned`. After a failure
    the output has no footer, and readers reject it.
    """
    lines = _lines(store, media, session_id, longest_line(store.settings.max_payload_bytes))
    packer = Packer() if compress else None
    async with aclosing(lines):
        async for piece in lines:
            if packer is None:
                yield piece
            elif packed := await asyncio.to_thread(packer.add, piece):
                yield packed
    if packer is not None:
        yield packer.finish()


async def _lines(
    store: Store, media: MediaStore, session_id: str, longest: int
) -> AsyncGenerator[bytes, None]:
    digest = hashlib.sha256()
    counts: dict[str, int] = {}

    def finished(lines: list[bytes]) -> bytes:
        for line in lines:
            if len(line) > longest:
                problem = f"one of its lines would have {len(line)} bytes; the limit is {longest}. Raise max_payload_bytes"
                raise BadArchive(problem=problem)
        piece = b"".join(lines)
        digest.update(piece)
        return piece

    header = _line({"format": FORMAT, "version": VERSION, "session_id": session_id})
    pages = store.export_rows(session_id)
    async with aclosing(pages):
        async for table, rows in pages:
            if table == SESSION.name:
                yield finished([header])
            counts[table] = counts.get(table, 0) + len(rows)
            if table != _BLOB.name:
                yield finished([_line({table: row}) for row in rows])
                continue
            for row in rows:
                async with aclosing(_blob_lines(media, row)) as blob:
                    async for line in blob:
                        yield finished([line])
    yield _line({"end": {"counts": dict(sorted(counts.items())), "sha256": digest.hexdigest()}})


def archive_of(rows: Sequence[tuple[str, Mapping[str, Any]]]) -> Iterator[bytes]:
    """Yield the lines of an archive of these rows, which must be in the order of an archive and refer to no media."""
    digest = hashlib.sha256()
    header = {"format": FORMAT, "version": VERSION, "session_id": rows[0][1]["id"]}
    for value in (header, *({table: row} for table, row in rows)):
        digest.update(line := _line(value))
        yield line
    counts = sorted(Counter(table for table, _ in rows).items())
    yield _line({"end": {"counts": dict(counts), "sha256": digest.hexdigest()}})


async def _blob_lines(media: MediaStore, row: Mapping[str, object]) -> AsyncGenerator[bytes, None]:
    uri = to_uri(str(row["sha256"]))
    blob = await media.metadata(uri)
    facts = {
        **row,
        "size": blob.size,
        "media_type": blob.media_type,
        "file_name": blob.file_name,
        "metadata": blob.metadata,
    }
    yield _line({_BLOB.name: facts})
    waiting = bytearray()
    async with media.open(uri) as chunks:
        async for chunk in chunks:
            waiting += chunk
            while len(waiting) >= BLOB_BYTES:
                yield _bytes_line(bytes(waiting[:BLOB_BYTES]))
                del waiting[:BLOB_BYTES]
    if waiting:
        yield _bytes_line(bytes(waiting))


def _line(value: object) -> bytes:
    # The same bytes as json.dumps without spaces and ASCII escapes, ten times faster.
    return to_json(value) + b"\n"


def _bytes_line(data: bytes) -> bytes:
    return b'{"bytes":"' + base64.b64encode(data) + b'"}\n'


def read_archive(file: IO[bytes], *, longest: int, finish: Callable[[Archive], None]) -> Iterator[ArchiveRow]:
    """Yield the records of an archive, each checked, from the current position of the file to its end; then call `finish`.

    Raises `BadArchive` at the first error, which may be in the last byte: do not rely on the records before `finish` is
    called. Accepts plain and compressed archives. Blocks, so call it on a thread.
    """
    digest = hashlib.sha256()
    reader = _ArchiveReader()
    last = 0
    for number, line in enumerate(_split(unpack(file), longest), 1):
        last = number
        if reader.ended:
            raise BadArchive(problem=f"line {number} is after its end")
        try:
            record = reader.read(line, digest.hexdigest)
        except ArchiveTooNew:
            raise
        except BadArchive as error:
            raise BadArchive(problem=f"line {number}: {error.facts['problem']}") from None
        digest.update(line)
        if record is not None:
            yield record
    if not reader.ended:
        raise BadArchive(problem=f"it is truncated after line {last}")
    finish(reader.archive())


def verify_archive(file: IO[bytes], *, longest: int) -> Archive:
    """Read a whole archive and return its facts. Raises `BadArchive`. Blocks, so call it on a thread."""
    results: list[Archive] = []
    for _ in read_archive(file, longest=longest, finish=results.append):
        pass
    return results[0]


class _ArchiveReader:
    """The position of a reader in an archive, and what may follow."""

    def __init__(self) -> None:
        self.ended = False
        self._session_id = ""
        self._session: Mapping[str, Any] = {}
        self._table = ""
        self._key: tuple[Any, ...] = ()
        self._counts: dict[str, int] = {}
        self._blob: tuple[str, int] | None = None  # its digest, and how many bytes are missing
        self._blob_digest = hashlib.sha256()
        self._blob_bytes = 0
        self._included: set[str] = set()
        self._referred: set[str] = set()
        self._sha256 = ""

    def archive(self) -> Archive:
        return Archive(
            session_id=self._session_id,
            session=self._session,
            counts=self._counts,
            sha256=self._sha256,
            blob_bytes=self._blob_bytes,
        )

    def read(self, line: bytes, digest: Callable[[], str]) -> ArchiveRow | None:
        if len(line) > _LONG_LINE and has_many_values(line.decode("utf-8", "replace"), _MOST_FIELDS):
            raise BadArchive(problem="a record has more values than any valid record")
        try:
            value: Any = from_json(line, cache_strings="keys")
        except ValueError:
            raise BadArchive(problem="it is not valid JSON in UTF-8") from None
        if not isinstance(value, dict):
            raise BadArchive(problem="it is not a JSON object")
        if not self._session_id:
            self._begin(value)  # pyright: ignore[reportUnknownArgumentType]
            return None
        if len(value) != 1:  # pyright: ignore[reportUnknownArgumentType]
            raise BadArchive(problem="a record must be an object with exactly one key")
        ((name, content),) = value.items()  # pyright: ignore[reportUnknownVariableType]
        if name == "bytes":
            return self._bytes(content)  # pyright: ignore[reportUnknownArgumentType]
        if self._blob is not None:
            raise BadArchive(problem=f"{self._blob[1]} bytes of media {self._blob[0]} are missing")
        if name not in _ORDER:
            raise BadArchive(problem=f"unknown kind of record {name!r}"[:200])
        if name == "end":
            self._end(content, digest())  # pyright: ignore[reportUnknownArgumentType]
            return None
        return self._row(name, content)  # pyright: ignore[reportUnknownArgumentType]

    def _begin(self, header: dict[str, Any]) -> None:
        if header.get("format") != FORMAT:
            raise BadArchive(problem="it is not an archive of Holdfast")
        version = header.get("version")
        if type(version) is int and version > VERSION:
            raise ArchiveTooNew(found=version, known=VERSION)
        if version != VERSION or set(header) != {"format", "version", "session_id"}:
            raise BadArchive(problem=f"its version {version!r} is unknown"[:200])
        self._session_id = _checked_id(header["session_id"], "session id")

    def _row(self, name: str, content: object) -> ArchiveRow:
        table = _BLOB if name == _BLOB.name else BY_NAME[name]
        row = checked_row(table, content)
        if not self._table and name != SESSION.name:
            raise BadArchive(problem="the first record is not the session")
        owner = row["id"] if table is SESSION else row["session_id"]
        if owner != self._session_id:
            raise BadArchive(
                problem=f"the record of {name} belongs to session {owner}, not {self._session_id}"
            )
        if self._session and row.get("owner", self._session["owner"]) != self._session["owner"]:
            raise BadArchive(problem=f"a record of {name} does not belong to the session's owner")
        key = tuple(row[column] for column in table.key)
        if self._table and not (_ORDER[self._table], self._key) < (_ORDER[name], key):
            raise BadArchive(problem=f"{name} {', '.join(map(str, key))} is out of order or duplicated"[:300])
        self._table, self._key = name, key
        self._counts[name] = self._counts.get(name, 0) + 1
        if table is SESSION:
            self._session = row
        if table is _BLOB:
            self._open_blob(row)
        for column in _REFERRING.get(name, ()):
            text: str | None = row[column]
            if text is not None and not _is_readable(text):
                problem = f"the {column} of {name} is not valid JSON, or has too many values or parts"
                raise BadArchive(problem=problem)
            self._referred.update(walker.digests([text]))
        return ArchiveRow(name, row)

    def _open_blob(self, row: Mapping[str, Any]) -> None:
        if row["size"] < 0:
            raise BadArchive(problem="media has a negative size")
        self._blob = (row["sha256"], row["size"])
        self._blob_digest = hashlib.sha256()
        self._blob_bytes += row["size"]
        self._included.add(row["sha256"])
        self._close_blob()

    def _bytes(self, content: object) -> ArchiveRow:
        if self._blob is None:
            raise BadArchive(problem="it contains bytes that belong to no media")
        sha256, left = self._blob
        try:
            data = base64.b64decode(content, validate=True)  # pyright: ignore[reportArgumentType]
        except (TypeError, ValueError):
            raise BadArchive(problem="the bytes are not valid base64") from None
        if len(data) != min(left, BLOB_BYTES):
            raise BadArchive(problem=f"a line with {len(data)} bytes of media {sha256} has the wrong size")
        self._blob_digest.update(data)
        self._blob = (sha256, left - len(data))
        self._close_blob()
        return ArchiveRow(_BLOB.name, data=data)

    def _close_blob(self) -> None:
        if self._blob is None or self._blob[1]:
            return
        if self._blob_digest.hexdigest() != self._blob[0]:
            raise BadArchive(problem=f"the bytes of media {self._blob[0]} have a different SHA-256")
        self._blob = None

    def _end(self, content: object, digest: str) -> None:
        if not isinstance(content, dict) or set(content) != {"counts", "sha256"}:  # pyright: ignore[reportUnknownArgumentType]
            raise BadArchive(problem="its footer is invalid")
        if content["sha256"] != digest:
            raise BadArchive(problem="its bytes do not match the SHA-256 in its footer")
        if content["counts"] != self._counts:
            raise BadArchive(problem="its records do not match the counts in its footer")
        if not self._table:
            raise BadArchive(problem="it contains no session")
        if foreign := self._referred - self._included:
            raise BadArchive(problem=f"it refers to media {min(foreign)}, which it does not include")
        self._sha256 = digest
        self.ended = True


def checked_row(table: Table, content: object) -> dict[str, Any]:
    """Return a row if it is valid in an archive. Raises `BadArchive`."""
    if not isinstance(content, dict) or tuple(content) != (*table.names,):  # pyright: ignore[reportUnknownArgumentType]
        raise BadArchive(problem=f"a record of {table.name} must have the fields {', '.join(table.names)}")
    row: dict[str, Any] = content  # pyright: ignore[reportUnknownVariableType]
    for column in table.columns:
        what = f"{column.name} of {table.name}"
        try:
            column.check(row[column.name], what)
        except BadText as error:
            raise BadArchive(problem=f"the {what} {error.facts['problem']}") from None
        except BadId:
            raise BadArchive(problem=f"{row[column.name]!r:.200} is not a valid {what}") from None
        except BadInput as error:
            raise BadArchive(problem=f"the {what} is invalid: {error.facts['problem']}"[:300]) from None
    if table is _BLOB:
        _check_media(row)
    if table is SESSION and row["status"] not in set(STATUSES) - {
        "cleaning",
        "cleaned",
        "moved",
        "running",
        "queued",
    }:
        raise BadArchive(problem=f"a session in an archive cannot have the status {row['status']!r}"[:200])
    return row


def _is_readable(text: str) -> bool:
    """Return whether readers can parse a recorded text, which may be nested more deeply than one from outside."""
    if has_many_values(text, MOST_RECORDED_VALUES):
        return False
    try:
        value: Any = read_recorded(text)
    except (ValueError, RecursionError):
        return False
    parts: Any = cast("dict[str, Any]", value).get("parts") if isinstance(value, dict) else None
    return not isinstance(parts, list) or len(cast("list[Any]", parts)) <= _MOST_PARTS


def _check_media(row: Mapping[str, Any]) -> None:
    try:
        metadata: Any = json.loads(row["metadata"])
    except (ValueError, RecursionError):
        metadata = None
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
        raise BadArchive(problem="the metadata of media must be an object with string values")
    context = MediaContext(media_type=row["media_type"], file_name=row["file_name"], metadata=metadata)  # pyright: ignore[reportUnknownArgumentType]
    try:
        context.checked()
    except BadInput as error:
        raise BadArchive(problem=str(error.facts["problem"])) from None


def _checked_id(value: object, what: str) -> str:
    try:
        return check_id(value, what)  # pyright: ignore[reportArgumentType]
    except BadId:
        raise BadArchive(problem=f"{value!r:.200} is not a valid {what}") from None


def _split(pieces: Iterator[bytes], longest: int) -> Iterator[bytes]:
    """Yield the lines, each at most `longest` bytes long. Data after the last line break is an error."""
    waiting: list[bytes] = []
    size = 0
    for piece in pieces:
        start = 0
        while (end := piece.find(b"\n", start)) >= 0:
            waiting.append(piece[start : end + 1])
            if size + len(waiting[-1]) > longest:
                raise BadArchive(problem=f"one of its lines is longer than {longest} bytes")
            yield b"".join(waiting)
            waiting, size, start = [], 0, end + 1
        waiting.append(piece[start:])
        size += len(piece) - start
        if size > longest:
            raise BadArchive(problem=f"one of its lines is longer than {longest} bytes")
    if size:
        raise BadArchive(problem="it is truncated within a line")


async def spool(pieces: AsyncIterable[bytes]) -> IO[bytes]:
    """Write a stream into a temporary file, which is deleted when it is closed, and return it at its start."""
    file: IO[bytes] | None = None
    try:
        file = await asyncio.to_thread(tempfile.TemporaryFile)
        async for piece in pieces:
            await asyncio.to_thread(file.write, piece)
        await asyncio.to_thread(file.seek, 0)  # also flushes the buffer
    except BaseException as error:
        if file is not None:
            with suppress(OSError):
                file.close()
        if isinstance(error, OSError):
            raise ArchiveFailed(problem=f"{error} in {tempfile.gettempdir()}") from error
        raise
    return file


async def put_blobs(media: MediaStore, file: IO[bytes], *, longest: int) -> int:
    """Store the media of a verified archive and return how many blobs it has. Already stored blobs are kept."""
    await asyncio.to_thread(file.seek, 0)
    records = read_archive(file, longest=longest, finish=lambda _: None)
    count = 0
    record = await asyncio.to_thread(_next_blob, records)
    while record is not None:
        count += 1
        row, uri = record.row, to_uri(record.row["sha256"])
        left: int = row["size"]
        context = MediaContext(
            media_type=row["media_type"], file_name=row["file_name"], metadata=json.loads(row["metadata"])
        )
        async with media.open(context=context) as writer:
            while left:
                part = await asyncio.to_thread(next, records)
                left -= len(part.data)
                await writer.write(part.data)
        if writer.uri != uri:
            raise BadArchive(problem=f"the bytes of {uri} have a different SHA-256")
        record = await asyncio.to_thread(_next_blob, records)
    return count


def _next_blob(records: Iterator[ArchiveRow]) -> ArchiveRow | None:
    return next((record for record in records if record.table == _BLOB.name and record.row), None)


def rows_of(file: IO[bytes], verified: Archive, *, longest: int) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the rows of a verified archive for import. Raise `BadArchive` at the end if the file has changed since.

    A waiting submission in a session that does not wait is queued: otherwise it would never end. Blocks.
    """
    file.seek(0)
    names = BY_NAME[_BLOB.name].names
    waits = verified.session["status"] in SUSPENDED
    digest = hashlib.sha256()
    for line in _split(unpack(file), longest):
        value: dict[str, Any] = from_json(line, cache_strings="keys")
        for name, row in value.items():
            match name:
                case "format" | "version" | "session_id" | "bytes":
                    pass
                case "end":
                    if digest.hexdigest() != verified.sha256:
                        raise BadArchive(problem="it was changed while it was being read")
                    return
                case _BLOB.name:
                    yield name, {column: row[column] for column in names}
                case "submissions" if row["state"] == "waiting" and not waits:
                    yield name, {**row, "state": "queued", "deliver_at": 0}
                case _:
                    yield name, row
        digest.update(line)
