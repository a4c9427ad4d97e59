"""The open questions of a session, and the recorded answers. Independent of Pydantic AI, so that commands start fast."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Any, Final, TypeVar, cast

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from holdfast.api.models import EffectInfo
from holdfast.errors import BadInput, Conflict
from holdfast.jsontext import read_recorded, strict_json
from holdfast.store import Store
from holdfast.types import Effect, Event, Json, Run, Session, Submission, SubmissionChange

ANSWERED = "approval_answered"
DEADLINE: Final = "deadline"
"""The author of an answer that was recorded because no person gave one in time."""
C = TypeVar("C", bound=Effect | EffectInfo)
_BEGIN = ("step_started", "undo_started", "tool_call_started", "tool_call_completed")
"""The events that show whether a call of the current run is running."""
DEEPEST: Final = 50
"""How many levels of delegates a question passes."""
_RECENT_EVENTS = 2000
"""How many events back a repeated answer is recognized."""
_REUSED = re.compile(r"(?<=[^/])~[0-9]+$")
"""The number of a call whose id was used before."""


@dataclass(frozen=True, slots=True, kw_only=True, config=ConfigDict(extra="forbid"))
class ApprovalAnswer:
    """A person's decision on one call."""

    call_id: str
    digest: str
    approved: bool
    feedback: str | None = None
    arguments: dict[str, Any] | None = None
    by: str | None = field(default=None, compare=False)
    """The person who decided. The same decision by another person is the same answer."""

    def as_json(self) -> Json:
        """Return the payload of its event."""
        given = {"feedback": self.feedback, "arguments": self.arguments, "by": self.by}
        facts = {name: value for name, value in given.items() if value is not None}
        return strict_json(
            {"call_id": self.call_id, "digest": self.digest, "approved": self.approved, **facts}, "answer"
        )


_ANSWER = TypeAdapter(ApprovalAnswer)


def already_answered(answer: ApprovalAnswer) -> str:
    """Return the reason why another answer to the same question is refused."""
    if answer.by == DEADLINE:
        decided = "approved" if answer.approved else "denied"
        return f"the deadline of call {answer.call_id} has passed, and it was {decided} by default"
    return f"call {answer.call_id} already has a different answer"


def parse_answers(payload: Mapping[str, Any]) -> list[ApprovalAnswer]:
    """Return the answers in a submission: one, or a list of `answers`."""
    items: Any = payload.get("answers", [payload])
    if not isinstance(items, list) or not items:
        raise BadInput(problem="`answers` must be a list with at least one answer")
    return [_parse(item) for item in cast("list[object]", items)]


def _parse(item: object) -> ApprovalAnswer:
    try:
        return _ANSWER.validate_json(json.dumps(item), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the answer"
        raise BadInput(
            problem=f"{where}: {first['msg']}. An answer requires `call_id`, `digest` and `approved`"
        ) from None


async def waiting_turn(store: Store, session_id: str) -> Submission | None:
    """Return the submission whose turn waits for a person."""
    page = await store.submissions(session_id, state="waiting", payloads=False, limit=1)
    return page.items[0] if page.items else None


def requeued(waiting: Submission) -> SubmissionChange:
    """Return the change that lets a waiting turn continue. The attempt that ended with the question does not count."""
    attempts = max(waiting.attempts - 1, 0)
    return SubmissionChange(id=waiting.id, state="queued", run_id=waiting.run_id, attempts=attempts)


async def pending_approvals(store: Store, session_id: str) -> list[dict[str, Any]]:
    """Return the open questions of a session: the calls that have no answer yet."""
    waiting = await waiting_turn(store, session_id)
    if waiting is None or waiting.run_id is None:
        return []
    run = await store.run(waiting.run_id)
    return list((await read_questions(store, session_id, [run])).open.values())


async def open_questions(store: Store, session: Session) -> list[dict[str, Any]]:
    """Return the open questions of a session. Those of a delegate are recorded in the session at the root of its tree."""
    if session.status != "waiting":
        return []
    root = await root_of(store, session)
    questions = await pending_approvals(store, root.id)
    if root.id == session.id:
        return questions
    return [
        {**question, "call_id": question["origin"]["call_id"], "origin": None}
        for question in questions
        if _origin(question)[0] == session.id
    ]


async def addressee(store: Store, session: Session, call_id: str) -> tuple[str, str]:
    """Return the session that processes the answer to a question, and the id of the call there.

    Raises `Conflict` if a delegate's session does not wait for it: often no worker serves that session, so the answer would stay queued.
    """
    root = await root_of(store, session)
    if root.id != session.id:
        for question in await pending_approvals(store, root.id):
            if _origin(question) == (session.id, call_id):
                return root.id, question["call_id"]
        if await waiting_turn(store, session.id) is None:
            raise Conflict(problem=f"call {call_id} of session {session.id} does not wait for a decision")
    return session.id, call_id


def _origin(question: Mapping[str, Any]) -> tuple[str, str]:
    """Return the session that a question comes from, and the id of the call there; empty if it comes from the session's own agent."""
    origin: dict[str, str] = question.get("origin") or {"session_id": "", "call_id": ""}
    return origin["session_id"], origin["call_id"]


async def root_of(store: Store, session: Session) -> Session:
    """Return the session at the root of the tree of delegates that a session belongs to."""
    for _ in range(DEEPEST):
        if session.parent_id is None:
            break
        session = await store.session(session.parent_id)
    return session


async def unended_calls(store: Store, session: Session) -> tuple[list[Effect], list[Effect]]:
    """Return the calls and steps of a session that run now, and those whose outcome is unknown.

    A call that was cut off and runs again stays an entry of the run that made it.
    """
    ended = (await store.find_runs(session_id=session.id, unresolved=True, limit=100)).items
    current = await _current_run(store, session)
    pages = [
        await store.effects(session.id, run_id=run.id, unresolved=True)
        for run in (*ended, *([] if current is None else [current]))
    ]
    calls = [effect for page in pages for effect in page.items if effect.result is None]  # the others wait
    events: list[tuple[str, Any]] = []
    if current is not None:
        after = current.first_seq - 1
        while page := await store.events(session.id, after=after, run_id=current.id):
            after = page[-1].seq
            events += [(event.kind, json.loads(event.payload)) for event in page if event.kind in _BEGIN]
    return split_calls(calls, None if current is None else current.id, events)


async def _current_run(store: Store, session: Session) -> Run | None:
    """Return the run of a session that a live process runs."""
    if session.status != "running":
        return None
    runs = (await store.find_runs(session_id=session.id, limit=10)).items
    return next((run for run in runs if run.status == "running"), None)


def split_calls(
    calls: Iterable[C], run_id: str | None, events: Iterable[tuple[str, Any]]
) -> tuple[list[C], list[C]]:
    """Return the calls that run now, and the others. `events` are those of the current run, as their kind and payload."""
    begun: set[str] = set()  # the numbers of calls with a reused id are left out
    for kind, payload in events:
        if kind in {"step_started", "undo_started"}:
            begun.add(payload["call_id"])
        elif kind in _BEGIN:
            entry = {payload["call_id"].replace("/", "%2F")}
            begun = begun - entry if payload.get("outcome") == "unknown" else begun | entry
    running: list[C] = []
    others: list[C] = []
    for call in calls:
        is_begun = begun & {call.call_id, _REUSED.sub("", call.call_id)}
        (running if call.run_id == run_id or is_begun else others).append(call)
    return running, others


@dataclass(slots=True, kw_only=True)
class Questions:
    """The questions of a turn since the model last responded, and their recorded answers, both by call id."""

    asked: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    answers: dict[str, ApprovalAnswer] = field(default_factory=dict[str, ApprovalAnswer])

    @property
    def open(self) -> dict[str, dict[str, Any]]:
        """The questions without an answer."""
        return {call_id: call for call_id, call in self.asked.items() if call_id not in self.answers}


async def read_questions(store: Store, session_id: str, chain: Iterable[Run]) -> Questions:
    """Return the questions and answers of a run and of the runs that it continues.

    An answer is for one question. It expires when the call is asked about again, and when the model has responded since, because
    models reuse call ids for other calls. A turn that has ended and is retried asks its questions anew.
    """
    found = Questions()
    for run in reversed(list(chain)):
        after = run.first_seq - 1
        while page := await store.events(session_id, after=after, run_id=run.id):
            after = page[-1].seq
            for event in page:
                _read(found, event)
    return found


def _read(found: Questions, event: Event) -> None:
    match event.kind:
        case "approval_answered":
            answer = _recorded(event)
            found.answers.setdefault(answer.call_id, answer)
        case "approval_requested":
            found.asked = {call["call_id"]: call for call in json.loads(event.payload)["calls"]}
            for call_id in found.asked:
                found.answers.pop(call_id, None)
        case "approval_reminder":
            reminder = json.loads(event.payload)
            if (question := found.asked.get(reminder["call_id"])) is not None:
                question |= {"reminders": reminder["number"], "deadline": reminder["next"]}
        case "run_failed" | "run_interrupted":
            found.asked.clear()
        case _:
            if event.message is not None and read_recorded(event.message).get("kind") == "response":
                found.asked.clear()
                found.answers.clear()


def _recorded(event: Event) -> ApprovalAnswer:
    """Return the answer that an event records, without the note that it was the result of a call that ran outside."""
    facts = json.loads(event.payload)
    facts.pop("external", None)
    return _parse(facts)


async def is_repeated(store: Store, session_id: str, answer: ApprovalAnswer, *, before: int) -> bool:
    """Return whether this answer was already given, to a question that is no longer open, shortly before event `before`.

    Raises `Conflict` if that question has a different answer. Its call id alone does not identify it: models reuse call ids.
    """
    after, latest = max(0, before - _RECENT_EVENTS), None
    while (page := await store.events(session_id, after=after)) and after < before:
        after = page[-1].seq
        for event in page:
            if event.kind == ANSWERED:
                given = _recorded(event)
                if (given.call_id, given.digest) == (answer.call_id, answer.digest):
                    latest = given
    if latest is not None and latest != answer:
        raise Conflict(problem=already_answered(latest))
    return latest is not None
