"""Build a session from the data of another system, and import it atomically.

Ids and times are those of the source. The same source gives the same rows, so that a repeated import is recognized.
"""

import hashlib
import json
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from pydantic_ai.messages import ModelMessage
from pydantic_core import PydanticSerializationError, to_json

from holdfast.errors import (
    BadArchive,
    BadImport,
    BadInput,
    Conflict,
    NotFound,
    SessionCleaned,
    SessionMoved,
    SessionNotFound,
)
from holdfast.ids import check_id, check_name
from holdfast.importers.report import Notes, Progress, Report
from holdfast.jsontext import lenient_json
from holdfast.media import MediaStore, walker
from holdfast.record.history import load
from holdfast.record.offloader import MediaOffloader
from holdfast.retention.archive import checked_row
from holdfast.store import Store
from holdfast.tables import BY_NAME, SESSION, TABLES
from holdfast.types import Batch, CheckpointKind, Json, Message

MakeDraft: TypeAlias = Callable[[Notes, str | None], Awaitable["SessionDraft"]]
"""Builds a session for an agent. Without one, that is the recorded agent, or the default of the importer."""
ImportStatus: TypeAlias = Literal["new", "present", "changed", "foreign", "erased"]
Place: TypeAlias = tuple[int, int]
"""A message of the history: its segment and its position."""

LEFT_ALONE: Final = {
    "changed": "it has changed in the source since it was imported; the existing one was kept",
    "foreign": "a session with this id already exists, from another source",
    "erased": "it was erased in this store, and is not imported again",
}


@dataclass(frozen=True, slots=True)
class Body:
    """The text of a message, and its text without fields that are set when it is sent, if it may occur without them."""

    text: Json
    core: str | None = None
    marked: bool = True


@dataclass(slots=True)
class ImportedHistory:
    """The histories of a session as a tree of segments: a common prefix of two histories is stored once."""

    segments: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    messages: list[tuple[Place, Body]] = field(default_factory=list[tuple[Place, Body]])
    _next: dict[tuple[int, str], int] = field(default_factory=dict[tuple[int, str], int])
    _cores: dict[tuple[int, str], int] = field(default_factory=dict[tuple[int, str], int])
    _ends: dict[int, int] = field(default_factory=dict[int, int])

    def add(self, bodies: Sequence[Body]) -> tuple[int, list[Place]]:
        """Add a history and return its segment and the places of its messages."""
        node, segment, places = 0, 0, list[Place]()
        for body in bodies:
            known = self._known(node, body)
            if known is None:
                break
            node = known
            places.append(self.messages[node - 1][0])
            segment = places[-1][0]
        length = len(places)
        if segment == 0 or (length < len(bodies) and self._ends[segment] != length):
            parent = segment or None
            segment = len(self.segments) + 1
            self.segments.append({"number": segment, "parent": parent, "start": length})
            self._ends[segment] = length
        for body in bodies[length:]:
            places.append((segment, len(places)))
            self.messages.append((places[-1], body))
            before, node = node, len(self.messages)
            self._next[before, body.text] = node
            if body.core is not None:
                self._cores.setdefault((before, body.core), node)
            self._ends[segment] = len(places)
        return segment, places

    def _known(self, node: int, body: Body) -> int | None:
        """Return the known message that follows another one. If it is known without its later fields, complete it."""
        known = self._next.get((node, body.text))
        if known is None and body.core is not None:
            known = self._cores.get((node, body.core))
            if known is not None:
                place, other = self.messages[known - 1]
                if other.marked and body.marked:
                    return None  # two different messages with the same content
                if body.marked:
                    self.messages[known - 1] = (place, body)
                self._next[node, body.text] = known
        return known


class SessionDraft:
    """A session that is being built."""

    def __init__(
        self,
        session_id: str,
        *,
        source: str,
        system: str,
        agent: str,
        owner: str,
        title: str = "",
        metadata: Json = "{}",
    ) -> None:
        self.source = source
        self.system = system
        self._title = title
        self._metadata = metadata
        try:
            self.id = check_id(session_id, "session id")
            self._agent, self._owner = check_name(agent, "agent"), check_name(owner, "owner")
        except BadInput as error:
            raise BadImport(source=source, problem=str(error).rstrip(".")) from None
        self.history = ImportedHistory()
        self._rows: dict[str, list[dict[str, Any]]] = {table.name: [] for table in TABLES}
        self.latest = self._first = -1
        self.waiting_for: str | None = None
        """The question that the session asks a person."""
        self.first_seq: dict[str, int] = {}
        """The number of the first event of each run."""

    @property
    def seq(self) -> int:
        """The number of the last event."""
        return len(self._rows["events"])

    def run_ids(self) -> list[str]:
        """Return the ids of its runs."""
        return [row["id"] for row in self._rows["runs"]]

    def add(self, table: str, **row: Any) -> None:
        """Add a row of the session."""
        self._rows[table].append({"session_id": self.id, **row})

    def seen(self, at: int) -> int:
        """Extend the session's times to include this time, and return it."""
        self.latest = max(self.latest, at)
        self._first = at if self._first < 0 else min(self._first, at)
        return at

    def event(
        self,
        kind: str,
        at: int,
        payload: Mapping[str, Any] | None = None,
        *,
        run_id: str | None = None,
        step: int | None = None,
        message: Place | None = None,
    ) -> int:
        """Add the next event and return its number."""
        segment, position = message or (None, None)
        self.add(
            "events",
            seq=self.seq + 1,
            kind=kind,
            run_id=run_id,
            step=step,
            at=self.seen(at),
            payload=lenient_json(payload or {}),
            segment=segment,
            position=position,
        )
        if run_id is not None:
            self.first_seq.setdefault(run_id, self.seq)
        return self.seq

    def checkpoint(
        self, at: int, kind: CheckpointKind, segment: int, length: int, *, run_id: str, step: int | None
    ) -> None:
        """Add a checkpoint after the last event. Its id sorts after those of all earlier ones."""
        number = len(self._rows["checkpoints"])
        self.add(
            "checkpoints",
            id=self._new_id(at, number, f"{number}"),
            run_id=run_id,
            step=step,
            kind=kind,
            segment=segment,
            length=length,
            seq=self.seq,
            at=self.seen(at),
        )

    def _new_id(self, at: int, number: int, name: str) -> str:
        """Return an id that is the same whenever this source is imported."""
        digest = hashlib.sha256(f"{self.system}/{self.id}/{name}".encode()).digest()
        tail = int.from_bytes(digest[:8]) >> 2
        value = max(at, 0) // 1000 << 80 | 0x7 << 76 | number % 4096 << 64 | 0b10 << 62 | tail
        return str(uuid.UUID(int=value))

    def submission(self, at: int, text: str, *, run_id: str | None = None) -> None:
        """Add a message to the queue. With a run, that is the turn of the message, and it waits for a person."""
        number = len(self._rows["submissions"]) + 1
        submission_id = self._new_id(at, number, f"submission/{number}")
        facts = {"submission_id": submission_id, "kind": "message"}
        self.event("submission_queued", at, facts)
        if run_id is not None:
            self.event("submission_started", at, {**facts, "attempt": 1})
        self.add(
            "submissions",
            position=number,
            id=submission_id,
            kind="message",
            lane="main",
            when_busy="queue",
            payload=lenient_json({"text": text}),
            idempotency_key=None,
            state="queued" if run_id is None else "waiting",
            attempts=0 if run_id is None else 1,
            reason=None if run_id is None else self.waiting_for,
            run_id=run_id,
            created_at=at,
            started_at=None if run_id is None else at,
            ended_at=None,
            trace=None,
            deliver_at=0 if run_id is None else None,
            priority="normal",
        )

    def rows(self) -> list[tuple[str, dict[str, Any]]]:
        """Return the session and its rows in the order of an archive, checked as in an archive."""
        for segment in self.history.segments:
            self.add("segments", **segment)
        for (segment, position), body in self.history.messages:
            self.add("messages", segment=segment, position=position, body=body.text)
        self.history = ImportedHistory()
        session = {
            "id": self.id,
            "agent": self._agent,
            "owner": self._owner,
            "title": self._title,
            "status": "idle" if self.waiting_for is None else "waiting",
            "waiting_for": self.waiting_for,
            "hold": 0,
            "metadata": self._metadata,
            "created_at": max(self._first, 0),
            "active_at": max(self.latest, 0),
            "seq": self.seq,
        }
        made = [(SESSION.name, session)]
        for table in TABLES:
            rows = self._rows[table.name]
            rows.sort(key=lambda row, key=table.key: tuple(row[name] for name in key))
            made += [(table.name, {name: row[name] for name in table.names}) for row in rows]
        for name, row in made:
            try:
                checked_row(BY_NAME[name], row)
            except BadArchive as error:
                problem = f"session {self.id}: {error.facts['problem']}"
                raise BadImport(source=self.source, problem=problem) from None
        return made


@dataclass(frozen=True, slots=True)
class Ready:
    """A session that can be imported: its rows, and the digest that identifies an earlier import."""

    id: str
    agent: str
    run_ids: Sequence[str]
    rows: Sequence[tuple[str, Mapping[str, Any]]]
    sha256: str

    def counts(self) -> dict[str, int]:
        """Count its rows by table."""
        counted = Counter(name for name, _ in self.rows)
        del counted[SESSION.name]
        return dict(counted)


def ready(draft: SessionDraft, store: Store) -> Ready:
    """Check that a draft fits into the store, as far as possible in advance."""
    rows = draft.rows()
    digest = hashlib.sha256()
    most, threshold = store.settings.max_payload_bytes, store.settings.media_threshold_bytes
    for name, row in rows:
        digest.update(to_json({name: row}))
        for column, value in row.items():
            if isinstance(value, str) and len(value) * 4 > most and _stays(value, threshold) > most:
                problem = f"the {column} of {name} in session {draft.id} has more than {most} bytes; raise max_payload_bytes"
                raise BadImport(source=draft.source, problem=problem)
    return Ready(draft.id, rows[0][1]["agent"], draft.run_ids(), rows, digest.hexdigest())


def _stays(text: str, threshold: int) -> int:
    """Return how many bytes of a text remain after its large content has moved to the media store."""
    pieces = walker.take_out(text, threshold) if walker.is_touched(text, threshold) else [text]
    return sum(len(piece.encode()) for piece in pieces if isinstance(piece, str))


async def import_status(store: Store, ready: Ready, *, source: str, system: str) -> ImportStatus:
    """Return whether a session is new to the store, or how it compares with the existing one. Raises `BadImport`."""
    if await store.erased_at(ready.id) is not None:
        return "erased"
    try:
        await store.session(ready.id)
    except SessionNotFound:
        for run_id in ready.run_ids:
            try:
                other = await store.run(run_id)
            except NotFound:
                continue
            problem = f"run {run_id} of session {ready.id} already exists in session {other.session_id}"
            raise BadImport(source=source, problem=problem) from None
        return "new"
    before = await _earlier_imports(store, ready.id, system)
    if any(detail.get("sha256") == ready.sha256 for detail in before):
        return "present"
    return "changed" if before else "foreign"


async def _earlier_imports(store: Store, session_id: str, system: str) -> list[dict[str, Any]]:
    """Return the facts of all imports of a session from a system, as the audit has them."""
    found: list[dict[str, Any]] = []
    cursor: str | None = None
    while True:
        page = await store.audit_log(session_id=session_id, cursor=cursor)
        details = [json.loads(entry.detail) for entry in page.items if entry.action == "import"]
        found += [detail for detail in details if detail.get("system") == system]
        cursor = page.next_cursor
        if cursor is None:
            return found


async def put(store: Store, media: MediaStore, ready: Ready, *, system: str, actor: str) -> dict[str, int]:
    """Add a session to the store in one transaction. The large content of its messages is uploaded to the media store first."""
    messages = [
        Message(segment=row["segment"], position=row["position"], body=row["body"])
        for name, row in ready.rows
        if name == "messages"
    ]
    detail = lenient_json(
        {"system": system, "sha256": ready.sha256, "agent": ready.agent, "imported": ready.counts()}
    )
    counts: dict[str, int] = {}

    async def import_rows(batch: Batch) -> None:
        moved = iter(batch.messages)
        rows: list[tuple[str, Mapping[str, Any]]] = [
            (name, {**row, "body": next(moved).body} if name == "messages" else row)
            for name, row in ready.rows
        ]
        rows += [
            ("blob_references", {"session_id": ready.id, "sha256": digest}) for digest in sorted(batch.blobs)
        ]
        counts.update(await store.import_rows(ready.id, lambda: iter(rows), actor=actor, detail=detail))

    await MediaOffloader(store, media).write(Batch(messages=messages), import_rows)
    return counts


def message_of(body: Json, *, source: str, where: str) -> ModelMessage:
    """Return the message of a text. Raise `BadImport` if Pydantic AI cannot read it."""
    try:
        (message,) = load([body])
    except (ValueError, RecursionError) as error:
        reason = str(error).partition("\n")[0]
        problem = (
            f"{where} has a message that this version of Pydantic AI cannot read ({reason}); upgrade Holdfast"
        )
        raise BadImport(source=source, problem=problem) from None
    return message


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportOptions:
    """Where sessions come from, and how they are imported.

    With an `agent`, sessions that were imported for another agent are given to this one. `actor` is for the audit.
    """

    source: str
    system: str
    agent: str | None
    actor: str
    dry_run: bool
    progress: Progress
    notes: Notes


async def import_sessions(
    store: Store, media: MediaStore, drafts: Sequence[MakeDraft], options: ImportOptions
) -> Report:
    """Import the sessions that these functions build, each in a separate transaction.

    All are read and checked before the first is imported, and read again for the import, so that only one is in memory at a time.
    """
    source, system, agent = options.source, options.system, options.agent
    new: list[MakeDraft] = []
    records: Counter[str] = Counter()
    left = Notes()
    present = reassigned = 0
    options.progress(0, len(drafts))
    for make in drafts:
        result = await _made(make, store, source, options.notes, agent)
        how = await import_status(store, result, source=source, system=system)
        if how == "changed" and await _differs_in_agent(make, store, result, source, system):
            how = "present"
        if how == "new":
            new.append(make)
            records.update(result.counts() if options.dry_run else {})
        elif how != "present":
            left.add(LEFT_ALONE[how], result.id)
        elif agent in {None, (await store.session(result.id)).agent}:
            present += 1
        elif options.dry_run or await _reassigned(store, result, options.actor, left):
            reassigned += 1
        options.progress(1, None)
    if not options.dry_run:
        options.progress(0, len(drafts) + len(new))
        for make in new:
            result = await _made(make, store, source, Notes(), agent)
            records.update(await put(store, media, result, system=system, actor=options.actor))
            options.progress(1, None)
    return Report(
        system=system,
        source=source,
        unit="sessions",
        dry_run=options.dry_run,
        found=len(drafts),
        imported=len(new),
        already_present=present,
        reassigned=reassigned,
        records=dict(records),
        skipped=left.all(),
        not_understood=options.notes.all(),
    )


async def _differs_in_agent(make: MakeDraft, store: Store, result: Ready, source: str, system: str) -> bool:
    """Return whether the session was imported with the same content for another agent."""
    for detail in await _earlier_imports(store, result.id, system):
        agent = detail.get("agent") or (await store.session(result.id)).agent
        if agent != result.agent:
            before = await _made(make, store, source, Notes(), agent)
            if before.sha256 == detail.get("sha256"):
                return True
    return False


async def _reassigned(store: Store, result: Ready, actor: str, left: Notes) -> bool:
    """Give a session to the agent that an import names. Returns false if that is not possible now."""
    try:
        await store.set_agent(result.id, result.agent, actor=actor)
    except (Conflict, SessionCleaned, SessionMoved):
        left.add("its agent was not changed, because it is in use, cleaned or moved", result.id)
        return False
    return True


async def _made(make: MakeDraft, store: Store, source: str, notes: Notes, agent: str | None) -> Ready:
    try:
        return ready(await make(notes, agent), store)
    except (RecursionError, PydanticSerializationError) as error:
        problem = f"a value in it cannot be stored because it is nested too deeply ({str(error)[:100]})"
        raise BadImport(source=source, problem=problem) from None
