"""Build an archive from messages, states and metadata in JSON lines, for systems without their own importer.

Each line is an object with one key. See docs/how-to/move-in.md for an example.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Final, cast

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_ai.messages import ModelMessage, ModelResponse

from holdfast.errors import BadImport
from holdfast.ids import new_id
from holdfast.importers.report import microseconds
from holdfast.importers.session import Body, SessionDraft, message_of
from holdfast.jsontext import lenient_json
from holdfast.retention.archive import archive_of
from holdfast.types import Json

SYSTEM: Final = "json-lines"
_TIME: Final = TypeAdapter(datetime)


class _Line(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _SessionLine(_Line):
    id: Annotated[str, Field(default_factory=new_id)]
    agent: str
    owner: str = "local"
    title: str = ""
    metadata: dict[str, Any] = {}
    created_at: AwareDatetime | None = None


class _StateLine(_Line):
    name: str | None = None
    value: Any


class _BuildLine(_Line):
    session: _SessionLine | None = None
    message: dict[str, Any] | None = None
    state: _StateLine | None = None


_LINE: Final = TypeAdapter(_BuildLine)


@dataclass(frozen=True, slots=True)
class _BuildMessage:
    """An imported message, and its time if known."""

    text: Json
    message: ModelMessage
    at: int | None


def build_archive(lines: Iterable[str | bytes], *, source: str = "the input") -> Iterator[bytes]:
    """Yield the archive of the session in these JSON lines. Raise `BadImport` with the number of the invalid line.

    The first line is `{"session": {"agent": …}}`, with optional `id`, `owner`, `title`, `metadata` and `created_at`. Each
    `{"message": …}` is a message in Pydantic AI's format, in order. `{"state": {"value": …}}` is the agent state, or with
    a `name` one of several. The same lines, with an `id` and a `created_at`, give the same archive.
    """
    session: _SessionLine | None = None
    messages: list[_BuildMessage] = []
    states: list[_StateLine] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"line {number}"
        value = _read(line, source, where)
        if (value.session is None) != (session is not None):
            problem = f"{where}: the session must be on the first line, and only there"
            raise BadImport(source=source, problem=problem)
        session = session or value.session
        if value.message is not None:
            text = lenient_json(value.message)
            message = message_of(text, source=source, where=where)
            messages.append(_BuildMessage(text, message, _time(value.message, source, where)))
        if value.state is not None:
            if any(value.state.name == state.name for state in states):
                raise BadImport(source=source, problem=f"{where}: this state is duplicated")
            states.append(value.state)
    if session is None:
        raise BadImport(source=source, problem="it has no session")
    _refuse_open_calls([each.message for each in messages], source)
    yield from archive_of(_draft(session, messages, states, source).rows())


def _read(line: str | bytes, source: str, where: str) -> _BuildLine:
    try:
        value = _LINE.validate_json(line)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        problem = f"{where}: {place}{': ' if place else ''}{first['msg']}"
        raise BadImport(source=source, problem=problem) from None
    if len(value.model_fields_set) != 1:
        raise BadImport(source=source, problem=f"{where}: pass exactly one of session, message and state")
    return value


def _refuse_open_calls(messages: Iterable[ModelMessage], source: str) -> None:
    """Raise `BadImport` if a tool call has no result: its outcome would be unknown."""
    calls: dict[str, str] = {}
    for message in messages:
        if isinstance(message, ModelResponse):
            calls |= {call.tool_call_id: call.tool_name for call in message.tool_calls}
            continue
        for part in message.parts:
            calls.pop(getattr(part, "tool_call_id", ""), None)
    for call_id, tool in calls.items():
        problem = f"the call {call_id} of the tool {tool} has no result; add a message with its result"
        raise BadImport(source=source, problem=problem)


def _draft(
    session: _SessionLine, messages: list[_BuildMessage], states: list[_StateLine], source: str
) -> SessionDraft:
    draft = SessionDraft(
        session.id,
        source=source,
        system=SYSTEM,
        agent=session.agent,
        owner=session.owner,
        title=session.title,
        metadata=lenient_json(session.metadata),
    )
    known = next((each.at for each in messages if each.at is not None), None)
    at = microseconds(datetime.now(UTC)) if known is None else known
    at = at if session.created_at is None else microseconds(session.created_at)
    draft.event("imported", at, {"system": SYSTEM})
    if messages:
        at = _add_run(draft, session, messages, at)
    for state in states:
        body = lenient_json(state.value)
        if state.name is None:
            draft.add("states", version=1, body=body, at=at)
        else:
            draft.add("named_states", name=state.name, version=1, body=body, at=at)
    return draft


def _add_run(draft: SessionDraft, session: _SessionLine, messages: list[_BuildMessage], at: int) -> int:
    """Add the messages as the history of one completed run, and return its end time."""
    run_id = f"{SYSTEM}-{session.id}"[:128]
    facts = {"agent": session.agent, "parent": None}
    began, first = at, draft.event("run_started", at, facts, run_id=run_id)
    segment, places = draft.history.add([Body(each.text) for each in messages])
    for each, place in zip(messages, places, strict=True):
        at = max(at, each.at or 0)
        draft.event("message", at, run_id=run_id, message=place)
    draft.checkpoint(at, "settled", segment, len(places), run_id=run_id, step=None)
    draft.event("run_completed", at, run_id=run_id)
    metadata: Mapping[str, str] = {"imported_from": SYSTEM}
    draft.add(
        "runs",
        id=run_id,
        parent_id=None,
        agent=session.agent,
        status="completed",
        error=None,
        metadata=lenient_json(metadata),
        first_seq=first,
        started_at=began,
        ended_at=at,
    )
    return at


def _time(message: Mapping[str, Any], source: str, where: str) -> int | None:
    """Return the time of a message, or the latest time of its parts."""
    parts: Any = message.get("parts")
    given: list[Any] = [message, *(parts if isinstance(parts, list) else [])]
    times = [cast("dict[str, Any]", each).get("timestamp") for each in given if isinstance(each, dict)]
    try:
        return max((microseconds(_TIME.validate_python(time)) for time in times if time), default=None)
    except ValidationError:
        raise BadImport(source=source, problem=f"{where}: a timestamp is not a valid date and time") from None
