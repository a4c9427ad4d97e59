"""A handle on one session."""

from collections.abc import AsyncGenerator, Sequence
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, overload
from urllib.parse import quote

from pydantic import TypeAdapter

from holdfast.api.models import (
    AgentState,
    ConversationEntry,
    CredentialInfo,
    EventInfo,
    Items,
    ReadCursor,
    RecordInfo,
    RunInfo,
    SessionDetail,
    SessionInfo,
    StateList,
    StateVersion,
)
from holdfast.api.retention import CleanResult, EraseResult, RehydrateResult, RetentionStatus
from holdfast.api.shell import BashOutput, SessionCommand
from holdfast.api.submissions import SubmissionDetail, SubmissionInfo
from holdfast.approval import ApprovalRequest
from holdfast.client.files import write_file
from holdfast.client.output import OutputType
from holdfast.client.stream import follow as follow_session
from holdfast.client.stream import journal, read
from holdfast.client.transport import Transport
from holdfast.client.turn import TurnHandle, no_output
from holdfast.errors import Conflict
from holdfast.ids import check_id, check_time
from holdfast.priority import Priority
from holdfast.types import SubmissionState, WhenBusy

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, UserContent

    from holdfast.events import DraftText, SessionEvent

T = TypeVar("T")


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


class SessionHandle(Generic[T]):
    """One session. `T` is the type of the agent's output.

    A handle holds no connection and no lock. Any number of handles, in any process, can use the same session.
    """

    def __init__(self, transport: Transport, id: str, output: OutputType[T]) -> None:
        self._transport = transport
        self._output = output
        self._path = f"/api/sessions/{check_id(id, 'session id')}"
        self.id: str = id

    def __repr__(self) -> str:
        return f"SessionHandle(id={self.id!r})"

    async def info(self) -> SessionDetail:
        """Return the session as it is now, with the tool calls that wait for a decision in `approvals`."""
        return await self._transport.call(SessionDetail, "GET", self._path)

    async def update(
        self, *, title: str | None = None, hold: bool | None = None, metadata: dict[str, Any] | None = None
    ) -> SessionInfo:
        """Change the title or metadata, or put the session on hold to protect it from retention."""
        given = {"title": title, "hold": hold, "metadata": metadata}.items()
        body = {name: value for name, value in given if value is not None}
        return await self._transport.call(SessionInfo, "PATCH", self._path, json=body)

    async def dismiss(self) -> SessionInfo:
        """Dismiss the failure of the last turn: the session is idle again. If it is not failed, nothing changes."""
        return await self._transport.call(SessionInfo, "POST", f"{self._path}/dismiss")

    async def send(
        self,
        content: "str | Sequence[UserContent]",
        *,
        when_busy: WhenBusy = "queue",
        idempotency_key: str | None = None,
        deliver_at: datetime | None = None,
        priority: Priority = "normal",
    ) -> TurnHandle[T]:
        """Send a message: text, or Pydantic AI user content. When this returns, the message is durable.

        If a turn is running, `when_busy` determines whether to `queue` the message, `steer` or `interrupt` the running turn with it, or
        `reject` it. A second message with the same `idempotency_key` is not queued; the first one is returned. The turn does not start
        before `deliver_at`. Of the sessions of an owner that have to wait, those with a higher `priority` start first.
        """
        body: dict[str, Any] = {"when_busy": when_busy, "priority": priority}
        body["idempotency_key"] = idempotency_key
        if deliver_at is not None:
            body["deliver_at"] = check_time(deliver_at, "deliver_at").isoformat()
        if isinstance(content, str):
            body["text"] = content
        else:
            from pydantic_ai.messages import UserContent

            body["content"] = _adapter(list[UserContent]).dump_python(list(content), mode="json")
        return TurnHandle(self._transport, await self._submit("submissions", body), self._output.parse)

    async def turn(self, id: str) -> TurnHandle[T]:
        """Return a handle on a message that was sent earlier."""
        path = f"{self._path}/submissions/{check_id(id, 'submission id')}"
        accepted = await self._transport.call(SubmissionInfo, "GET", path)
        return TurnHandle(self._transport, accepted, self._output.parse)

    def submissions(
        self, *, state: SubmissionState | None = None, payloads: bool = False
    ) -> AsyncGenerator[SubmissionDetail, None]:
        """Yield the messages and commands that were sent to the session, oldest first."""
        params = {"state": state, "payloads": payloads}
        return self._transport.items(SubmissionDetail, f"{self._path}/submissions", params)

    async def interrupt(self) -> TurnHandle[None]:
        """Stop the running or waiting turn. The next message continues from there."""
        return self._command(await self._submit("interrupt"))

    async def approve(
        self,
        call: str | ApprovalRequest,
        *,
        arguments: dict[str, Any] | None = None,
        feedback: str | None = None,
    ) -> TurnHandle[None]:
        """Approve a tool call that waits for a decision, optionally with other arguments. `call` is the request, or the id of the call.

        Await the returned handle to wait until a worker has recorded the decision. It raises `TurnFailed` if the worker rejected the decision.
        """
        return await self._decide(call, "a decision", approved=True, arguments=arguments, feedback=feedback)

    async def deny(self, call: str | ApprovalRequest, *, feedback: str | None = None) -> TurnHandle[None]:
        """Deny a tool call that waits for a decision. The model receives the feedback."""
        return await self._decide(call, "a decision", approved=False, feedback=feedback)

    async def signal(
        self, name: str, data: Any = None, *, idempotency_key: str | None = None
    ) -> TurnHandle[None]:
        """Send a signal with any JSON data. A tool or agent that waits for it continues; one that waits later receives it then.

        A second signal with the same `idempotency_key` is not delivered; the first one is returned.
        """
        body = {"data": data, "idempotency_key": idempotency_key}
        return self._command(await self._submit(f"signals/{check_id(name, 'signal name')}", body))

    async def tool_result(
        self, call: str | ApprovalRequest, result: Any = None, *, error: str | None = None
    ) -> TurnHandle[None]:
        """Deliver the result of a tool call that ran outside of the agent, or its error. The handle is like that of `approve`."""
        return await self._decide(call, "a result", result=result, error=error)

    async def undo(self) -> TurnHandle[None]:
        """Undo the last message and everything after it."""
        return self._command(await self._submit("undo"))

    async def rewind(self, checkpoint_id: str) -> TurnHandle[None]:
        """Continue from an earlier checkpoint. Later messages stay in the store."""
        return self._command(await self._submit("rewind", {"checkpoint_id": checkpoint_id}))

    async def compact(self) -> TurnHandle[None]:
        """Replace the history with a shorter one. The session's model writes it, unless the agent has a compactor."""
        return self._command(await self._submit("compact"))

    async def background(self) -> TurnHandle[None]:
        """Detach an attached session: its turn continues on a worker when no client watches."""
        return self._command(await self._submit("background"))

    async def fork(
        self,
        checkpoint_id: str | None = None,
        *,
        session_id: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - part of the interface
    ) -> "SessionHandle[T]":
        """Copy the history, up to a checkpoint or to its end, into a new session, and return that session.

        A worker makes the copy. Raises `TimeoutError` if none has done so after `timeout` seconds.
        """
        started = await self.start_fork(checkpoint_id, session_id=session_id)
        await started.result(timeout=timeout)
        return SessionHandle(self._transport, session_id or started.id, self._output)

    async def start_fork(
        self, checkpoint_id: str | None = None, *, session_id: str | None = None
    ) -> TurnHandle[None]:
        """Request the copy that `fork` makes, and return at once. The event `forked` has the id of the new session."""
        body = {"checkpoint_id": checkpoint_id, "session_id": session_id}
        return self._command(await self._submit("fork", body))

    @overload
    def events(
        self, *, after: int = 0, drafts: Literal[False] = False, follow: bool = True
    ) -> "AsyncGenerator[SessionEvent, None]": ...
    @overload
    def events(
        self, *, after: int = 0, drafts: bool, follow: bool = True
    ) -> "AsyncGenerator[SessionEvent | DraftText, None]": ...
    def events(
        self, *, after: int = 0, drafts: bool = False, follow: bool = True
    ) -> "AsyncGenerator[SessionEvent | DraftText, None]":
        """Yield every event after number `after` exactly once: first recorded events, then new ones as they occur.

        The stream resumes automatically after a lost connection or a restarted server, and ends when the session is erased. With
        `drafts` it also yields `DraftText` objects, the text that the model is streaming. Without `follow` it ends at the last
        recorded event. The classes of the events are in `holdfast.events`.
        """
        if not follow:
            return read(self._transport, f"{self._path}/events", after=after)
        return follow_session(self._transport, self.id, after=after, drafts=drafts)

    def journal(self, *, after: int = 0, follow: bool = True) -> AsyncGenerator[EventInfo, None]:
        """Yield the same events as they are stored, without a class for each kind."""
        return journal(self._transport, f"{self._path}/events", after=after, follow=follow)

    async def messages(self) -> "AsyncGenerator[ModelMessage, None]":
        """Yield the history that the next message continues from, as Pydantic AI messages."""
        from pydantic_ai.messages import ModelMessage

        cursor: str | None = "-1"
        while cursor is not None:
            items, cursor = await self._transport.page(f"{self._path}/messages", {"after": cursor})
            for item in items:
                yield _adapter(ModelMessage).validate_python(item["message"])

    def conversation(self) -> AsyncGenerator[ConversationEntry, None]:
        """Yield the conversation of another framework's session. Unrecognized entries have the role `other`."""
        return self._transport.items(ConversationEntry, f"{self._path}/conversation", {})

    def records(self, kind: str, *, prefix: str = "") -> AsyncGenerator[RecordInfo, None]:
        """Yield the records of one kind that another framework stored in the session, ordered by key."""
        return self._transport.stored(RecordInfo, f"{self._path}/records", {"kind": kind, "prefix": prefix})

    def runs(self) -> AsyncGenerator[RunInfo, None]:
        """Yield the runs of the session, oldest first."""
        return self._transport.items(RunInfo, f"{self._path}/runs", {})

    async def state(self, name: str | None = None) -> AgentState:
        """Return the agent state, or the named one, with its version."""
        return await self._transport.call(AgentState, "GET", f"{self._path}/state", params={"name": name})

    async def states(self) -> list[StateVersion]:
        """Return the names and versions of the session's states."""
        return (await self._transport.call(StateList, "GET", f"{self._path}/states")).items

    async def set_state(self, body: Any, *, expected_version: int, name: str | None = None) -> AgentState:
        """Replace the agent state, or the named one, if it is at version `expected_version`; 0 if there is none yet."""
        given = {"body": body, "expected_version": expected_version}
        return await self._transport.call(
            AgentState, "PUT", f"{self._path}/state", json=given, params={"name": name}
        )

    def cursors(self) -> AsyncGenerator[ReadCursor, None]:
        """Yield the stored offsets of the session's consumers."""
        return self._transport.items(ReadCursor, f"{self._path}/cursors", {})

    async def set_cursor(self, consumer: str, seq: int) -> ReadCursor:
        """Store the number of the last event that a consumer has read. Lower numbers are ignored."""
        path = f"{self._path}/cursors/{check_id(consumer, 'consumer')}"
        return await self._transport.call(ReadCursor, "PUT", path, json={"seq": seq})

    def commands(self) -> AsyncGenerator[SessionCommand, None]:
        """Yield the shell commands of the session, newest first."""
        return self._transport.items(SessionCommand, f"{self._path}/commands", {})

    async def command_output(self, command_id: str, *, after: int = -1, limit: int = 50) -> list[BashOutput]:
        """Return the output of a shell command after number `after`."""
        path, params = (
            f"{self._path}/commands/{quote(command_id, safe='', errors='replace')}/output",
            {"after": after, "limit": limit},
        )
        return (await self._transport.call(Items[BashOutput], "GET", path, params=params)).items

    async def set_credential(self, name: str, value: str, *, ttl: float | None = None) -> None:
        """Store a credential for the session's tools, for `ttl` seconds if given. It cannot be read back."""
        body = {"value": value} | ({} if ttl is None else {"ttl": ttl})
        await self._transport.send("PUT", f"{self._path}/credentials/{check_id(name, 'name')}", json=body)

    async def credentials(self) -> list[CredentialInfo]:
        """Return the names of the session's credentials, and when they expire."""
        path = f"{self._path}/credentials"
        return (await self._transport.call(Items[CredentialInfo], "GET", path)).items

    async def delete_credential(self, name: str) -> None:
        """Delete a credential."""
        await self._transport.send("DELETE", f"{self._path}/credentials/{check_id(name, 'name')}")

    def archive(self, *, gzip: bool = False) -> AsyncGenerator[bytes, None]:
        """Yield the session as an archive, piece by piece. Raises `ArchiveFailed` if it cannot be completed."""
        return self._transport.archive(self.id, gzip=gzip)

    async def export(self, path: str | Path, *, gzip: bool = False) -> int:
        """Write the session to an archive file, and return its size.

        The file exists only if it is complete, and only its owner can read it.
        """
        return await write_file(Path(path), self.archive(gzip=gzip))

    async def clean(
        self,
        *,
        idle_days: float = 7.0,
        force: bool = False,
        archive: Literal["media"] | None = None,
        dry_run: bool = False,
    ) -> CleanResult:
        """Delete the content of the session. With `archive="media"` a verified archive stays in the media store."""
        body = {"idle_days": idle_days, "force": force, "archive": archive, "dry_run": dry_run}
        return await self._transport.call(CleanResult, "POST", f"{self._path}/clean", json=body, is_long=True)

    async def rehydrate(self, archive: str | Path | None = None, *, force: bool = False) -> RehydrateResult:
        """Restore a cleaned session from an archive file, or from the archive in the media store."""
        return await self._transport.rehydrate(
            self.id, None if archive is None else Path(archive), force=force
        )

    async def erase(self, *, children: bool = False) -> EraseResult:
        """Erase the session permanently. With `children`, also erase the sessions of its delegate runs."""
        params = {"children": children}
        return await self._transport.call(EraseResult, "DELETE", self._path, params=params, is_long=True)

    async def retention(self) -> RetentionStatus:
        """Return the retention policy that applies to the session, the time when it is due, and anything that prevents it."""
        return await self._transport.call(RetentionStatus, "GET", f"{self._path}/retention")

    async def _submit(self, action: str, body: dict[str, Any] | None = None) -> SubmissionInfo:
        given = {name: value for name, value in (body or {}).items() if value is not None}
        return await self._transport.call(
            SubmissionInfo, "POST", f"{self._path}/{action}", json=given or None
        )

    async def _decide(self, call: str | ApprovalRequest, answer: str, **decision: Any) -> TurnHandle[None]:
        if isinstance(call, str):
            approvals = (await self.info()).approvals
            request = next((request for request in approvals if request.call_id == call), None)
            if request is None:
                raise Conflict(problem=f"call {call!r} of session {self.id} does not wait for {answer}")
            call = request
        body = {"call_id": call.call_id, "digest": call.digest, **decision}
        path = "approvals" if "approved" in decision else "tool-results"
        return self._command(await self._submit(path, body))

    def _command(self, accepted: SubmissionInfo) -> TurnHandle[None]:
        return TurnHandle(self._transport, accepted, no_output)
