"""One session on a worker: what was asked of it, in order, and what overtakes.

Whatever is carried out ends in one batch together with its submission. What is cut off leaves the submission where it
was, and whoever takes the session next goes on from the recorded frontier.
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_ai import Agent, DeferredToolRequests
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    UserContent,
    UserPromptPart,
)

from holdfast.counting import count
from holdfast.errors import (
    AgentExited,
    BadInput,
    Conflict,
    HoldfastError,
    LeaseLost,
    NotFound,
    StoreError,
)
from holdfast.ids import new_id
from holdfast.jsontext import strict_json
from holdfast.logs import log_context
from holdfast.record.capability import Holdfast
from holdfast.record.forking import fork
from holdfast.record.history import History
from holdfast.record.offloader import MediaOffloader
from holdfast.record.recovery import ResumePoint, find_resume_point, know_tools, last_prompt
from holdfast.record.validity import pending_calls
from holdfast.runtime import approvals
from holdfast.runtime.agents import AgentSetup
from holdfast.runtime.attachment import UNWATCHED, Attachment, attachment, detached
from holdfast.runtime.credentials import Credentials
from holdfast.runtime.drafts import Drafting
from holdfast.runtime.turn import Steered, Stop, Turn
from holdfast.store import Store
from holdfast.tracing import TURN, span
from holdfast.types import (
    Batch,
    Checkpoint,
    NewEvent,
    Run,
    Session,
    State,
    Submission,
    SubmissionChange,
    Work,
)

_LOOK_SECONDS = 1.0
"""A lost hint costs this much."""
_SHORT_SECONDS = 0.05
"""A turn that is over within this needs no look at the inbox. So much later is what overtakes noticed, at most."""
_CUT_OFF_SECONDS = 1.0
"""How long the code of an agent that is cancelled may take to end. What it does later is not recorded."""
_CONTENT: TypeAdapter[list[UserContent]] = TypeAdapter(list[UserContent])
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionContext:
    """What a tool can know of the session that it runs in, and the state it keeps there."""

    session: Session
    store: Store
    keys: str | None = field(default=None, repr=False)

    async def credential(self, name: str) -> str | None:
        """Return a credential of the session, opened; None if there is none, or it has expired."""
        return await Credentials(self.store, self.keys).get(self.session.id, name)

    async def state(self) -> State:
        """Return the agent state of the session."""
        return await self.store.state(self.session.id)

    async def set_state(self, body: object, *, expected: int) -> State:
        """Replace the agent state; raises `VersionConflict` if it is not at version `expected`."""
        return await self.store.set_state(self.session.id, strict_json(body, "state"), expected=expected)


_current: ContextVar[SessionContext | None] = ContextVar("holdfast_session", default=None)


def current_session() -> SessionContext | None:
    """Return the session that the calling tool runs in; None outside of a worker."""
    return _current.get()


class SessionRunner:
    """Carries out what was asked of one session, for as long as the lease is held."""

    def __init__(
        self,
        store: Store,
        work: Work,
        agents: Mapping[str, AgentSetup],
        *,
        max_attempts: int = 5,
        credential_key: str | None = None,
    ) -> None:
        self._store = store
        self._work = work
        self._lease = work.lease
        self._agents = agents
        self._max_attempts = max_attempts
        self._credential_key = credential_key
        self._turn: Turn | None = None
        self._reason: str | None = None  # why the session is handed over
        self._left = 0  # how much may still be taken
        self._steering = False  # whether a message wants to enter the turn

    def hand_over(self, reason: str) -> None:
        """Stop at the next settled point; another worker goes on."""
        self._reason = self._reason or reason
        if self._turn is not None:
            self._turn.draining = True

    def stop(self, why: Stop) -> None:
        """Stop what is running, wherever it is."""
        if why == "handover":
            self._reason = self._reason or "shutdown"
        if self._turn is not None:
            self._turn.cancel(why)
        if why == "lost":
            self._lease.lost = True

    async def serve(self) -> None:
        """Take one submission after the other until none is left of those that waited in the beginning."""
        if self._lease.taken_from is not None:
            await self._tell("takeover", taken_from=self._lease.taken_from)
        session: Session | None = self._work.session
        submission = self._work.submission
        waiting = session.status == "waiting"
        # What comes meanwhile is seen when the session is let go: then it is ready again.
        self._left = session.pending
        while self._left > 0 and self._reason is None and not self._lease.lost:
            self._left -= 1
            if submission is None:
                submission = await self._store.take(
                    self._lease, lane="control" if waiting else None, max_attempts=self._max_attempts
                )
            if submission is None:
                return
            waiting = await self._carry_out(submission, session)
            session = submission = None  # what was read before the first one may be old now

    @property
    def _session_id(self) -> str:
        return self._lease.session_id

    async def _carry_out(self, submission: Submission, session: Session | None) -> bool:
        """Do what is asked, and say whether the session waits for a person now. Whatever fails, fails visibly."""
        facts = {"session_id": self._session_id, "submission_id": submission.id}
        try:
            with span(f"holdfast {submission.kind}", TURN, within=submission.trace, **facts):
                if submission.kind == "message":
                    return await self._message(
                        submission, session or await self._store.session(self._session_id)
                    )
                return await self._other(submission)
        except (LeaseLost, StoreError):
            raise  # not its fault: whoever takes the session next goes on
        except HoldfastError as error:
            if self._lease.lost:
                raise
            await self._end(submission, "failed", str(error))
        except BaseException as error:
            if _is_closing(error):
                raise
            _log.exception("submission %s of session %s failed", submission.id, self._session_id)
            await self._end(submission, "failed", f"{type(error).__name__}: {error}")
        return (await self._store.session(self._session_id)).status == "waiting"

    # A turn

    async def _message(self, submission: Submission, session: Session) -> bool:
        setup = self._setup(session)
        content = parse_content(submission)
        if self._work.fresh and submission == self._work.submission and submission.run_id is None:
            place = ResumePoint(messages=[])
        else:
            place = await find_resume_point(self._store, self._session_id, submission.run_id)
        turn = Turn(
            lease=self._lease,
            submission_id=submission.id,
            take_steered=self._steered,
            checkpoint=place.checkpoint,
            recorded=place.recorded,
            last=self._left == 0,
            limit=setup.run_timeout,
            began_at=_began_at(submission),
        )
        if place.chain:
            turn.replaces, turn.recovered = _replaced(place.chain[0])
        given = await approvals.given_answers(self._store, self._session_id, place.chain)
        if place.begun:
            know_tools(setup.agent, place.messages)
        attached = attachment(session.metadata)
        recording = Holdfast(
            self._store,
            agent=session.agent,
            owner=session.owner,
            metadata={"resumes": place.chain[0].id} if place.chain else {},
            policies=setup.policies,
            host=turn,
        )
        log_context(lambda: {"session_id": self._session_id, "run_id": turn.run_id})
        model = _model(session, setup)

        async def running() -> Any:
            return await setup.agent.run(
                None if place.begun else content,
                message_history=place.messages,
                deferred_tool_results=approvals.results(place.messages, given) if place.begun else None,
                conversation_id=self._session_id,
                output_type=_output_type(setup.agent),
                model=model,
                deps=await setup.make_deps(session),
                capabilities=[recording],
                event_stream_handler=(
                    Drafting(self._store, self._lease) if setup.can_stream(model) else None  # pyright: ignore[reportArgumentType]
                ),
            )

        return await self._run(turn, session, running(), submission, attached)

    async def _run(
        self,
        turn: Turn,
        session: Session,
        running: Awaitable[Any],
        submission: Submission,
        attached: Attachment | None,
    ) -> bool:
        task = await self._attend(turn, session, running, attached)
        error = turn.failed or (None if task.cancelled() else task.exception())
        how = turn.stop or ("completed" if error is None else f"failed, {type(error).__name__}")
        _log.info("the run ended: %s", "waits for answers" if turn.waits else how)
        outcome = "waiting" if turn.waits else turn.stop or ("completed" if error is None else "failed")
        count("runs", outcome=outcome)
        if turn.ended:
            return turn.waits
        if not await self._gave_up(turn, submission, error):
            said = (
                "CancelledError: the agent's code cancelled the run"
                if error is None
                else f"{type(error).__name__}: {error}"
            )
            _log.warning("session %s: the run failed before it began", self._session_id, exc_info=error)
            await self._end(submission, "failed", said)
        return False

    async def _attend(
        self, turn: Turn, session: Session, running: Awaitable[Any], attached: Attachment | None = None
    ) -> "asyncio.Task[Any]":
        """Run the code of an agent until it has ended, and stop it when somebody or its time limit asks for that."""
        token = _current.set(SessionContext(session=session, store=self._store, keys=self._credential_key))
        turn.task = task = asyncio.ensure_future(_contained(running))
        _current.reset(token)
        self._turn = turn
        turn.draining = self._reason is not None
        minding: list[asyncio.Task[None]] = []
        if attached is not None:
            minding.append(asyncio.create_task(self._mind_watchers(turn, attached)))
        try:
            if session.pending == 1:  # nothing else was there a moment ago
                await asyncio.wait([task], timeout=_SHORT_SECONDS)
            if not task.done():
                minding.append(asyncio.create_task(self._mind_inbox(turn)))
                await asyncio.wait([task], timeout=turn.limit)
            if not task.done():
                turn.cancel("timeout")
                await asyncio.wait([task])
            if turn.recording is not None:
                await asyncio.wait([turn.recording])
        except asyncio.CancelledError:
            turn.cancel("lost")  # we are stopped ourselves: leave everything as it is
            await asyncio.wait([task], timeout=_CUT_OFF_SECONDS)
            raise
        finally:
            self._turn = None
            for task_beside in minding:
                task_beside.cancel()
            await asyncio.gather(*minding, return_exceptions=True)
        return task

    async def _gave_up(self, turn: Turn, submission: Submission, error: BaseException | None) -> bool:
        """Do what follows from the reason why code of an agent was stopped; say whether there was one."""
        if turn.stop == "lost" or self._lease.lost:
            self._lease.lost = True
        elif isinstance(error, StoreError):
            raise error
        elif turn.stop == "handover":
            await self._hand_over(turn, submission)
        elif turn.stop == "interrupt":
            await self._end(submission, "failed", "interrupted")
        elif turn.stop == "timeout":
            await self._end(submission, "failed", f"TimeoutError: {turn.timed_out()}")
        else:
            return False
        return True

    async def _hand_over(self, turn: Turn, submission: Submission) -> None:
        """Say why, and give back what is not done: as if it had not been taken."""
        reason = self._reason or "shutdown"
        self._reason = reason
        if reason in {UNWATCHED, "background"}:
            session = await self._store.session(self._session_id)
            if (metadata := detached(session.metadata)) is not None:
                await self._store.update_session(session.id, metadata=metadata)
        ended: list[Run] = []
        if turn.run_id is not None:
            run = await self._store.run(turn.run_id)
            ended = [replace(run, status="interrupted", error=f"handed over: {reason}")]
        await self._store.write(
            self._lease,
            Batch(
                events=[
                    NewEvent(kind="handover", run_id=turn.run_id, payload=json.dumps({"reason": reason}))
                ],
                runs=ended,
                submissions=[SubmissionChange(id=submission.id, state="queued", run_id=turn.run_id)],
                drafts_done=[turn.run_id] if turn.run_id else [],
                status="idle",
            ),
        )

    async def _mind_watchers(self, turn: Turn, attached: Attachment) -> None:
        """Stop, or hand over, a turn that nobody has watched for as long as the session allows."""
        while True:
            try:
                left = attached.grace - await self._store.unwatched(self._session_id)
            except HoldfastError as error:
                _log.warning("session %s: who watches it is not known: %s", self._session_id, error)
                left = _LOOK_SECONDS
            if left <= 0:
                break
            await asyncio.sleep(min(left, attached.grace / 4) + 0.01)
        _log.info("session %s was not watched for %g s", self._session_id, attached.grace)
        if attached.then == "interrupt":
            turn.cancel("interrupt")
        else:
            self.hand_over(UNWATCHED)

    # What overtakes

    async def _mind_inbox(self, turn: Turn) -> None:
        """Look, while a turn runs, for what must not wait for its end."""
        with self._store.inbox_bell(self._session_id) as bell:
            while True:
                try:
                    await self._look_at_inbox(turn)
                except LeaseLost:
                    turn.cancel("lost")
                    return
                except HoldfastError as error:
                    _log.warning("session %s: the inbox cannot be read: %s", self._session_id, error)
                await bell.wait(_LOOK_SECONDS)

    async def _look_at_inbox(self, turn: Turn) -> None:
        for found in await self._store.urgent(self._session_id):
            if found.lane == "main":
                self._steering = self._steering or found.when_busy == "steer"
                if found.when_busy == "interrupt" and found.created_at >= turn.began_at and turn.stop is None:
                    turn.cancel("interrupt")
                continue
            taken = await self._store.take(self._lease, id=found.id)
            if taken is None:
                continue
            if taken.kind == "interrupt":
                await self._end(taken, "done")
                turn.cancel("interrupt")
            elif taken.kind == "background":
                await self._end(taken, "done")
                self.hand_over("background")
            else:
                reason = "nothing waits for an answer" if taken.kind == "approval" else "a turn is running"
                await self._end(taken, "failed", reason)

    async def _steered(self) -> Sequence[Steered]:
        """Take the messages that are to enter the running turn."""
        if not self._steering:
            return ()
        self._steering = False
        found: list[Steered] = []
        for waiting in await self._store.urgent(self._session_id):
            if waiting.lane == "main" and waiting.when_busy == "steer":
                taken = await self._store.take(self._lease, id=waiting.id)
                if taken is None:
                    continue
                try:
                    content = parse_content(taken)
                except BadInput as error:
                    await self._end(taken, "failed", str(error))
                    continue
                parts = [content] if isinstance(content, str) else content
                found.append(Steered(submission_id=taken.id, content=parts))
        return found

    # Everything else that can be asked

    async def _other(self, submission: Submission) -> bool:
        waiting = (await self._store.session(self._session_id)).status == "waiting"
        match submission.kind:
            case "approval":
                return await self._approval(submission)
            case "interrupt":
                await self._interrupt_waiting(submission)
                return False
            case "undo":
                await self._undo(submission)
            case "rewind":
                await self._rewind(submission)
            case "compact":
                await self._compact(submission)
            case "fork":
                await self._fork(submission)
            case "background":
                await self._end(submission, "done")
            case "shutdown":
                await self._end(submission, "done")
                self._reason = "shutdown"
            case kind:
                raise BadInput(problem=f"a session does not know what {kind!r} is")
        return waiting

    async def _approval(self, submission: Submission) -> bool:
        """Note what a person decided; when nothing is left to be asked, the turn is in the queue again."""
        answers = approvals.parse_answers(_payload(submission))
        waiting = (
            await self._store.submissions(self._session_id, state="waiting", payloads=False, limit=1)
        ).items
        if not waiting or waiting[0].run_id is None:
            raise Conflict(problem="nothing waits for an answer")
        session = await self._store.session(self._session_id)
        place = await find_resume_point(self._store, self._session_id, waiting[0].run_id)
        asked = pending_calls(place.messages)
        given = await approvals.given_answers(self._store, self._session_id, place.chain)
        new = approvals.new_answers(answers, asked=asked, given=given, setup=self._setup(session))
        run_id = waiting[0].run_id
        open_calls = {call.tool_call_id for call in asked} - set(given) - {answer.call_id for answer in new}
        changes = [SubmissionChange(id=submission.id, state="done")]
        batch = Batch(
            events=[
                NewEvent(kind=approvals.ANSWERED, run_id=run_id, payload=answer.as_json()) for answer in new
            ],
            submissions=changes,
        )
        if not open_calls:
            changes.append(SubmissionChange(id=waiting[0].id, state="queued", run_id=run_id))
            batch.status = "idle"
        await self._store.write(self._lease, batch)
        return bool(open_calls)

    async def _interrupt_waiting(self, submission: Submission) -> None:
        """End a turn that waits for a person. Where none does there is nothing to interrupt."""
        waiting = (
            await self._store.submissions(self._session_id, state="waiting", payloads=False, limit=1)
        ).items
        batch = Batch(submissions=[SubmissionChange(id=submission.id, state="done")], status="idle")
        for turn in waiting:
            change = SubmissionChange(id=turn.id, state="failed", reason="interrupted")
            batch.submissions = [*batch.submissions, change]
            if turn.run_id is not None:
                run = await self._store.run(turn.run_id)
                batch.runs = [replace(run, status="interrupted", error="interrupted")]
                batch.events = [NewEvent(kind="run_interrupted", run_id=run.id)]
        await self._store.write(self._lease, batch)

    async def _undo(self, submission: Submission) -> None:
        """Go back to before the last thing the user said."""
        latest = (await self._store.checkpoints(session_id=self._session_id, limit=1)).items
        said = await last_prompt(self._store, latest[0]) if latest else None
        if said is None:
            raise Conflict(problem="there is nothing to undo")
        await self._go_to(submission, latest[0].segment, said)

    async def _rewind(self, submission: Submission) -> None:
        checkpoint = await self._checkpoint(_payload(submission))
        await self._go_to(submission, checkpoint.segment, checkpoint.length, kind=checkpoint.kind)

    async def _go_to(self, submission: Submission, segment: int, length: int, **kind: Any) -> None:
        place = Checkpoint(id=new_id(), segment=segment, length=length, **kind)
        payload = json.dumps({"by": submission.kind, "length": length})
        await self._end(
            submission, "done", checkpoints=[place], events=[NewEvent(kind="rewound", payload=payload)]
        )

    async def _compact(self, submission: Submission) -> None:
        """Replace the history by a shorter one. What was there stays on record."""
        place = await find_resume_point(self._store, self._session_id, None)
        if place.checkpoint is None or len(place.messages) != place.checkpoint.length:
            raise Conflict(problem="there is nothing to compact, or a run was cut off: send a message first")
        session = await self._store.session(self._session_id)
        setup = self._setup(session)
        at = place.checkpoint
        turn = Turn(
            lease=self._lease,
            submission_id=submission.id,
            checkpoint=at,
            recorded=place.messages,
            limit=setup.run_timeout,
            began_at=_began_at(submission),
        )
        compact = setup.compact or _summary_by(setup.agent)
        task = await self._attend(turn, session, compact(place.messages))
        if await self._gave_up(turn, submission, None if task.cancelled() else task.exception()):
            return
        shorter = task.result()
        segments = await self._store.segments(self._session_id)
        growth = History(at.segment, len(segments), place.messages).grow(list(shorter))
        new = len(segments) + 1 if growth.segments else at.segment
        payload = json.dumps({"before": len(place.messages), "after": len(shorter)})
        await self._end(
            submission,
            "done",
            segments=growth.segments,
            messages=growth.messages,
            checkpoints=[Checkpoint(id=new_id(), segment=new, length=len(shorter))],
            events=[NewEvent(kind="compacted", payload=payload)],
        )

    async def _fork(self, submission: Submission) -> None:
        payload = _payload(submission)
        checkpoint = await self._checkpoint(payload)
        wanted = payload.get("session_id") or submission.id
        forked = await fork(
            self._store, checkpoint, session_id=wanted, submission_id=submission.id, lease=self._lease
        )
        told = NewEvent(kind="forked", payload=json.dumps({"session_id": forked}))
        await self._end(submission, "done", events=[told])

    async def _checkpoint(self, payload: Mapping[str, Any]) -> Checkpoint:
        """Return the checkpoint that is named, else the last one."""
        if "checkpoint_id" in payload:
            found = await self._store.checkpoint(str(payload["checkpoint_id"]))
            if found.session_id != self._session_id:
                raise NotFound(what=f"checkpoint of session {self._session_id} with the id", id=found.id)
            return found
        latest = (await self._store.checkpoints(session_id=self._session_id, limit=1)).items
        if not latest:
            raise Conflict(problem=f"session {self._session_id} has no history yet")
        return latest[0]

    async def _end(self, submission: Submission, state: Any, reason: str | None = None, **more: Any) -> None:
        change = SubmissionChange(id=submission.id, state=state, reason=reason)
        batch = Batch(submissions=[change], **more)
        await MediaOffloader(self._store).move_out(batch)
        await self._store.write(self._lease, batch)

    async def _tell(self, kind: str, **facts: object) -> None:
        await self._store.write(self._lease, Batch(events=[NewEvent(kind=kind, payload=json.dumps(facts))]))

    def _setup(self, session: Session) -> AgentSetup:
        setup = self._agents.get(session.agent)
        if setup is None:
            raise Conflict(problem=f"this worker does not serve the agent {session.agent!r}")
        return setup


def parse_content(submission: Submission) -> str | list[UserContent]:
    """Return what a message says: its `text`, or the parts of its `content`."""
    payload = _payload(submission)
    text, content = payload.get("text"), payload.get("content")
    if isinstance(text, str) and content is None:
        return text
    if text is None and isinstance(content, list) and content:
        try:
            return _CONTENT.validate_python(content)
        except ValidationError as error:
            first = error.errors()[0]
            raise BadInput(problem=f"`content` has no valid part at {first['loc']}: {first['msg']}") from None
    raise BadInput(problem="a message has either `text` or a list of parts as `content`")


def _payload(submission: Submission) -> dict[str, Any]:
    payload = json.loads(submission.payload)
    if not isinstance(payload, dict):
        raise BadInput(problem=f"the payload of {submission.kind} must be an object")
    return payload  # pyright: ignore[reportUnknownVariableType]


def _is_closing(error: BaseException) -> bool:
    """Tell whether this task is cancelled or closed from outside, as opposed to code of an agent having raised such an error."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no event loop is running
        return True
    if isinstance(error, asyncio.CancelledError):
        return task is None or task.cancelling() > 0
    return task is None


async def _contained(running: Awaitable[Any]) -> Any:
    """Run an agent so that code which ends the process ends only the run: a worker has other sessions."""
    try:
        return await running
    except (SystemExit, KeyboardInterrupt) as error:
        raise AgentExited(what="The agent", error=f"{type(error).__name__}: {error}") from error


def _began_at(submission: Submission) -> datetime:
    """Return when a turn began. One that was cut off began before this attempt: everything that was sent since interrupts it."""
    if submission.attempts > 1 or submission.started_at is None:
        return submission.created_at
    return submission.started_at


def _replaced(run: Run) -> tuple[Run, bool]:
    """Return a run as it is once another goes on for it, and whether it had been cut off."""
    if run.status == "waiting":
        return replace(run, status="completed"), False
    cut_off = run.status == "running"
    return (replace(run, status="interrupted", error="its worker ended") if cut_off else run), cut_off


def _model(session: Session, setup: AgentSetup) -> Any:
    """Return the model that the session's metadata asks for, if the agent allows it."""
    name = json.loads(session.metadata).get("model")
    if name is None:
        return None
    if name not in setup.models:
        allowed = ", ".join(sorted(setup.models)) or "none"
        raise BadInput(problem=f"the session asks for model {name!r}; allowed are: {allowed}")
    return setup.models[name]


def _output_type(agent: Agent[Any, Any]) -> Any:
    """Return the agent's output type and, beside it, that tools may wait for a person.

    An agent with output validators runs only with its own output type.
    """
    if getattr(agent, "_output_validators", None):
        return None
    own: Any = agent.output_type
    kinds: list[Any] = [*own] if isinstance(own, list | tuple) else [own]
    return kinds if DeferredToolRequests in kinds else [*kinds, DeferredToolRequests]


def _summary_by(agent: Agent[Any, Any]) -> Any:
    async def compact(messages: Sequence[ModelMessage]) -> Sequence[ModelMessage]:
        asked = "Summarize this conversation for yourself: goals, decisions, facts, open points. Be brief."
        result = await Agent(agent.model).run(asked, message_history=messages)
        said = f"Summary of the conversation so far:\n\n{result.output}"
        return [ModelRequest(parts=[UserPromptPart(said)]), ModelResponse(parts=[TextPart("Understood.")])]

    return compact
