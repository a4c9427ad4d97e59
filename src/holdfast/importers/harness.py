"""Import the step stores of pydantic-ai-harness: each conversation becomes a session.

Its runs, events, tool calls and histories are imported too. Content that the harness moved out of messages is restored, and goes
where this store keeps large content.
"""

import base64
import binascii
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, Final, TypeAlias

from pydantic import ValidationError
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, ToolCallPart

from holdfast.errors import BadInput
from holdfast.ids import check_id
from holdfast.importers.harness_media import MARK, MediaRestorer
from holdfast.importers.harness_records import (
    HarnessEffect,
    HarnessEvent,
    HarnessRun,
    HarnessSnapshot,
    R,
    RunPart,
)
from holdfast.importers.harness_sources import Found, HarnessSource, is_object
from holdfast.importers.report import Notes, Progress, Report, microseconds, nothing
from holdfast.importers.session import (
    Body,
    ImportOptions,
    MakeDraft,
    Place,
    SessionDraft,
    import_sessions,
    message_of,
)
from holdfast.jsontext import lenient_json
from holdfast.media import MediaStore
from holdfast.record import ledger
from holdfast.record.open_calls import answers, is_provider_valid
from holdfast.store import Store
from holdfast.types import CheckpointKind, Json, RunStatus

SYSTEM: Final = "pydantic-ai-harness"
_KINDS: Final = frozenset(
    f"{what}_{how}"
    for what in ("run", "model_request", "tool_call")
    for how in ("started", "completed", "failed")
)
_DERIVED: Final = "sp-"
_MARKS: Final = {"timestamp", "run_id", "conversation_id", "instructions"}
"""The fields that Pydantic AI sets on a request when it is sent. A snapshot may have been taken before that."""
_BEHIND: Final = 1_000_000_000
"""Events follow the messages of the same moment."""

Item: TypeAlias = tuple[int, int, int, Callable[[], object]]
"""An entry for the journal: its time, the number of its run, its order within the run, and a function that adds it."""


async def import_harness(
    store: Store,
    media: MediaStore,
    source: HarnessSource,
    *,
    owner: str = "local",
    agent: str | None = None,
    rename: bool = False,
    actor: str,
    dry_run: bool = False,
    progress: Progress = nothing,
) -> Report:
    """Import every new conversation of a step store, which is opened with `open_source`.

    Nothing is imported before everything was read and checked; then each conversation is imported atomically. `agent` is the agent
    that continues the sessions, by default the recorded one; sessions that were imported for another agent are given to it. With `rename`, a conversation whose id is not a valid session id gets a
    new one, derived from its own, which is kept in the metadata. Raises `BadImport`.
    """
    notes = Notes()
    await source.note_unknown(notes)
    conversations: dict[str, list[HarnessRun]] = {}
    for run_id in await source.run_ids():
        run = await _run(source, run_id, rename, notes)
        conversations.setdefault(run.conversation_id or run.run_id, []).append(run)
    drafts: list[MakeDraft] = []
    for session_id, runs in sorted(conversations.items()):
        runs.sort(key=lambda run: (microseconds(run.started_at), run.run_id))
        drafts.append(partial(_draft, source, session_id, runs, owner))
    return await import_sessions(
        store,
        media,
        drafts,
        ImportOptions(
            source=source.name,
            system=SYSTEM,
            agent=agent,
            actor=actor,
            dry_run=dry_run,
            progress=progress,
            notes=notes,
        ),
    )


async def _draft(
    source: HarnessSource, id: str, runs: list[HarnessRun], owner: str, notes: Notes, agent: str | None
) -> SessionDraft:
    return await _Conversation(source, id, runs, owner, agent).draft(notes)


def _read(source: HarnessSource, kind: type[R], found: Found, notes: Notes) -> R:
    """Validate a record as its kind. Raises `BadImport`."""
    where, data = found
    try:
        record = kind.model_validate(data)
    except (ValidationError, ValueError, RecursionError) as error:
        reason = str(error)
        if isinstance(error, ValidationError):
            first = error.errors()[0]
            reason = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise source.bad(f"{where} is damaged or of an unknown version ({reason})") from None
    for name in record.model_extra or ():
        name_of_kind = kind.__name__.removeprefix("Harness").lower()
        notes.add(f"an unknown field of a harness {name_of_kind}: {name}"[:200], where)
    return record


async def _run(source: HarnessSource, run_id: str, rename: bool, notes: Notes) -> HarnessRun:
    """Return the record of a run; if it was never registered, one derived from its other records."""
    found = await source.run(run_id)
    if found is not None:
        run = _read(source, HarnessRun, found, notes)
        if run.run_id != run_id:
            raise source.bad(f"{found[0]} belongs to run {run.run_id!r:.200}, not {run_id}")
    else:
        notes.add("runs that were never registered: derived from their steps", run_id)
        first: HarnessEvent | HarnessSnapshot | None = None
        for event in await source.events(run_id):
            first = _read(source, HarnessEvent, event, Notes())
            break
        if first is None:
            async for snapshot in source.snapshots(run_id):
                first = _read(source, HarnessSnapshot, snapshot, Notes())
                break
        effects = [_read(source, HarnessEffect, each, Notes()) for each in await source.effects(run_id)]
        if first is None and not effects:
            raise source.bad(f"run {run_id} has no records")
        known = {} if first is None else first.model_dump(include=set(RunPart.model_fields) - {"metadata"})
        at = effects[0].started_at if first is None else first.timestamp
        run = HarnessRun.model_validate({**known, "run_id": run_id, "started_at": at})
    for value, what in ((run.run_id, "run id"), (run.parent_run_id, "run id")):
        if value is not None and not _is_id(value):
            raise source.bad(f"run {run_id!r:.200}: {value!r:.200} is not a valid {what}")
    if run.conversation_id is not None and not _is_id(run.conversation_id) and not rename:
        problem = f"{run.conversation_id!r:.200} is not a valid session id; use --rename to give it a new one"
        raise source.bad(problem)
    return run


@dataclass(slots=True)
class _HarnessText:
    """A message of a snapshot, as text and parsed."""

    body: Body
    message: ModelMessage


@dataclass(slots=True)
class _HarnessCalls:
    """The tool calls of the latest histories of a conversation, and where they are answered."""

    made: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    answered: dict[tuple[str, str, int], tuple[Place, datetime]] = field(
        default_factory=dict[tuple[str, str, int], tuple[Place, datetime]]
    )
    answered_in: dict[tuple[str, str], tuple[Place, datetime]] = field(
        default_factory=dict[tuple[str, str], tuple[Place, datetime]]
    )

    def look(self, messages: list[tuple[ModelMessage, Place]], run_id: str) -> None:
        """Record the calls and answers of a snapshot."""
        made: Counter[tuple[str, str]] = Counter()
        origin = run_id
        for message, place in messages:
            if isinstance(message, ModelResponse):
                origin = message.run_id or run_id
                calls = (part.tool_call_id for part in message.parts if isinstance(part, ToolCallPart))
                made.update((origin, call_id) for call_id in calls)
                continue
            for part in answers(message):
                if getattr(part, "outcome", None) == "interrupted":
                    continue  # its outcome is unknown, and this answer only reports that
                self.answered[origin, part.tool_call_id, made[origin, part.tool_call_id]] = (
                    place,
                    part.timestamp,
                )
                self.answered_in[run_id, part.tool_call_id] = (place, part.timestamp)
        self.made.update(made)

    def place(self, run_id: str, call_id: str) -> tuple[str, tuple[Place, datetime] | None]:
        """Return the ledger entry name of a run's latest call with this id, and where and when it is answered."""
        count = self.made.get((run_id, call_id), 0)
        if count:
            return ledger.entry(call_id, count - 1), self.answered.get((run_id, call_id, count))
        return call_id, self.answered_in.get(
            (run_id, call_id)
        )  # made by an earlier run, carried out by this one


class _Conversation:
    """Converts one conversation to a session."""

    def __init__(
        self, source: HarnessSource, id: str, runs: list[HarnessRun], owner: str, agent: str | None
    ) -> None:
        self._source = source
        self._id = id
        self._runs = runs
        self._owner = owner
        ours = {run.run_id for run in runs}
        self._top = [run for run in runs if run.parent_run_id not in ours]
        names = (run.agent_name for run in reversed(self._top or runs))
        self._agent = agent or next((name for name in names if name), "agent")

    async def draft(self, notes: Notes) -> SessionDraft:
        """Read the whole conversation and return it as a session."""
        self._notes = notes
        session_id = _renamed(self._id)
        metadata = lenient_json({} if session_id == self._id else {"conversation_id": self._id})
        self._draft = draft = SessionDraft(
            session_id,
            source=self._source.name,
            system=SYSTEM,
            agent=self._agent,
            owner=self._owner,
            metadata=metadata,
        )
        self._texts: dict[str, _HarnessText] = {}
        # The ids of the runs, by the names that their messages use.
        self._names = {name: run.run_id for run in self._runs if (name := _derived(run.run_id)) is not None}
        self._calls = _HarnessCalls()
        self._items: list[Item] = []
        self._checkpoints: list[tuple[str, CheckpointKind, int, int]] = []
        ends: dict[str, HarnessEvent] = {}
        errors: dict[tuple[str, str], str] = {}
        for number, run in enumerate(self._runs):
            for event in await self._events(number, run):
                if event.kind in {"run_completed", "run_failed"}:
                    ends[run.run_id] = event
                if event.tool_call_id is not None and event.error is not None:
                    errors[run.run_id, event.tool_call_id] = event.error
            await self._snapshots(number, run)
        draft.event("imported", microseconds(self._runs[0].started_at), {"system": SYSTEM})
        for _, _, _, put in sorted(self._items, key=lambda item: item[:3]):
            put()
        self._restore_top_checkpoint()
        for run in self._runs:
            await self._ledger(run, errors)
            self._add_run(run, ends.get(run.run_id))
        return draft

    async def _events(self, number: int, run: HarnessRun) -> list[HarnessEvent]:
        """Read the events of a run, which are added to the journal in the order in which they were written."""
        events = [
            _read(self._source, HarnessEvent, found, self._notes)
            for found in await self._source.events(run.run_id)
        ]
        last = 0
        for n, event in enumerate(events):
            last = max(last, microseconds(event.timestamp))
            order = 0 if event.kind == "run_started" else _BEHIND + n
            self._items.append((last, number, order, partial(self._add_event, run, event)))
        if not any(event.kind == "run_started" for event in events):
            began = microseconds(run.started_at)
            self._items.append((began, number, 0, partial(self._begin, run, began)))
        return events

    def _add_event(self, run: HarnessRun, event: HarnessEvent) -> None:
        at = microseconds(event.timestamp)
        if event.kind == "run_started":
            self._begin(run, at, event.step_index)
            return
        payload: dict[str, Any] = {}
        kind = event.kind
        if kind not in _KINDS:
            self._notes.add(f"events of an unknown kind: {kind}"[:200], run.run_id)
            kind, payload = "imported", {"system": SYSTEM, "kind": event.kind}
        facts = {"tool": event.tool_name, "call_id": event.tool_call_id, "error": event.error}
        payload |= {name: value for name, value in facts.items() if value is not None}
        payload |= {"metadata": event.metadata} if event.metadata not in ({}, run.metadata) else {}
        self._draft.event(kind, at, payload, run_id=run.run_id, step=event.step_index)

    def _begin(self, run: HarnessRun, at: int, step: int = 0) -> None:
        payload = {"agent": run.agent_name or self._agent, "parent": run.parent_run_id}
        self._draft.event("run_started", at, payload, run_id=run.run_id, step=step)

    async def _snapshots(self, number: int, run: HarnessRun) -> None:
        """Read the snapshots of a run, and add the new messages of each to the session."""
        first = [at for at, n, order, _ in self._items if n == number and order == 0]
        last = max(microseconds(run.started_at), *first)
        count = 0
        async for found in self._source.snapshots(run.run_id):
            snapshot = _read(self._source, HarnessSnapshot, found, self._notes)
            texts = [
                await self._text(text, found[0]) for text in self._named(run, snapshot.messages, found[0])
            ]
            # An interrupted request without parts would hide the calls that wait for an answer.
            while texts and isinstance(texts[-1].message, ModelRequest) and not texts[-1].message.parts:
                del texts[-1]
            known = len(self._draft.history.messages)
            segment, places = self._draft.history.add([text.body for text in texts])
            new = len(texts) - (len(self._draft.history.messages) - known)
            messages = [(text.message, place) for text, place in zip(texts, places, strict=True)]
            self._calls.look(messages, run.run_id)
            taken = microseconds(snapshot.timestamp)
            for message, place in messages[new:]:
                last = max(
                    last, min(taken if message.timestamp is None else microseconds(message.timestamp), taken)
                )
                add = partial(
                    self._draft.event,
                    "message",
                    last,
                    run_id=run.run_id,
                    step=snapshot.step_index,
                    message=place,
                )
                count += 1
                self._items.append((last, number, count, add))
            last = max(last, taken)
            settled = snapshot.state == "complete" and is_provider_valid([text.message for text in texts])
            kind: CheckpointKind = "settled" if settled else "interrupted"
            place_at = partial(self._check, run, taken, kind, segment, len(texts), snapshot.step_index)
            count += 1
            self._items.append((last, number, count, place_at))

    def _check(
        self, run: HarnessRun, at: int, kind: CheckpointKind, segment: int, length: int, step: int
    ) -> None:
        self._draft.checkpoint(at, kind, segment, length, run_id=run.run_id, step=step)
        self._checkpoints.append((run.run_id, kind, segment, length))

    def _restore_top_checkpoint(self) -> None:
        """Make the last checkpoint one of the conversation itself, not of a delegate that ran last."""
        top = {run.run_id for run in self._top}
        if not self._checkpoints or not top or self._checkpoints[-1][0] in top:
            return
        mine = [each for each in self._checkpoints if each[0] in top]
        at = self._draft.latest
        if mine:
            run_id, kind, segment, length = mine[-1]
        else:  # it has no checkpoint yet, so it starts with an empty history
            segment, _ = self._draft.history.add([])
            run_id, kind, length = self._top[-1].run_id, "settled", 0
        self._draft.event("rewound", at, run_id=run_id)
        self._draft.checkpoint(at, kind, segment, length, run_id=run_id, step=None)

    def _named(self, run: HarnessRun, texts: list[Json], where: str) -> list[Json]:
        """Find the id that a run has in its own messages, if that differs from its recorded id: the ledger needs it."""
        if run.run_id in self._names.values():
            return texts
        others = {other.run_id for other in self._runs if other is not run}
        for text in reversed(texts):
            message = self._source.parsed(text, where)
            own_id: object = message.get("run_id") if is_object(message) else None
            if not is_object(message) or not isinstance(own_id, str):
                continue  # it was not sent yet
            here: object = message.get("conversation_id")
            if own_id not in {*self._names, *others} and (here is None or here == run.conversation_id):
                self._names[own_id] = run.run_id
            break
        return texts

    async def _text(self, text: Json, where: str) -> _HarnessText:
        """Return a message as it is stored here: with all its content, and with the recorded id of its run."""
        known = self._texts.get(text)
        if known is not None:
            return known
        value: Any = self._source.parsed(text, where)
        if not is_object(value):
            raise self._source.bad(f"{where} contains an invalid message")
        if MARK in text:
            value = await MediaRestorer(self._source, where).restored(value)
        name = self._names.get(str(value.get("run_id")))
        renamed = name is not None and name != value["run_id"]
        if renamed:
            value["run_id"] = name
        written = _text(value) if renamed or MARK in text else text  # else unchanged
        core = None
        if value.get("kind") == "request":
            core = _text({key: each for key, each in value.items() if key not in _MARKS})
        body = Body(written, core, marked=value.get("run_id") is not None)
        self._texts[text] = made = _HarnessText(
            body, message_of(written, source=self._source.name, where=where)
        )
        return made

    async def _ledger(self, run: HarnessRun, errors: Mapping[tuple[str, str], str]) -> None:
        """Add the ledger entries of a run's calls. Results, if recorded, are in the messages."""
        effects: dict[str, HarnessEffect] = {}
        for found in await self._source.effects(run.run_id):
            effect = _read(self._source, HarnessEffect, found, self._notes)
            effects[effect.tool_call_id] = effect
        for call_id, effect in effects.items():
            name, answer = self._calls.place(run.run_id, call_id)
            state = effect.status
            if state == "started" and answer is not None:
                state = "completed"
                self._notes.add("calls without a recorded end that the history answers: completed", call_id)
            ended = effect.ended_at or (effect.started_at if answer is None else answer[1])
            segment, position = (None, None) if answer is None else answer[0]
            error = errors.get((run.run_id, call_id)) or effect.effect_summary or "unknown"
            summary = None if state == "failed" and effect.effect_summary == error else effect.effect_summary
            self._draft.add(
                "effects",
                run_id=run.run_id,
                call_id=name,
                tool=effect.tool_name,
                state=state,
                step=None,
                arguments_digest=None,
                idempotency_key=effect.idempotency_key,
                result='{"kind":"unserializable"}' if state == "completed" and answer is None else None,
                error=error if state == "failed" else None,
                summary=summary,
                undo=None,
                segment=segment,
                position=position,
                attempts=1,
                started_at=self._draft.seen(microseconds(effect.started_at)),
                ended_at=None if state == "started" else self._draft.seen(microseconds(ended)),
            )

    def _add_run(self, run: HarnessRun, end: HarnessEvent | None) -> None:
        ended = None if end is None else microseconds(end.timestamp)
        status: RunStatus = "interrupted"
        if end is not None:
            status = "completed" if end.kind == "run_completed" else "failed"
        # Keys that have a meaning in Holdfast are renamed.
        metadata = {
            f"harness_{key}" if key == "resumes" else key: value for key, value in run.metadata.items()
        }
        names = (name for name, given in self._names.items() if given == run.run_id and name != given)
        original = next(names, None)
        metadata |= {} if original is None else {"pydantic_ai_run_id": original}
        last = [at for at, number, _, _ in self._items if self._runs[number] is run]
        self._draft.add(
            "runs",
            id=run.run_id,
            parent_id=run.parent_run_id,
            agent=run.agent_name or self._agent,
            status=status,
            error=None if end is None else end.error,
            metadata=lenient_json(metadata),
            first_seq=self._draft.first_seq[run.run_id],
            started_at=self._draft.seen(microseconds(run.started_at)),
            ended_at=max(last) if ended is None else ended,
        )


def _is_id(value: str) -> bool:
    try:
        check_id(value)
    except BadInput:
        return False
    return True


def _renamed(conversation_id: str) -> str:
    """Return the session id of a conversation: its own, or one derived from it."""
    if _is_id(conversation_id):
        return conversation_id
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"{SYSTEM}:{conversation_id}"))


def _text(value: object) -> Json:
    return lenient_json(value, separators=(",", ":"))


def _derived(run_id: str) -> str | None:
    """Return the run's original id if the harness derived its id from the agent's name and that."""
    if not run_id.startswith(_DERIVED):
        return None
    encoded = run_id.removeprefix(_DERIVED)
    try:
        text = base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4))
        size, _, rest = text.partition(b":")
        return rest[int(size) :].decode() or None
    except (binascii.Error, ValueError):
        return None
