"""All errors, in one class hierarchy. Each docstring is the message, with placeholders for the error's facts."""

import re
from typing import TYPE_CHECKING, ClassVar, Self, cast

from holdfast.sentences import fill

if TYPE_CHECKING:
    from holdfast.approval import ApprovalRequest


class HoldfastError(Exception):
    """An error in Holdfast."""

    code: ClassVar[str] = "error"
    """Its name in responses. By default that of the class, such as `bad_input`."""
    status: int | None = None
    """The HTTP status, if an API server reported the error."""
    is_permanent: ClassVar[bool] = False
    """Whether a retry in the same process cannot succeed."""

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        if "code" not in vars(cls):
            cls.code = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()

    def __init__(self, **facts: object) -> None:
        self.facts = facts
        super().__init__(fill(type(self).__doc__ or "", facts))

    @classmethod
    def restore(cls, message: str, facts: dict[str, object]) -> Self:
        """Return an error that another process raised."""
        error = cls.__new__(cls)
        Exception.__init__(error, message)
        error.facts = facts
        return error

    def __reduce__(self) -> tuple[object, ...]:
        return type(self).restore, (str(self), self.facts)


class BadInput(HoldfastError):
    """Invalid input: {problem}."""


class BadId(BadInput):
    """Invalid {what} {value!r}. Use 1 to 128 letters, digits and . _ : @ = + ~ -, and start with a letter or digit."""


class BadUuid(BadInput):
    """Invalid {what} id {value!r}. Use a UUID: 32 hexadecimal digits, with or without dashes."""


class BadText(BadInput):
    """The {what} cannot be stored: it {problem}."""


class BadCursor(BadInput):
    """Invalid cursor {cursor!r} for this list. Pass the `next_cursor` of the previous page unchanged."""


class BadUsage(BadInput):
    """{problem} Usage: `{usage}`. Run `{command} --help` for details."""


class BadSettings(BadInput):
    """Invalid settings. {problem}"""


class PayloadTooLarge(BadInput):
    """The {what} has {size} bytes; the limit is {limit}. Raise `max_payload_bytes`, or store large content as media."""


class FolderNotFound(BadInput):
    """The working directory {path} does not exist. Create it, or pass another directory as `cwd`."""


class Unauthenticated(HoldfastError):
    """{problem} Send `Authorization: Bearer <token>`; on the command line, set HOLDFAST_TOKEN. Create a token with `holdfast token create`."""


class Forbidden(HoldfastError):
    """Permission denied: {principal} does not have {required}."""


class NotFound(HoldfastError):
    """There is no {what} {id}."""


class SessionNotFound(NotFound):
    """There is no session {id}."""


class Conflict(HoldfastError):
    """This conflicts with stored data: {problem}. Nothing was changed."""


class SessionExists(Conflict):
    """Session {id} already exists. Choose another id, or use the existing session."""


class IdUnavailable(Conflict):
    """The session id {id} is not available. Choose another one, or omit it to have one generated."""


class KeyReused(Conflict):
    """Session {session_id} already has a submission with idempotency key {key!r} and different content. Use a new key."""


class VersionConflict(Conflict):
    """The state of session {session_id} is at version {version}, not {expected_version}. Read it again, then set it."""


class MediaCollected(Conflict):
    """Media was deleted between its upload and this write, because no session referred to it: {uris}. Nothing was changed. Upload it again, then retry the write."""


class TurnNotRetriable(Conflict):
    """Turn {submission_id} cannot be retried: {problem}. Nothing was changed."""


class HistoryTooLarge(Conflict):
    """The history has {size} bytes including its media; the limit is {limit}. Rewind or undo to an earlier point, or raise `max_history_bytes`."""


class EventNotFound(Conflict):
    """Session {session_id} has no event {number} yet; its last event is {seq}. Retry later."""


class CredentialSealed(Conflict):
    """Credential {name} of session {session_id} cannot be decrypted with `credential_key`. Add the key that encrypted it."""


class SessionCleaned(Conflict):
    """Session {id} was cleaned: its content is deleted, and it accepts nothing. If you have an archive, rehydrate the session first; otherwise create a new one."""


class StoreInUse(Conflict):
    """The store {url} is in use by {holders}. Stop the workers and API servers of this store, then run the command again."""


class SessionMoved(Conflict):
    """Session {id} was moved to another store. Continue it there; `holdfast audit --session {id}` names the store."""


class SessionErased(Conflict):
    """Session {id} was permanently erased. Its id cannot be reused; choose another one."""


class NotCleaned(Conflict):
    """Session {id} is {status}, and only a cleaned session can be rehydrated. To replace it, clean it first."""


class SweepRunning(Conflict):
    """A sweep is already running, started by {holder}. Wait until it ends. A dry run is possible at any time."""


class RetentionRefused(Conflict):
    """Session {session_id} was not changed: {problem}. {hint}"""


class BadArchive(BadInput):
    """Invalid archive: {problem}. Nothing was changed."""


class ArchiveTooNew(BadArchive):
    """The archive has format version {found}; this version of Holdfast supports {known}. Upgrade Holdfast. Nothing was changed."""


class ArchiveFailed(HoldfastError):
    """The archive could not be read or written: {problem}. Nothing was changed. Check free space and permissions, then retry."""


class QueueFull(HoldfastError):
    """Session {session_id} has {pending} pending submissions; the limit is {limit}. Retry when some of them have ended."""


class RateLimited(HoldfastError):
    """Each owner may have {limit} {what}, with all its tokens together. Retry in {seconds} s."""


class TooManySessions(HoldfastError):
    """{owner!r} has {limit} sessions, and may not have more. Clean or erase some that are no longer needed, or ask an administrator, then create a new one. To erase a session that was active within HOLDFAST_RETENTION_MIN_IDLE_DAYS (by default 7), or that has pending work, use a token with the scope `delete`."""


class TooMuchStored(HoldfastError):
    """{owner!r} has {stored} of stored content, and may have {limit}. Free space, then retry: erase sessions that are no longer needed with `holdfast sessions erase`, or have an administrator clean or archive them with `holdfast sessions clean`. To erase a session that was active within HOLDFAST_RETENTION_MIN_IDLE_DAYS (by default 7), or that has pending work, use a token with the scope `delete`. The largest are: {largest}. Answers, signals and interrupts are still accepted."""


class BudgetReached(HoldfastError):
    """The budget of {budget} is used up: {used} of {limit}. Raise it, or wait for the next day if it is daily. Then a worker continues the turn; outside a worker, `resume` continues the run."""


class TurnInProgress(HoldfastError):
    """Session {session_id} is busy (open submissions: {pending}), and this one has `when_busy` set to reject. Nothing was queued."""


class SessionBusy(HoldfastError):
    """Session {session_id} is in use by {holder} until {until}. Retry after that time, or submit a message to its queue."""


class LeaseLost(HoldfastError):
    """The lease on session {session_id} with epoch {epoch} is not valid: {reason}. Nothing was written. Stop this run."""


class HolderLost(HoldfastError):
    """Holder {id} is not registered, or its deadline has passed. Join again, then acquire the leases again."""


class CommandLost(HoldfastError):
    """Command {id} cannot be recorded by this service: {reason}. Nothing was written. Stop its process."""


class ShellClosed(HoldfastError):
    """The shell service is not running. Use it within `async with ShellService(…)`."""


class TooManyExports(HoldfastError):
    """This server is already sending {limit} archives, its maximum. Retry when one has finished."""


class ShellUnavailable(HoldfastError):
    """The command cannot be started now: {problem}. Nothing was run or recorded. Retry later."""


class StoreError(HoldfastError):
    """The store at {url} failed: {problem}."""


class UnknownStore(StoreError):
    """Unknown store URL {url!r}. Use sqlite:///path/file.db, sqlite://:memory:, postgresql://user@host/database or mongodb://host/database."""

    is_permanent = True


class StoreClosed(StoreError):
    """The store at {url} is not open. Use it within `async with open_store(…)`."""

    is_permanent = True


class StoreForked(StoreClosed):
    """The store at {url} was opened by process {opened_by} and cannot be used in process {process}, which was forked from it. Open a separate store in each process, after the fork."""


class StoreReplaced(StoreClosed):
    """The files of the store at {url} were deleted or replaced while this process had them open: {path} is no longer the same file. This process no longer reads or writes it, and its latest writes may exist only in the old file. Restart the process."""


class StoreUnavailable(StoreError):
    """The store at {url} is not available: {problem}. Acknowledged writes are safe; a call that was in progress may or may not have taken effect."""


class StoreMissing(StoreUnavailable):
    """No store exists at {url}: {problem}."""


class StoreBusy(StoreError):
    """The store at {url} was locked by another process for {seconds} seconds. Retry, or find the process that holds the lock; it may have been paused during a write."""


class StoreFull(StoreError):
    """The disk of the store at {url} is full. This write was discarded. Free space, then retry."""


class StoreReadOnly(StoreError):
    """The store at {url} is read-only: {problem}. Check the permissions of this user."""


class StoreCorrupt(StoreError):
    """The file at {url} is not a valid database: {problem}. Restore it from a backup."""

    is_permanent = True


class StoreTooNew(StoreError):
    """The store at {url} has schema version {found}; this version of Holdfast supports up to {known}. Upgrade Holdfast."""

    is_permanent = True


class StoreTooOld(StoreError):
    """The store at {url} has schema version {found}; this version of Holdfast requires {known}. Run `holdfast db upgrade`."""

    is_permanent = True


class BadUri(BadInput):
    """Invalid media URI {uri!r}. Use media+sha256:// followed by the 64 lower-case hexadecimal digits of the SHA-256."""


class BadKey(BadInput):
    """The key {key!r} cannot be used in {location}: {problem}. Change the `key_strategy`."""


class MediaNotFound(NotFound):
    """{uri} does not exist in {location}. Check that HOLDFAST_MEDIA names the media store that contains it."""


class MediaError(HoldfastError):
    """The media store {location} failed: {problem}."""


class MediaDamaged(MediaError):
    """The bytes of {uri} in {location} are damaged: {problem}. Restore them from a backup, or delete it and upload it again."""


class MediaUnavailable(MediaError):
    """The media store {location} is not available: {problem}. No partial content is visible. Retry."""


class MediaDenied(MediaError):
    """The media store {location} denied access: {problem}. Check the credentials, their expiry and their permissions."""


class MediaFull(MediaError):
    """The media store {location} is full: {problem}. This content was discarded. Free space, then retry."""


class UnknownMedia(MediaError):
    """Unknown media URL {url!r}. Use database, disk:///path, s3://bucket/prefix, gs://bucket/prefix or az://account/container/prefix."""


class BadImport(BadInput):
    """Nothing was imported from {source}: {problem}."""


class AgentExited(HoldfastError):
    """{what} tried to exit the process with {error}. Only its run failed. Raise an ordinary exception instead."""


class Stopping(HoldfastError):
    """The server is stopping and could not wait for this request, which may or may not have taken effect. Send it again."""


class MissingExtra(HoldfastError):
    """This feature requires the extra `{extra}`. Install it with: pip install 'holdfast[{extra}]'"""


class ServerError(HoldfastError):
    """The server responded with {status}, {code}: {message}."""


class ServerUnavailable(HoldfastError):
    """The server at {url} cannot be reached: {problem}. Check the address, and whether the server is running."""


class TurnFailed(HoldfastError):
    """Turn {id} of session {session_id} failed: {reason}"""


class ApprovalNeeded(HoldfastError):
    """Turn {id} of session {session_id} waits for a decision about {tools}. Answer with `approve` or `deny`, then wait for the result again."""

    @property
    def calls(self) -> "list[ApprovalRequest]":
        """The tool calls that wait for a decision."""
        return cast("list[ApprovalRequest]", self.facts["calls"])


class StepError(HoldfastError):
    """Step {step!r} failed: {error}."""

    code = "step_failed"


class OutcomeUnknown(HoldfastError):
    """Step {step!r} was started, but it is unknown whether it took effect."""


class SignalTimeout(HoldfastError, TimeoutError):
    """The signal {name!r} did not arrive in time."""


class StepsDiffer(HoldfastError):
    """The code differs from the record: {asked}, but the next recorded entry is {recorded}. Restore the code, or restart the turn."""
