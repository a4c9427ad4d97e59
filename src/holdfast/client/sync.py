"""The blocking client. `scripts/make_sync.py` generates this file from the asynchronous client; do not edit it."""

from collections.abc import Collection, Generator, Sequence
from contextlib import contextmanager
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, overload

from pydantic_ai.messages import ModelMessage, UserContent

from holdfast.api.budgets import BudgetChanged, BudgetInfo
from holdfast.api.models import (
    AgentState,
    AuditRecord,
    CheckpointInfo,
    ConversationEntry,
    CredentialInfo,
    EffectInfo,
    EventInfo,
    Health,
    Inbox,
    Me,
    ReadCursor,
    RecordInfo,
    RunInfo,
    ServerInfo,
    SessionDetail,
    SessionInfo,
    StateVersion,
    WorkerInfo,
)
from holdfast.api.retention import CleanResult, EraseResult, RehydrateResult, RetentionStatus, SweepResult
from holdfast.api.schedules import ScheduleInfo
from holdfast.api.shell import (
    BashCommand,
    BashEvent,
    BashOutput,
    CommandResult,
    SessionCommand,
)
from holdfast.api.submissions import SubmissionDetail, SubmissionInfo
from holdfast.api.subscriptions import DeliveryInfo, SubscriptionInfo, SubscriptionSecret
from holdfast.api.usage import UsageInfo
from holdfast.approval import ApprovalRequest
from holdfast.budgets import Per
from holdfast.client.client import Client
from holdfast.client.connection import connect
from holdfast.client.run import RunHandle
from holdfast.client.schedule import ScheduleHandle
from holdfast.client.session import SessionHandle
from holdfast.client.shell import ShellHandle
from holdfast.client.subscription import SubscriptionHandle
from holdfast.client.turn import TurnHandle
from holdfast.event_loop import EventLoop
from holdfast.events import DraftText, SessionEvent
from holdfast.priority import Priority
from holdfast.schedules import CatchUp, Overlap
from holdfast.store import Store
from holdfast.subscriptions import DeliveryState, NoticeKind
from holdfast.types import CheckpointKind, Status, SubmissionState, WhenBusy
from holdfast.usage import UsageGroup

if TYPE_CHECKING:
    from pydantic_ai import Agent

    from holdfast.runtime import FunctionAgent
    from holdfast.runtime.agents import Agents

T = TypeVar("T")
H = TypeVar("H")


class SyncHandle(Generic[H]):
    """A handle whose methods block until they have a result."""

    def __init__(self, loop: EventLoop, handle: H) -> None:
        self._loop = loop
        self._handle = handle

    def __repr__(self) -> str:
        return f"Sync{self._handle!r}"


class SyncTurnHandle(SyncHandle[TurnHandle[T]], Generic[T]):
    """An accepted submission. It is durable: it ends, or visibly waits, even if this process exits.

    Await the handle, or `result()`, for its result.
    """

    def __init__(self, loop: EventLoop, handle: TurnHandle[T]) -> None:
        super().__init__(loop, handle)
        self.id: str = handle.id
        self.session_id: str = handle.session_id
        self.position: int = handle.position

    def info(self) -> SubmissionInfo:
        """Return the state of the submission."""
        return self._loop.run(self._handle.info())

    @overload
    def events(self, *, drafts: Literal[False] = False) -> Generator[SessionEvent, None, None]: ...
    @overload
    def events(self, *, drafts: bool) -> Generator[SessionEvent | DraftText, None, None]: ...
    def events(self, *, drafts: bool = False) -> Generator[SessionEvent | DraftText, None, None]:
        """Yield the session's events from the moment this submission was queued until it ends."""
        return self._loop.iterate(self._handle.events(drafts=drafts))

    def result(self, *, timeout: float | None = None) -> T:
        """Wait until the submission has ended, and return its result.

        Raises `TurnFailed` if it failed, and `ApprovalNeeded` if it waits for a person: decide with `session.approve` or
        `session.deny`, then call `result` again. Raises `TimeoutError` after `timeout` seconds. The turn continues after both.
        """
        return self._loop.run(self._handle.result(timeout=timeout))

    def retry(self, *, from_step: str | None = None) -> "SyncTurnHandle[T]":
        """Continue a turn that failed, was interrupted or was given up, and return a handle on the new attempt.

        Recorded tool calls and steps are not repeated, except a failed step that ended a plain agent's turn. With `from_step`,
        the call id of a plain agent's step, that step and all later ones are repeated, even if the turn is done. Raises
        `TurnNotRetriable` if the turn cannot be retried. The new attempt fails if the session has continued since.
        """
        return SyncTurnHandle(self._loop, self._loop.run(self._handle.retry(from_step=from_step)))

    def undo_effects(self) -> "SyncTurnHandle[None]":
        """Undo the effects of a turn that has ended: run the undo functions of its completed steps, the last one first.

        Await the returned handle to wait for it. It raises `TurnFailed` if the undo stops at a step; the next call continues there. If
        nothing is left to undo, nothing runs. The history stays unchanged.
        """
        return SyncTurnHandle(self._loop, self._loop.run(self._handle.undo_effects()))

    def cancel(self) -> "SyncTurnHandle[None]":
        """Stop the turn if it is running or waiting, or remove it from the queue if it has not started. `result` then raises `TurnFailed`.

        Await the returned handle to wait until a worker has done so. If the turn has ended, nothing changes.
        """
        return SyncTurnHandle(self._loop, self._loop.run(self._handle.cancel()))

    def problem(self) -> str | None:
        """Return the reason why no worker continues the session, and the remedy; None if a worker does."""
        return self._loop.run(self._handle.problem())


class SyncSessionHandle(SyncHandle[SessionHandle[T]], Generic[T]):
    """One session. `T` is the type of the agent's output.

    A handle holds no connection and no lock. Any number of handles, in any process, can use the same session.
    """

    def __init__(self, loop: EventLoop, handle: SessionHandle[T]) -> None:
        super().__init__(loop, handle)
        self.id: str = handle.id

    def info(self) -> SessionDetail:
        """Return the session as it is now, with the tool calls that wait for a decision in `approvals`."""
        return self._loop.run(self._handle.info())

    def update(
        self, *, title: str | None = None, hold: bool | None = None, metadata: dict[str, Any] | None = None
    ) -> SessionInfo:
        """Change the title or metadata, or put the session on hold to protect it from retention."""
        return self._loop.run(self._handle.update(title=title, hold=hold, metadata=metadata))

    def dismiss(self) -> SessionInfo:
        """Dismiss the failure of the last turn: the session is idle again. If it is not failed, nothing changes."""
        return self._loop.run(self._handle.dismiss())

    def send(
        self,
        content: "str | Sequence[UserContent]",
        *,
        when_busy: WhenBusy = "queue",
        idempotency_key: str | None = None,
        deliver_at: datetime | None = None,
        priority: Priority = "normal",
    ) -> "SyncTurnHandle[T]":
        """Send a message: text, or Pydantic AI user content. When this returns, the message is durable.

        If a turn is running, `when_busy` determines whether to `queue` the message, `steer` or `interrupt` the running turn with it, or
        `reject` it. A second message with the same `idempotency_key` is not queued; the first one is returned. The turn does not start
        before `deliver_at`. Of the sessions of an owner that have to wait, those with a higher `priority` start first.
        """
        return SyncTurnHandle(
            self._loop,
            self._loop.run(
                self._handle.send(
                    content,
                    when_busy=when_busy,
                    idempotency_key=idempotency_key,
                    deliver_at=deliver_at,
                    priority=priority,
                )
            ),
        )

    def turn(self, id: str) -> "SyncTurnHandle[T]":
        """Return a handle on a message that was sent earlier."""
        return SyncTurnHandle(self._loop, self._loop.run(self._handle.turn(id)))

    def submissions(
        self, *, state: SubmissionState | None = None, payloads: bool = False
    ) -> Generator[SubmissionDetail, None, None]:
        """Yield the messages and commands that were sent to the session, oldest first."""
        return self._loop.iterate(self._handle.submissions(state=state, payloads=payloads))

    def interrupt(self) -> "SyncTurnHandle[None]":
        """Stop the running or waiting turn. The next message continues from there."""
        return SyncTurnHandle(self._loop, self._loop.run(self._handle.interrupt()))

    def approve(
        self,
        call: str | ApprovalRequest,
        *,
        arguments: dict[str, Any] | None = None,
        feedback: str | None = None,
    ) -> "SyncTurnHandle[None]":
        """Approve a tool call that waits for a decision, optionally with other arguments. `call` is the request, or the id of the call.

        Await the returned handle to wait until a worker has recorded the decision. It raises `TurnFailed` if the worker rejected the decision.
        """
        return SyncTurnHandle(
            self._loop, self._loop.run(self._handle.approve(call, arguments=arguments, feedback=feedback))
        )

    def deny(self, call: str | ApprovalRequest, *, feedback: str | None = None) -> "SyncTurnHandle[None]":
        """Deny a tool call that waits for a decision. The model receives the feedback."""
        return SyncTurnHandle(self._loop, self._loop.run(self._handle.deny(call, feedback=feedback)))

    def signal(
        self, name: str, data: Any = None, *, idempotency_key: str | None = None
    ) -> "SyncTurnHandle[None]":
        """Send a signal with any JSON data. A tool or agent that waits for it continues; one that waits later receives it then.

        A second signal with the same `idempotency_key` is not delivered; the first one is returned.
        """
        return SyncTurnHandle(
            self._loop, self._loop.run(self._handle.signal(name, data, idempotency_key=idempotency_key))
        )

    def tool_result(
        self, call: str | ApprovalRequest, result: Any = None, *, error: str | None = None
    ) -> "SyncTurnHandle[None]":
        """Deliver the result of a tool call that ran outside of the agent, or its error. The handle is like that of `approve`."""
        return SyncTurnHandle(self._loop, self._loop.run(self._handle.tool_result(call, result, error=error)))

    def undo(self) -> "SyncTurnHandle[None]":
        """Undo the last message and everything after it."""
        return SyncTurnHandle(self._loop, self._loop.run(self._handle.undo()))

    def rewind(self, checkpoint_id: str) -> "SyncTurnHandle[None]":
        """Continue from an earlier checkpoint. Later messages stay in the store."""
        return SyncTurnHandle(self._loop, self._loop.run(self._handle.rewind(checkpoint_id)))

    def compact(self) -> "SyncTurnHandle[None]":
        """Replace the history with a shorter one. The session's model writes it, unless the agent has a compactor."""
        return SyncTurnHandle(self._loop, self._loop.run(self._handle.compact()))

    def background(self) -> "SyncTurnHandle[None]":
        """Detach an attached session: its turn continues on a worker when no client watches."""
        return SyncTurnHandle(self._loop, self._loop.run(self._handle.background()))

    def fork(
        self, checkpoint_id: str | None = None, *, session_id: str | None = None, timeout: float | None = None
    ) -> "SyncSessionHandle[T]":
        """Copy the history, up to a checkpoint or to its end, into a new session, and return that session.

        A worker makes the copy. Raises `TimeoutError` if none has done so after `timeout` seconds.
        """
        return SyncSessionHandle(
            self._loop,
            self._loop.run(self._handle.fork(checkpoint_id, session_id=session_id, timeout=timeout)),
        )

    def start_fork(
        self, checkpoint_id: str | None = None, *, session_id: str | None = None
    ) -> "SyncTurnHandle[None]":
        """Request the copy that `fork` makes, and return at once. The event `forked` has the id of the new session."""
        return SyncTurnHandle(
            self._loop, self._loop.run(self._handle.start_fork(checkpoint_id, session_id=session_id))
        )

    @overload
    def events(
        self, *, after: int = 0, drafts: Literal[False] = False, follow: bool = True
    ) -> Generator[SessionEvent, None, None]: ...
    @overload
    def events(
        self, *, after: int = 0, drafts: bool, follow: bool = True
    ) -> Generator[SessionEvent | DraftText, None, None]: ...
    def events(
        self, *, after: int = 0, drafts: bool = False, follow: bool = True
    ) -> Generator[SessionEvent | DraftText, None, None]:
        """Yield every event after number `after` exactly once: first recorded events, then new ones as they occur.

        The stream resumes automatically after a lost connection or a restarted server, and ends when the session is erased. With
        `drafts` it also yields `DraftText` objects, the text that the model is streaming. Without `follow` it ends at the last
        recorded event. The classes of the events are in `holdfast.events`.
        """
        return self._loop.iterate(self._handle.events(after=after, drafts=drafts, follow=follow))

    def journal(self, *, after: int = 0, follow: bool = True) -> Generator[EventInfo, None, None]:
        """Yield the same events as they are stored, without a class for each kind."""
        return self._loop.iterate(self._handle.journal(after=after, follow=follow))

    def messages(self) -> Generator[ModelMessage, None, None]:
        """Yield the history that the next message continues from, as Pydantic AI messages."""
        return self._loop.iterate(self._handle.messages())

    def conversation(self) -> Generator[ConversationEntry, None, None]:
        """Yield the conversation of another framework's session. Unrecognized entries have the role `other`."""
        return self._loop.iterate(self._handle.conversation())

    def records(self, kind: str, *, prefix: str = "") -> Generator[RecordInfo, None, None]:
        """Yield the records of one kind that another framework stored in the session, ordered by key."""
        return self._loop.iterate(self._handle.records(kind, prefix=prefix))

    def runs(self) -> Generator[RunInfo, None, None]:
        """Yield the runs of the session, oldest first."""
        return self._loop.iterate(self._handle.runs())

    def state(self, name: str | None = None) -> AgentState:
        """Return the agent state, or the named one, with its version."""
        return self._loop.run(self._handle.state(name))

    def states(self) -> list[StateVersion]:
        """Return the names and versions of the session's states."""
        return self._loop.run(self._handle.states())

    def set_state(self, body: Any, *, expected_version: int, name: str | None = None) -> AgentState:
        """Replace the agent state, or the named one, if it is at version `expected_version`; 0 if there is none yet."""
        return self._loop.run(self._handle.set_state(body, expected_version=expected_version, name=name))

    def cursors(self) -> Generator[ReadCursor, None, None]:
        """Yield the stored offsets of the session's consumers."""
        return self._loop.iterate(self._handle.cursors())

    def set_cursor(self, consumer: str, seq: int) -> ReadCursor:
        """Store the number of the last event that a consumer has read. Lower numbers are ignored."""
        return self._loop.run(self._handle.set_cursor(consumer, seq))

    def commands(self) -> Generator[SessionCommand, None, None]:
        """Yield the shell commands of the session, newest first."""
        return self._loop.iterate(self._handle.commands())

    def command_output(self, command_id: str, *, after: int = -1, limit: int = 50) -> list[BashOutput]:
        """Return the output of a shell command after number `after`."""
        return self._loop.run(self._handle.command_output(command_id, after=after, limit=limit))

    def set_credential(self, name: str, value: str, *, ttl: float | None = None) -> None:
        """Store a credential for the session's tools, for `ttl` seconds if given. It cannot be read back."""
        return self._loop.run(self._handle.set_credential(name, value, ttl=ttl))

    def credentials(self) -> list[CredentialInfo]:
        """Return the names of the session's credentials, and when they expire."""
        return self._loop.run(self._handle.credentials())

    def delete_credential(self, name: str) -> None:
        """Delete a credential."""
        return self._loop.run(self._handle.delete_credential(name))

    def archive(self, *, gzip: bool = False) -> Generator[bytes, None, None]:
        """Yield the session as an archive, piece by piece. Raises `ArchiveFailed` if it cannot be completed."""
        return self._loop.iterate(self._handle.archive(gzip=gzip))

    def export(self, path: str | Path, *, gzip: bool = False) -> int:
        """Write the session to an archive file, and return its size.

        The file exists only if it is complete, and only its owner can read it.
        """
        return self._loop.run(self._handle.export(path, gzip=gzip))

    def clean(
        self,
        *,
        idle_days: float = 7.0,
        force: bool = False,
        archive: Literal["media"] | None = None,
        dry_run: bool = False,
    ) -> CleanResult:
        """Delete the content of the session. With `archive="media"` a verified archive stays in the media store."""
        return self._loop.run(
            self._handle.clean(idle_days=idle_days, force=force, archive=archive, dry_run=dry_run)
        )

    def rehydrate(self, archive: str | Path | None = None, *, force: bool = False) -> RehydrateResult:
        """Restore a cleaned session from an archive file, or from the archive in the media store."""
        return self._loop.run(self._handle.rehydrate(archive, force=force))

    def erase(self, *, children: bool = False) -> EraseResult:
        """Erase the session permanently. With `children`, also erase the sessions of its delegate runs."""
        return self._loop.run(self._handle.erase(children=children))

    def retention(self) -> RetentionStatus:
        """Return the retention policy that applies to the session, the time when it is due, and anything that prevents it."""
        return self._loop.run(self._handle.retention())


class SyncRunHandle(SyncHandle[RunHandle]):
    """One run: one execution of the agent loop."""

    def __init__(self, loop: EventLoop, handle: RunHandle) -> None:
        super().__init__(loop, handle)
        self.id: str = handle.id

    def info(self) -> RunInfo:
        """Return the run as it is now."""
        return self._loop.run(self._handle.info())

    def delegates(self) -> Generator[RunInfo, None, None]:
        """Yield the runs that tools of this run started."""
        return self._loop.iterate(self._handle.delegates())

    def events(self, *, after: int = 0) -> Generator[SessionEvent, None, None]:
        """Yield the recorded events of the run."""
        return self._loop.iterate(self._handle.events(after=after))

    def journal(self, *, after: int = 0) -> Generator[EventInfo, None, None]:
        """Yield the events of the run as they are stored, without a class for each kind."""
        return self._loop.iterate(self._handle.journal(after=after))

    def checkpoints(self, *, kind: CheckpointKind | None = None) -> Generator[CheckpointInfo, None, None]:
        """Yield the checkpoints of the run, newest first."""
        return self._loop.iterate(self._handle.checkpoints(kind=kind))

    def effects(self, *, unresolved: bool = False) -> Generator[EffectInfo, None, None]:
        """Yield the ledger entries of the run's tool calls, or only those whose outcome is unknown."""
        return self._loop.iterate(self._handle.effects(unresolved=unresolved))

    def settle(self, call_id: str, *, result: Any = None, error: str | None = None) -> EffectInfo:
        """Record the outcome of a tool call whose outcome is unknown: its result, or its error."""
        return self._loop.run(self._handle.settle(call_id, result=result, error=error))


class SyncScheduleHandle(SyncHandle[ScheduleHandle]):
    """One schedule: a message that is submitted at each time of a cron expression."""

    def __init__(self, loop: EventLoop, handle: ScheduleHandle) -> None:
        super().__init__(loop, handle)
        self.id: str = handle.id

    def info(self) -> ScheduleInfo:
        """Return the schedule as it is now, with its next tick and the outcome of the last one."""
        return self._loop.run(self._handle.info())

    def change(
        self,
        *,
        cron: str | None = None,
        timezone: str | None = None,
        text: str | None = None,
        title: str | None = None,
        overlap: Overlap | None = None,
        catch_up: CatchUp | None = None,
        catch_up_limit: int | None = None,
    ) -> ScheduleInfo:
        """Change the given values and leave the others unchanged. With new times, it continues with the first tick from now on."""
        return self._loop.run(
            self._handle.change(
                cron=cron,
                timezone=timezone,
                text=text,
                title=title,
                overlap=overlap,
                catch_up=catch_up,
                catch_up_limit=catch_up_limit,
            )
        )

    def pause(self) -> ScheduleInfo:
        """Pause the schedule: it submits nothing until it is resumed."""
        return self._loop.run(self._handle.pause())

    def resume(self) -> ScheduleInfo:
        """Resume the schedule with the first tick from now on. Ticks during the pause are not made up for."""
        return self._loop.run(self._handle.resume())

    def delete(self) -> None:
        """Delete the schedule with its text. The sessions and submissions that it created remain."""
        return self._loop.run(self._handle.delete())

    def run(self) -> "SyncTurnHandle[str]":
        """Submit the message now, even if the schedule is paused. Its ticks stay as they are.

        Raises `Conflict` if its last turn has not ended and `overlap` is `skip`.
        """
        return SyncTurnHandle(self._loop, self._loop.run(self._handle.run()))

    def times(self, count: int = 10) -> list[datetime]:
        """Return the next times, at most 100. If the schedule is paused, those that it would have if it were resumed now."""
        return self._loop.run(self._handle.times(count))


class SyncSubscriptionHandle(SyncHandle[SubscriptionHandle]):
    """One subscription: notices of events that are sent to a webhook."""

    def __init__(self, loop: EventLoop, handle: SubscriptionHandle) -> None:
        super().__init__(loop, handle)
        self.id: str = handle.id

    def info(self) -> SubscriptionInfo:
        """Return the subscription as it is now, without its secret."""
        return self._loop.run(self._handle.info())

    def change(
        self,
        *,
        url: str | None = None,
        kinds: Sequence[NoticeKind] | None = None,
        agents: Sequence[str] | None = None,
        sessions: Sequence[str] | None = None,
        content: bool | None = None,
    ) -> SubscriptionInfo:
        """Change the given values and leave the others unchanged."""
        return self._loop.run(
            self._handle.change(url=url, kinds=kinds, agents=agents, sessions=sessions, content=content)
        )

    def pause(self) -> SubscriptionInfo:
        """Pause the subscription: nothing is sent, and new events are not announced."""
        return self._loop.run(self._handle.pause())

    def resume(self) -> SubscriptionInfo:
        """Resume the subscription. Pending deliveries are sent now; events during the pause are not announced."""
        return self._loop.run(self._handle.resume())

    def rotate_secret(self, secret: str | None = None) -> SubscriptionSecret:
        """Replace the secret, by default with a new random one, and return it. For a day, deliveries are signed with both secrets."""
        return self._loop.run(self._handle.rotate_secret(secret))

    def test(self) -> DeliveryInfo:
        """Send a notice of the kind `test`. A worker delivers it; `deliveries` has the result."""
        return self._loop.run(self._handle.test())

    def delete(self) -> None:
        """Delete the subscription with its deliveries."""
        return self._loop.run(self._handle.delete())

    def deliveries(self, *, state: DeliveryState | None = None) -> Generator[DeliveryInfo, None, None]:
        """Yield the deliveries, latest first. Those that ended more than two weeks ago are deleted."""
        return self._loop.iterate(self._handle.deliveries(state=state))

    def repeat(self, delivery_id: str) -> DeliveryInfo:
        """Send a delivery again that has ended, such as one that was undeliverable. A pending one is sent now, and keeps its attempts."""
        return self._loop.run(self._handle.repeat(delivery_id))


class SyncShellHandle(SyncHandle[ShellHandle]):
    """The shell of an API server. Its token needs the scope `shell`."""

    def start(
        self, command: str, *, cwd: str | None = None, timeout: int = 300, session_id: str | None = None
    ) -> BashCommand:
        """Start a command, and return at once. It ends after `timeout` seconds."""
        return self._loop.run(self._handle.start(command, cwd=cwd, timeout=timeout, session_id=session_id))

    def run(
        self, command: str, *, cwd: str | None = None, timeout: int = 300, session_id: str | None = None
    ) -> BashOutput:
        """Run a command, and return its output when it has ended."""
        return self._loop.run(self._handle.run(command, cwd=cwd, timeout=timeout, session_id=session_id))

    def info(self, command_id: str) -> CommandResult:
        """Return the state of a command."""
        return self._loop.run(self._handle.info(command_id))

    def stop(self, command_id: str) -> CommandResult:
        """Stop a command."""
        return self._loop.run(self._handle.stop(command_id))

    def output(self, command_id: str, *, after: int = -1) -> Generator[BashOutput, None, None]:
        """Yield the output of a command after number `after`, as it is written, until the command ends."""
        return self._loop.iterate(self._handle.output(command_id, after=after))

    def events(self, *, command_id: str | None = None) -> Generator[BashEvent, None, None]:
        """Yield the commands and outputs of the log, oldest first, or those of one command."""
        return self._loop.iterate(self._handle.events(command_id=command_id))

    def clear(self) -> int:
        """Delete the log of the commands that have ended, and return the number of deleted entries."""
        return self._loop.run(self._handle.clear())


class SyncClient(SyncHandle[Client]):
    """The sessions of one store or one API server. `holdfast.connect` opens it."""

    def __init__(self, loop: EventLoop, handle: Client) -> None:
        super().__init__(loop, handle)
        self.shell: SyncShellHandle = SyncShellHandle(loop, handle.shell)

    @overload
    def session(
        self,
        id: str | None = None,
        *,
        agent: "Agent[Any, T]",
        title: str = "",
        metadata: dict[str, Any] | None = None,
        owner: str | None = None,
    ) -> "SyncSessionHandle[T]": ...
    @overload
    def session(
        self,
        id: str | None = None,
        *,
        agent: "FunctionAgent",
        title: str = "",
        metadata: dict[str, Any] | None = None,
        owner: str | None = None,
    ) -> "SyncSessionHandle[Any]": ...
    @overload
    def session(
        self,
        id: str | None = None,
        *,
        agent: str | None = None,
        output_type: type[T],
        title: str = "",
        metadata: dict[str, Any] | None = None,
        owner: str | None = None,
    ) -> "SyncSessionHandle[T]": ...
    @overload
    def session(
        self,
        id: str | None = None,
        *,
        agent: str | None = None,
        title: str = "",
        metadata: dict[str, Any] | None = None,
        owner: str | None = None,
    ) -> "SyncSessionHandle[str]": ...
    @overload
    def session(
        self,
        id: str | None = None,
        *,
        agent: "str | Agent[Any, Any] | FunctionAgent | None" = None,
        output_type: Any = None,
        title: str = "",
        metadata: dict[str, Any] | None = None,
        owner: str | None = None,
    ) -> "SyncSessionHandle[Any]": ...
    def session(
        self,
        id: str | None = None,
        *,
        agent: "str | Agent[Any, Any] | FunctionAgent | None" = None,
        output_type: Any = None,
        title: str = "",
        metadata: dict[str, Any] | None = None,
        owner: str | None = None,
    ) -> "SyncSessionHandle[Any]":
        """Open a session. With an `agent`, create it if it does not exist.

        `agent` is the name of the agent, or the agent itself. If you pass the agent, results have its output type; results of
        plain agents are text or JSON. If you pass a name, results are text, or have the given `output_type`. Without an `id`, a
        new one is generated. `title`, `metadata` and `owner` apply to a new session; only administrators may set the owner.
        Raises `SessionNotFound`, and `Conflict` if the session belongs to another agent.
        """
        return SyncSessionHandle(
            self._loop,
            self._loop.run(
                self._handle.session(
                    id, agent=agent, output_type=output_type, title=title, metadata=metadata, owner=owner
                )
            ),
        )

    def sessions(
        self,
        *,
        status: Status | None = None,
        agent: str | None = None,
        owner: str | None = None,
        search: str | None = None,
    ) -> Generator[SessionInfo, None, None]:
        """Yield sessions, most recently active first. `search` matches part of the title. `owner` is ignored unless you are an administrator."""
        return self._loop.iterate(
            self._handle.sessions(status=status, agent=agent, owner=owner, search=search)
        )

    def run(self, id: str) -> "SyncRunHandle":
        """Return a handle on a run."""
        return SyncRunHandle(self._loop, self._handle.run(id))

    def runs(
        self,
        *,
        session_id: str | None = None,
        parent_id: str | None = None,
        interrupted: bool = False,
        unresolved: bool = False,
    ) -> Generator[RunInfo, None, None]:
        """Yield runs, newest first: all, those that were `interrupted`, or those with an `unresolved` tool call."""
        return self._loop.iterate(
            self._handle.runs(
                session_id=session_id, parent_id=parent_id, interrupted=interrupted, unresolved=unresolved
            )
        )

    def create_schedule(
        self,
        cron: str,
        text: str,
        *,
        timezone: str = "UTC",
        agent: str | None = None,
        session_id: str | None = None,
        title: str = "",
        overlap: Overlap = "skip",
        catch_up: CatchUp = "once",
        catch_up_limit: int = 10,
        id: str | None = None,
        owner: str | None = None,
    ) -> "SyncScheduleHandle":
        """Create a schedule: `text` is submitted at each time of `cron` in `timezone`.

        With an `agent`, each tick creates a session; with a `session_id`, it submits to that session. If the turn of the previous tick
        has not ended, `overlap` determines whether to `skip` this tick, to `queue` its message or to `interrupt` that turn. After a time
        without workers, `catch_up` submits `once`, `all` missed ticks up to `catch_up_limit`, or `none`. Only administrators may set
        the `owner`.
        """
        return SyncScheduleHandle(
            self._loop,
            self._loop.run(
                self._handle.create_schedule(
                    cron,
                    text,
                    timezone=timezone,
                    agent=agent,
                    session_id=session_id,
                    title=title,
                    overlap=overlap,
                    catch_up=catch_up,
                    catch_up_limit=catch_up_limit,
                    id=id,
                    owner=owner,
                )
            ),
        )

    def schedule(self, id: str) -> "SyncScheduleHandle":
        """Return a handle on a schedule."""
        return SyncScheduleHandle(self._loop, self._handle.schedule(id))

    def schedules(self, *, owner: str | None = None) -> Generator[ScheduleInfo, None, None]:
        """Yield the schedules, in the order of their ids. `owner` is ignored unless you are an administrator."""
        return self._loop.iterate(self._handle.schedules(owner=owner))

    def create_subscription(
        self,
        url: str,
        kinds: Sequence[NoticeKind],
        *,
        agents: Sequence[str] = (),
        sessions: Sequence[str] = (),
        content: bool = False,
        everyone: bool = False,
        secret: str | None = None,
        owner: str | None = None,
    ) -> SubscriptionSecret:
        """Create a subscription: notices are sent to a webhook. The result has the secret to verify them with.

        With `content` they have texts of the session. Only administrators may subscribe to the sessions of `everyone`, or set the `owner`.
        """
        return self._loop.run(
            self._handle.create_subscription(
                url,
                kinds,
                agents=agents,
                sessions=sessions,
                content=content,
                everyone=everyone,
                secret=secret,
                owner=owner,
            )
        )

    def subscription(self, id: str) -> "SyncSubscriptionHandle":
        """Return a handle on a subscription."""
        return SyncSubscriptionHandle(self._loop, self._handle.subscription(id))

    def subscriptions(self, *, owner: str | None = None) -> Generator[SubscriptionInfo, None, None]:
        """Yield the subscriptions, in the order of their creation. `owner` is ignored unless you are an administrator."""
        return self._loop.iterate(self._handle.subscriptions(owner=owner))

    def usage(
        self,
        by: Collection[UsageGroup] = ("day",),
        *,
        first: date | None = None,
        last: date | None = None,
        owner: str | None = None,
        agent: str | None = None,
        model: str | None = None,
        session_id: str | None = None,
    ) -> Generator[UsageInfo, None, None]:
        """Yield the usage of each day, owner, agent, model or session, or of a combination of these; with an empty `by`, one sum of all.

        `first` and `last` are the days to include, in UTC. `owner` is ignored unless you are an administrator.
        """
        return self._loop.iterate(
            self._handle.usage(
                by, first=first, last=last, owner=owner, agent=agent, model=model, session_id=session_id
            )
        )

    def set_budget(
        self,
        per: Per,
        name: str = "",
        *,
        daily: bool = False,
        requests: int | None = None,
        tokens: int | None = None,
        cost: float | None = None,
        seconds: float | None = None,
    ) -> BudgetChanged:
        """Set the budget of one session, its turns, an owner, an agent or the store, which has no name. For administrators.

        Sessions that wait for it continue if it allows that. `cost` is in dollars.
        """
        return self._loop.run(
            self._handle.set_budget(
                per, name, daily=daily, requests=requests, tokens=tokens, cost=cost, seconds=seconds
            )
        )

    def remove_budget(self, per: Per, name: str = "", *, daily: bool = False) -> BudgetChanged:
        """Remove a budget that an administrator has set. Those of the settings and of agents apply again. For administrators."""
        return self._loop.run(self._handle.remove_budget(per, name, daily=daily))

    def budgets(
        self, *, per: Per | None = None, name: str | None = None
    ) -> Generator[BudgetInfo, None, None]:
        """Yield the budgets that administrators have set, with what was used: all, or those of your owner name."""
        return self._loop.iterate(self._handle.budgets(per=per, name=name))

    def inbox(self) -> Inbox:
        """Return the sessions that wait for a person, longest wait first."""
        return self._loop.run(self._handle.inbox())

    def media(self, sha256: str) -> bytes:
        """Return the content with this SHA-256. A session that you can read must refer to it."""
        return self._loop.run(self._handle.media(sha256))

    def me(self) -> Me:
        """Return your owner name, your role and scopes, and the agents of the API server."""
        return self._loop.run(self._handle.me())

    def workers(self) -> list[WorkerInfo]:
        """Return the workers, and other processes that hold sessions."""
        return self._loop.run(self._handle.workers())

    def audit(self, *, session_id: str | None = None) -> Generator[AuditRecord, None, None]:
        """Yield the audit log, newest first, of all sessions or of one. For administrators."""
        return self._loop.iterate(self._handle.audit(session_id=session_id))

    def sweep(self, *, dry_run: bool = False, limit: int = 1000) -> SweepResult:
        """Apply the retention policies to the sessions that are due. For administrators."""
        return self._loop.run(self._handle.sweep(dry_run=dry_run, limit=limit))

    def ready(self) -> Health:
        """Return whether the store is available and has the current schema. Raises an error if not."""
        return self._loop.run(self._handle.ready())

    def server_info(self) -> ServerInfo:
        """Return the version of the API server, and how long it has been running."""
        return self._loop.run(self._handle.server_info())

    def metrics(self) -> str:
        """Return the metrics in Prometheus format."""
        return self._loop.run(self._handle.metrics())


@contextmanager
def connect_sync(
    url: str | Store | None = None,
    *,
    token: str | None = None,
    agents: "Agents | None" = None,
    actor: str = "",
    upgrade: bool = True,
    timeout: float = 30.0,
) -> Generator[SyncClient, None, None]:
    """Connect like `holdfast.connect`, for code that does not use asyncio. Every method blocks until it has a result."""
    loop = EventLoop()
    try:
        with loop.entered(
            connect(url, token=token, agents=agents, actor=actor, upgrade=upgrade, timeout=timeout)
        ) as client:
            yield SyncClient(loop, client)
    finally:
        loop.close()
