"""The record of a run as a replay uses it: the history of each model request, its response, and the profile that was sent with it."""

import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, ToolReturnPart, UserPromptPart

from holdfast.errors import MediaNotFound
from holdfast.jsontext import read_recorded
from holdfast.media import MediaStore, to_uri
from holdfast.record.resume_point import load_history
from holdfast.store import Store
from holdfast.types import Checkpoint, Event, Run

Profile = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRequest:
    """One model request: the messages of the history at that time, the response, and the profile if one is recorded."""

    step: int
    messages: Sequence[ModelMessage]
    response: ModelResponse
    profile: Profile | None = None


@dataclass(slots=True, kw_only=True)
class Recording:
    """One run: where it begins, its requests that have a response, and the recorded outcome of each call."""

    run: Run
    before: list[ModelMessage]
    """The history before the first request of the run."""
    requests: list[RecordedRequest] = field(default_factory=list[RecordedRequest])
    outcomes: dict[str, ToolReturnPart] = field(default_factory=dict[str, ToolReturnPart])
    unchecked: list[str] = field(default_factory=list[str])

    prompt: Any = None
    """The content with which the run began; None if it continued a turn."""


async def read_runs(store: Store, session_id: str) -> AsyncGenerator[Run, None]:
    """Yield the runs of a session, the first one first."""
    runs: list[Run] = []
    cursor = None
    while True:
        page = await store.runs(session_id=session_id, cursor=cursor)
        runs += page.items
        cursor = page.next_cursor
        if cursor is None:
            break
    for run in sorted(runs, key=lambda run: run.first_seq):
        yield run


async def read_run(store: Store, media: MediaStore, run: Run) -> Recording:
    """Read the record of a run."""
    points = await _checkpoints(store, run)
    events = await _events(store, run)
    steps = [point for point in points if point.step]  # before step 1, no request was made
    if not steps:
        return Recording(run=run, before=[])
    whole = await load_history(store, points[-1], media=media)
    segment = points[-1].segment
    first = steps[0]
    begins = (
        whole[: first.length] if first.segment == segment else await load_history(store, first, media=media)
    )
    recording = _begin(run, begins)
    profiles = await _profiles(media, events, recording.unchecked)
    seen: set[int] = set()
    for point in steps:
        end = point.length
        if point.segment != segment or not isinstance(whole[end - 1], ModelRequest):
            continue
        while end < len(whole) and isinstance(whole[end], ModelRequest):
            end += 1  # a message that steered the turn, after the point was recorded
        if end < len(whole) and end not in seen and point.step is not None:
            seen.add(end)
            response = cast("ModelResponse", whole[end])
            profile = profiles.get(point.step)
            request = RecordedRequest(
                step=point.step, messages=whole[:end], response=response, profile=profile
            )
            recording.requests.append(request)
    if any(point.segment != segment for point in steps):
        recording.unchecked.append("requests before the history was rewritten within the run")
    for message in whole[len(recording.before) :]:
        for part in message.parts:
            if isinstance(part, ToolReturnPart):
                recording.outcomes[part.tool_call_id] = part
    return recording


async def _checkpoints(store: Store, run: Run) -> list[Checkpoint]:
    points: list[Checkpoint] = []
    cursor = None
    while True:
        page = await store.checkpoints(run_id=run.id, cursor=cursor)
        points += page.items
        cursor = page.next_cursor
        if cursor is None:
            return points[::-1]


async def _events(store: Store, run: Run) -> list[Event]:
    events: list[Event] = []
    while page := await store.events(run.session_id, run_id=run.id, after=events[-1].seq if events else 0):
        events += page
    return events


def _begin(run: Run, messages: list[ModelMessage]) -> Recording:
    """Return the beginning of a run whose first request had these messages.

    It began with a prompt, or it continued a turn with the answers to the calls of its last response.
    """
    last = messages[-1]
    if not any(isinstance(part, ToolReturnPart) for part in last.parts):
        prompt = next((part.content for part in last.parts if isinstance(part, UserPromptPart)), None)
        return Recording(run=run, before=messages if prompt is None else messages[:-1], prompt=prompt)
    places = (place for place, message in enumerate(messages) if isinstance(message, ModelResponse))
    end = max(places, default=-1)
    return Recording(run=run, before=messages[: end + 1])


async def _profiles(media: MediaStore, events: Sequence[Event], unchecked: list[str]) -> dict[int, Profile]:
    """Return the profile of each step."""
    found: dict[int, Profile] = {}
    loaded: dict[str, Profile | None] = {}
    profile: Profile | None = None
    for event in events:
        if event.kind != "model_request_completed":
            continue
        facts: dict[str, Any] = read_recorded(event.payload)
        digest = facts.get("profile")
        if digest is not None:
            if digest not in loaded:
                try:
                    loaded[digest] = json.loads(await media.get(to_uri(digest)))
                except MediaNotFound:
                    loaded[digest] = None
                    unchecked.append(f"profile {digest}, which is not stored")
            profile = loaded[digest]
        if profile is not None and event.step is not None:
            found[event.step] = profile
    if not found and any(event.kind == "model_request_completed" for event in events):
        unchecked.append("models, settings and tools: the session was recorded before profiles existed")
    return found
