"""The Store interface: where sessions live. One method is one transaction, named in the words of the design.

Every method that changes what a session contains takes its lease, and is refused with `LeaseLost` when that lease is
not the newest. The exceptions are what anyone who may reach the session can do to it without holding it: submit,
set its agent state under a version, move a cursor. They are numbered under the same lock and keep the order dense.

All methods raise errors of the `HoldfastError` family, and no other: `StoreUnavailable` and its siblings when the
engine fails, after which the store goes on as soon as its engine does.
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from types import TracebackType
from typing import Any, ClassVar, Self

from holdfast.config import Settings
from holdfast.store.hub import Signal
from holdfast.types import (
    AuditEntry,
    Batch,
    Blob,
    BlobState,
    Checkpoint,
    CheckpointKind,
    Command,
    CommandState,
    Credential,
    Cursor,
    Draft,
    Due,
    DueBy,
    Duty,
    Effect,
    Event,
    Holder,
    Json,
    Lane,
    Lease,
    Message,
    Output,
    Page,
    Role,
    Run,
    SchemaStatus,
    Segment,
    Session,
    ShellKind,
    Standing,
    State,
    Status,
    Submission,
    SubmissionState,
    Token,
    Violation,
    WhenBusy,
    Work,
)


class Store(ABC):
    """A database of sessions. Open it with `async with open_store(url) as store`."""

    engine: ClassVar[str]
    url: str
    settings: Settings

    @abstractmethod
    async def open(self) -> Self:
        """Connect and, unless told otherwise, bring the schema up to date. Safe when several processes do."""

    @abstractmethod
    async def close(self) -> None:
        """Finish what was accepted, then disconnect. Closing twice is harmless."""

    @abstractmethod
    def twin(self) -> "Store | None":
        """Return another store on the same database, not opened yet, for another thread; None if there can be none."""

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @abstractmethod
    async def upgrade(self) -> int:
        """Apply the migrations that are missing and return the version. Raises `StoreTooNew`."""

    @abstractmethod
    async def schema(self) -> SchemaStatus:
        """Say which schema the store has and how much is in it."""

    @abstractmethod
    async def now(self) -> datetime:
        """Return the time of the database, which is the only clock that stored times come from."""

    @abstractmethod
    async def check(self) -> list[Violation]:
        """Verify every invariant and return what is broken; of each invariant at most 100."""

    # Sessions

    @abstractmethod
    async def create_session(
        self,
        *,
        agent: str,
        owner: str,
        id: str | None = None,
        title: str = "",
        metadata: Json = "{}",
        exist_ok: bool = False,
    ) -> Session:
        """Add an idle session. A taken id raises `SessionExists`.

        With `exist_ok` it returns the session of that id if it has the same owner, else raises `SessionNotFound`.
        The id of one that was erased raises `SessionErased`.
        """

    @abstractmethod
    async def session(self, session_id: str) -> Session:
        """Return one session. Raises `SessionNotFound`."""

    @abstractmethod
    async def sessions(
        self,
        *,
        owner: str | None = None,
        agent: str | None = None,
        status: Status | None = None,
        search: str | None = None,
        cursor: str | None = None,
        limit: int = 50,
    ) -> Page[Session]:
        """List sessions, last active first. `search` finds a part of the title, whatever its case."""

    @abstractmethod
    async def watched(self, session_ids: Sequence[str]) -> None:
        """Note that somebody watches these sessions right now. Those that do not exist are left out."""

    @abstractmethod
    async def unwatched(self, session_id: str) -> float:
        """Return for how many seconds nobody was noted to watch the session or to ask something of it."""

    @abstractmethod
    async def update_session(
        self,
        session_id: str,
        *,
        title: str | None = None,
        hold: bool | None = None,
        metadata: Json | None = None,
        actor: str | None = None,
    ) -> Session:
        """Change what is given and leave the rest as it is. Raises `SessionNotFound`.

        With an `actor` a hold that is set or lifted goes into the audit, with the change.
        """

    @abstractmethod
    async def state(self, session_id: str) -> State:
        """Return the agent state; version 0 with body `null` if none was ever set."""

    @abstractmethod
    async def set_state(self, session_id: str, body: Json, *, expected: int) -> State:
        """Replace the agent state if it is at version `expected`, else raise `VersionConflict`; writes an event."""

    @abstractmethod
    async def set_credential(
        self, session_id: str, name: str, sealed: str | None, *, ttl: float | None = None
    ) -> None:
        """Keep what was sealed, for `ttl` seconds if given, in place of the one before; None removes it. No event."""

    @abstractmethod
    async def credentials(self, session_id: str) -> list[Credential]:
        """Return the credentials that have not expired, sealed as they were given. Raises `SessionNotFound`."""

    @abstractmethod
    async def set_cursor(self, session_id: str, consumer: str, seq: int) -> Cursor:
        """Move a consumer's cursor forward; a lower number changes nothing. Returns where it is."""

    @abstractmethod
    async def cursors(self, session_id: str, *, cursor: str | None = None, limit: int = 200) -> Page[Cursor]:
        """List the cursors of the consumers of a session, by the consumer's name."""

    @abstractmethod
    async def audit(self, *, actor: str, action: str, session_id: str | None, detail: Json) -> None:
        """Append to the audit. Nothing ever changes or removes an entry."""

    @abstractmethod
    async def audit_log(
        self, *, session_id: str | None = None, cursor: str | None = None, limit: int = 50
    ) -> Page[AuditEntry]:
        """List the audit, newest first."""

    @abstractmethod
    async def add_token(
        self,
        digest: str,
        *,
        owner: str,
        role: Role = "user",
        scopes: Sequence[str] = (),
        lifetime: float | None = None,
    ) -> Token:
        """Accept whoever brings the secret with this SHA-256, for `lifetime` seconds or until it is revoked."""

    @abstractmethod
    async def token(self, digest: str) -> Token | None:
        """Return what a secret is worth now; None if it is unknown, expired or revoked."""

    @abstractmethod
    async def tokens(self) -> list[Token]:
        """Return all tokens, also those that are worth nothing any more."""

    @abstractmethod
    async def revoke_token(self, token_id: str) -> Token:
        """Make a token worth nothing, for ever. Idempotent. Raises `NotFound`."""

    # Holders and leases

    @abstractmethod
    async def join(self, name: str, *, ttl: float = 10.0) -> Holder:
        """Register a holder that lives until its deadline, `ttl` seconds ahead on the database's clock."""

    @abstractmethod
    async def renew(self, holder: Holder) -> Holder:
        """Move the deadline of the holder, and so of all its leases. Raises `HolderLost` if it was removed."""

    @abstractmethod
    async def leave(self, holder: Holder) -> None:
        """Release all the holder has and remove it. Idempotent."""

    @abstractmethod
    async def holders(self) -> list[Holder]:
        """Return all holders, also those past their deadline."""

    @abstractmethod
    async def acquire(self, session_id: str, holder: Holder, *, cleaned: bool = False) -> Lease:
        """Take the lease of a session that is free or whose holder is past its deadline; the epoch grows by one.

        Raises `SessionBusy` with who holds it until when, `SessionNotFound`, `HolderLost`, or `SessionCleaned` unless
        a `cleaned` session is wanted.
        """

    @abstractmethod
    async def claim(self, holder: Holder, *, agents: Sequence[str] | None = None) -> Lease | None:
        """Take the lease of the session that has been ready longest, if there is one. No two callers get the same.

        Raises `HolderLost`. Sessions of dead holders are ready once `reclaim` has freed them.
        """

    @abstractmethod
    async def next_work(
        self, holder: Holder, *, agents: Sequence[str] | None = None, limit: int = 1, max_attempts: int = 5
    ) -> list[Work]:
        """Claim up to `limit` ready sessions and take the first submission of each, all in one transaction.

        What `claim` and then `take` would do, at the price of one. Raises `HolderLost`.
        """

    @abstractmethod
    async def release(self, lease: Lease) -> None:
        """Let go of the session; if something waits in its queue it is ready at once. Idempotent."""

    @abstractmethod
    async def reclaim(self, *, limit: int = 100) -> list[str]:
        """Free up to `limit` sessions of holders that are gone and remove holders that have none left.

        Gone is one past its deadline, and at once one whose process is seen to have ended.

        What they had claimed is queued again, in these sessions only. Returns the sessions.
        """

    # Submissions

    @abstractmethod
    async def submit(
        self,
        session_id: str,
        kind: str,
        payload: Json = "{}",
        *,
        id: str | None = None,
        lane: Lane = "main",
        when_busy: WhenBusy = "queue",
        idempotency_key: str | None = None,
        trace: str | None = None,
    ) -> Submission:
        """Queue something for the session, once: the same id or idempotency key returns the submission it made.

        The same means the same text, to the letter. `when_busy` is kept for the worker that takes it, except `reject`:
        that raises `TurnInProgress` if anything is queued or under way. Raises `KeyReused` if what is asked differs,
        `QueueFull`, `SessionCleaned` or `SessionNotFound`. `trace` is kept for the one who carries it out.
        """

    @abstractmethod
    async def take(
        self, lease: Lease, *, lane: Lane | None = None, id: str | None = None, max_attempts: int = 5
    ) -> Submission | None:
        """Claim the next submission: control lane first, then in the order of the queue; or the one with this id.

        One that was claimed `max_attempts` times and never ended is dead: it gets its reason and an event, its run
        has failed, and the one behind it is taken.
        """

    @abstractmethod
    async def urgent(self, session_id: str, *, limit: int = 20) -> list[Submission]:
        """Return what is queued and does not wait for its turn: the control lane, then `steer` and `interrupt`.

        Payloads are not read, and empty: `take` returns them.
        """

    @abstractmethod
    def ready_bell(self) -> AbstractContextManager[Signal]:
        """Listen for sessions that become ready. A hint may be lost, and one may come for nothing: look yourself."""

    @abstractmethod
    def inbox_bell(self, session_id: str) -> AbstractContextManager[Signal]:
        """Listen for what is submitted to a session. A hint, like `ready_bell`."""

    @abstractmethod
    async def submissions(
        self,
        session_id: str,
        *,
        state: SubmissionState | None = None,
        payloads: bool = True,
        cursor: str | None = None,
        limit: int = 50,
    ) -> Page[Submission]:
        """List a session's submissions in the order of the queue; without `payloads`, each has an empty one."""

    # The journal

    @abstractmethod
    async def write(self, lease: Lease, batch: Batch) -> int:
        """Write everything a step changed, in one transaction, and return the session's number after it.

        Durable when it returns. `LeaseLost` and every other error mean that nothing of it was written, except
        `StoreUnavailable`: then its fate is not known and the lease counts as lost. Release it, acquire again, and
        read what is there. A submission that is changed must exist and be open, and media that is referred to must be
        stored, else `Conflict`.
        """

    @abstractmethod
    async def events(
        self, session_id: str, *, after: int = 0, run_id: str | None = None, limit: int = 500
    ) -> list[Event]:
        """Return the events that follow number `after`, in order. Raises `SessionNotFound`.

        A page ends with the event that reaches 4 MiB, so only an empty one says that there are no more.
        """

    @abstractmethod
    def watch(self, session_id: str, *, after: int = 0) -> AsyncGenerator[Event, None]:
        """Yield every event that follows number `after`, past and future, each once, in order, without a gap.

        Goes on until it is closed. Raises `SessionNotFound` if there is no such session, or no more, and `NotYet` if the
        session has fewer events than that, as after a restore from a backup.
        """

    @abstractmethod
    async def put_drafts(self, lease: Lease, drafts: Sequence[Draft]) -> None:
        """Replace what is streamed right now. Takes no number; may be lost with the machine; refused when stale."""

    @abstractmethod
    async def drafts(self, session_id: str) -> list[Draft]:
        """Return what is streamed right now."""

    @abstractmethod
    def watch_drafts(self, session_id: str) -> AsyncGenerator[list[Draft], None]:
        """Yield what is streamed right now, and again whenever it has changed. Goes on until it is closed."""

    # History, runs and effects

    @abstractmethod
    async def history(
        self, session_id: str, *, segment: int, length: int, after: int = -1, limit: int = 1000
    ) -> list[Message]:
        """Return the messages of a checkpoint, (segment, length), that follow position `after`, in order.

        A page ends with the message that reaches 4 MiB: read on until the last position.
        """

    @abstractmethod
    async def history_size(self, session_id: str, *, segment: int, length: int) -> int:
        """Return how many bytes the messages of a checkpoint have, without reading them; media is not counted."""

    @abstractmethod
    async def segments(self, session_id: str) -> list[Segment]:
        """Return the segments of a session's history."""

    @abstractmethod
    async def checkpoint(self, checkpoint_id: str) -> Checkpoint:
        """Return one checkpoint. Raises `NotFound`."""

    @abstractmethod
    async def checkpoints(
        self,
        *,
        session_id: str | None = None,
        run_id: str | None = None,
        kind: CheckpointKind | None = None,
        cursor: str | None = None,
        limit: int = 50,
    ) -> Page[Checkpoint]:
        """List the checkpoints of a session, or of one of its runs, newest first."""

    @abstractmethod
    async def run(self, run_id: str) -> Run:
        """Return one run. Raises `NotFound`."""

    @abstractmethod
    async def runs(
        self,
        *,
        session_id: str | None = None,
        parent_id: str | None = None,
        cursor: str | None = None,
        limit: int = 50,
    ) -> Page[Run]:
        """List the runs of a session, or the delegates of a run, in the order in which they began."""

    @abstractmethod
    async def effects(
        self,
        session_id: str,
        *,
        run_id: str | None = None,
        call_id: str | None = None,
        unresolved: bool = False,
        cursor: str | None = None,
        limit: int = 200,
    ) -> Page[Effect]:
        """List effects in the order in which they were started; `unresolved`: only those with no recorded end."""

    # Media: the register of what the media stores have, and the bytes of the one in this database

    @abstractmethod
    async def put_blob(self, blob: Blob, *, anew: bool = False, body: bytes | None = None) -> Blob:
        """Register bytes that are about to be stored; with their `body`, which is small, they are stored at once.

        If the location has the same content already, that blob is touched and returned instead, unless `anew`.
        """

    @abstractmethod
    async def name_blob(self, blob: Blob, *, anew: bool = False) -> Blob:
        """Add to an entry what was not known when its bytes began to come in: digest, key and size.

        As with `put_blob`, another blob with the same content is returned instead. `Conflict` if the entry was collected.
        """

    @abstractmethod
    async def keep_blob(self, blob: Blob, *, replaces: str | None = None) -> Blob:
        """Say that the bytes are stored, and return the blob that has them: this, or another that was first.

        `replaces` is the id of a blob whose bytes are gone. `Conflict` if the entry was collected meanwhile.
        """

    @abstractmethod
    async def touch_blob(self, blob_id: str) -> bool:
        """Say that it is still being stored; false if it was collected meanwhile."""

    @abstractmethod
    async def blob(self, location: str, sha256: str) -> Blob:
        """Return what a location has of this content, if it is stored. Raises `MediaNotFound`."""

    @abstractmethod
    async def blobs(
        self,
        *,
        location: str | None = None,
        state: BlobState | None = None,
        cursor: str | None = None,
        limit: int = 50,
    ) -> Page[Blob]:
        """List blobs in the order in which they were first put."""

    @abstractmethod
    async def condemn_blobs(
        self,
        location: str,
        *,
        grace: float,
        dead_after: float = 120.0,
        cursor: str | None = None,
        limit: int = 100,
        dry_run: bool = False,
    ) -> Page[Blob]:
        """Look at the next `limit` blobs and mark those for deletion that nobody needs; return all that are marked.

        Nobody needs what no session refers to and nobody has put for `grace` seconds, and what is being stored without
        a sign of life for that time, or `dead_after` if that is longer. The next page goes on where this one ended,
        also if nothing was found on it.
        """

    @abstractmethod
    async def condemn_blob(self, location: str, sha256: str) -> Blob:
        """Mark one blob for deletion. `Conflict` if a session refers to it. Raises `MediaNotFound`."""

    @abstractmethod
    async def abandon_blob(self, blob_id: str) -> bool:
        """Give up storing it and say whether its bytes may be deleted; false if they are stored after all."""

    @abstractmethod
    async def forget_blob(self, blob_id: str) -> None:
        """Remove the entry of a blob whose bytes are gone, or were never stored. Idempotent."""

    @abstractmethod
    async def put_chunks(self, blob_id: str, first: int, bodies: Sequence[bytes]) -> None:
        """Add chunks of a blob that is being stored in this database. `Conflict` if it was collected meanwhile."""

    @abstractmethod
    async def chunks(self, blob_id: str, *, first: int, limit: int) -> list[bytes]:
        """Return chunks of a blob from number `first` on, in order."""

    @abstractmethod
    async def delete_chunks(self, blob_id: str, *, limit: int = 16) -> int:
        """Delete up to `limit` chunks of a blob and return how many were there; 0 when none is left."""

    @abstractmethod
    async def references(
        self, *, session_id: str | None = None, sha256: str | None = None, limit: int = 1000
    ) -> list[tuple[str, str]]:
        """Return which session refers to which content, as (session_id, sha256): those of a session, or to a content."""

    @abstractmethod
    async def is_referenced(self, sha256: str, *, owner: str | None = None) -> bool:
        """Return whether a session of this owner refers to some content; without an owner, whether any session does.

        How long it takes does not depend on the sessions of other owners.
        """

    # Shell commands

    @abstractmethod
    async def start_command(self, command: Command) -> Command:
        """Record a command that is about to run, once. Its session, if it has one, must exist and not be cleaned."""

    @abstractmethod
    async def write_outputs(self, command: Command, outputs: Sequence[Output]) -> Command:
        """Append to a running command's output and set its state, exit code and sizes to what is given.

        `command.outputs` is how many were written before, so that the same call may be sent twice. Returns the
        command as it is now. Raises `CommandLost` if it has ended, is gone, or has another holder or count.
        """

    @abstractmethod
    async def stop_command(self, command_id: str) -> Command:
        """Ask whoever runs a command to stop it. One that has ended stays as it is. Raises `NotFound`."""

    @abstractmethod
    async def command(self, command_id: str) -> Command:
        """Return one command, also one that was purged. Raises `NotFound`."""

    @abstractmethod
    async def commands(
        self,
        *,
        session_id: str | None = None,
        owner: str | None = None,
        state: CommandState | None = None,
        holder: str | None = None,
        cursor: str | None = None,
        limit: int = 50,
    ) -> Page[Command]:
        """List commands, newest first, also those that were purged."""

    @abstractmethod
    async def outputs(self, command_id: str, *, after: int = -1, limit: int = 100) -> list[Output]:
        """Return the output of a command that follows number `after`, in order. Raises `NotFound`."""

    @abstractmethod
    def watch_outputs(self, command_id: str, *, after: int = -1) -> AsyncGenerator[Output, None]:
        """Yield all output of a command that follows number `after`, past and future, and end when it has ended."""

    @abstractmethod
    async def shell_events(
        self,
        *,
        kind: ShellKind | None = None,
        command_id: str | None = None,
        owner: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        after_order: int | None = None,
        newest_first: bool = False,
        cursor: str | None = None,
        limit: int = 100,
    ) -> Page[Command | Output]:
        """Search the log, or one owner's: commands that were not purged, and output, by time and then id.

        `since` is included, `until` is not. Only output has an order: with `after_order` there are no commands. A
        cursor stays valid when the event it was made from is gone.
        """

    @abstractmethod
    async def shell_events_by_id(
        self, ids: Sequence[str], *, owner: str | None = None
    ) -> list[Command | Output | None]:
        """Return these events of the log, in this order; None for each that is not there, or not this owner's."""

    @abstractmethod
    async def purge_commands(self, *, older_than: float, owner: str | None = None, limit: int = 1000) -> int:
        """Delete up to `limit` events of commands that ended so many seconds ago or earlier, oldest first.

        Their results stay. What runs, and what belongs to a session on hold, is left alone. Returns how many events
        are gone; 0 when there is nothing left to do.
        """

    # Archives and deletion

    @abstractmethod
    def export_rows(
        self, session_id: str
    ) -> AsyncGenerator[tuple[str, Sequence[Mapping[str, object]]], None]:
        """Yield the session, then all its rows table by table, in bounded pages, as they were at one moment.

        Raises `SessionNotFound`, or `SessionCleaned`. Close it when it is not read to its end.
        """

    @abstractmethod
    async def import_rows(
        self,
        session_id: str,
        rows: Callable[[], Iterator[tuple[str, Mapping[str, Any]]]],
        *,
        lease: Lease | None = None,
        source: Lease | str | None = None,
        action: str | None = None,
        actor: str,
        detail: Json = "{}",
    ) -> dict[str, int]:
        """Put back all that `export_rows` gave, in one transaction, with an audit entry; return counts by table.

        `source` is the session that the rows were read from, by its id or by the lease that it is held under. Nothing is imported if that
        lease was lost, or the session was cleaned or erased, meanwhile. The entry's `action` is `rehydrate` under a lease and `import` without one, unless it is given.

        Under a `lease` the session must be cleaned, else `NotCleaned`; without one it must not exist, else
        `SessionExists`. `rows` may be called again. `Conflict` names an id that another session has. What the
        rows refer to as media must be stored. Raises `SessionErased`.
        """

    @abstractmethod
    async def import_commands(self, commands: Sequence[tuple[Command, Sequence[Output]]]) -> list[str]:
        """Add commands that ended elsewhere, with their outputs, as they are given, in one transaction.

        Those whose id is here already stay as they are; returns the ids of the new ones. `Conflict` names an output's id
        that is taken. Raises `SessionNotFound` or `SessionCleaned` for the session of one.
        """

    @abstractmethod
    async def standing(self, session_id: str) -> Standing:
        """Return how a session stands for retention. Raises `SessionNotFound`."""

    @abstractmethod
    async def content_counts(self, session_id: str) -> dict[str, int]:
        """Count the rows of what a session contains, by table; empty tables are left out."""

    @abstractmethod
    async def child_sessions(self, session_id: str, *, limit: int = 1000) -> list[str]:
        """Return the other sessions of the same owner in which runs of this one have delegates."""

    @abstractmethod
    async def erased_at(self, session_id: str) -> datetime | None:
        """Return when a session was erased, if it was."""

    @abstractmethod
    async def begin_cleaning(self, lease: Lease, *, idle: float, force: bool = False) -> Standing:
        """Check the guards and mark the session `cleaning`: from now on it accepts nothing. Returns how it stood.

        Raises `RetentionRefused`, `SessionErased`. One that is cleaned stays as it is.
        """

    @abstractmethod
    async def stop_cleaning(self, lease: Lease) -> None:
        """Make a session what it was before `begin_cleaning`, if nothing of it was deleted yet."""

    @abstractmethod
    async def keep_archive(self, lease: Lease, sha256: str) -> None:
        """Note the archive of a session that is being cleaned, which must be stored; it is kept from now on."""

    @abstractmethod
    async def delete_content(self, lease: Lease, *, limit: int = 1000) -> dict[str, int]:
        """Delete up to `limit` rows of what the session contains and count them by table; empty when none is left.

        Only the session itself, its head and its number remain. It is `cleaning` from the first call on, and accepts
        nothing; a session on hold is refused with `Conflict`.
        """

    @abstractmethod
    async def drop_references(
        self, lease: Lease, *, grace: float = 0.0, limit: int = 100
    ) -> tuple[int, list[Blob]]:
        """Delete up to `limit` references to media and mark the blobs that nobody needs now; return both.

        Blobs that were put within `grace` seconds are left to the collector.
        """

    @abstractmethod
    async def finish_cleaning(self, lease: Lease, *, actor: str, detail: Json = "{}") -> datetime:
        """Mark the session `cleaned`, take its title and metadata off, write the audit, and return the time."""

    @abstractmethod
    async def drop_archive(self, lease: Lease) -> list[Blob]:
        """Let go of the session's archive and mark its blobs for deletion, unless somebody else needs them."""

    @abstractmethod
    async def begin_erasing(self, lease: Lease) -> Standing:
        """Put up the tombstone: from now on the session accepts nothing, for ever. Raises `RetentionRefused`."""

    @abstractmethod
    async def finish_erasing(self, lease: Lease, *, actor: str, detail: Json = "{}") -> datetime:
        """Remove the session and its head, write the audit, and return the time on the tombstone."""

    # The sweep

    @abstractmethod
    async def agents(self) -> list[str]:
        """Return the names of all agents that have sessions."""

    @abstractmethod
    async def due(
        self,
        by: DueBy,
        *,
        agent: str | None = None,
        older_than: float,
        cursor: str | None = None,
        limit: int = 100,
    ) -> Page[Due]:
        """List what may be due for retention, longest due first, at the cost of what is found; holds left out.

        `idle`: sessions of the agent that were active last so many seconds ago, or earlier; `age`: created then;
        `cleaned`: created then, and cleaned. The others list no cleaned ones. `submissions`: ended then, of all agents.
        """

    @abstractmethod
    async def drop_submissions(self, ids: Sequence[str]) -> int:
        """Delete those of these submissions that have ended and whose session is not on hold; return how many."""

    @abstractmethod
    async def take_duty(self, name: str, holder: Holder, *, every: float = 0.0) -> bool:
        """Take what one holder at a time does for all; false if a live one has it, or did it within `every` seconds."""

    @abstractmethod
    async def leave_duty(self, name: str, holder: Holder, *, detail: Json | None = None) -> None:
        """Let go of it; with `detail`, having done it. Changes nothing if another holder has it."""

    @abstractmethod
    async def duty(self, name: str) -> Duty | None:
        """Return who is at it and what came of the last time; None if nobody ever took it."""

    @abstractmethod
    async def shrink(self, *, limit: int = 1000) -> int:
        """Give up to `limit` free pages back to the file system and return how many remain; 0 where vacuum does it."""
