"""The point where a session continues: the recorded history, and the runs that are continued there."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic_ai.messages import ModelMessage, UserContent, UserPromptPart

from holdfast.media import MediaStore
from holdfast.record.history import load, read_history
from holdfast.record.offloader import MediaOffloader
from holdfast.record.open_calls import close_open_calls
from holdfast.store import Store
from holdfast.types import Checkpoint, Run

_LONGEST_CHAIN = 50


async def load_history(
    store: Store, checkpoint: Checkpoint, *, media: MediaStore | None = None
) -> list[ModelMessage]:
    """Return the messages of a checkpoint. Large content is read from `media`, by default the media store of the settings."""
    offloader = MediaOffloader(store, media)
    return load(await offloader.back(await read_history(store, checkpoint.session_id, checkpoint)))


async def prompt_aside(
    store: Store, run: Run, media: MediaStore | None
) -> str | Sequence[UserContent] | None:
    """Return the prompt of a run that made no request with it; None if it had none."""
    events = await store.events(run.session_id, run_id=run.id)
    started = next((event for event in events if event.kind == "run_started"), None)
    if started is None or started.message is None:
        return None
    (part,) = load(await MediaOffloader(store, media).back([started.message]))[0].parts
    return part.content if isinstance(part, UserPromptPart) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumePoint:
    """The point where a session continues: its messages, and the runs that are continued there, if any."""

    messages: list[ModelMessage]
    checkpoint: Checkpoint | None = None
    recorded: Sequence[ModelMessage] = ()
    """The messages of the checkpoint. `messages` may have more, which close open calls."""
    chain: Sequence[Run] = ()
    """The run that was interrupted or waits, then the run that it continued, and so on."""
    begun: bool = False
    """Whether the messages belong to the turn that is continued. If not, the turn starts again."""


async def find_resume_point(
    store: Store, session_id: str, run_id: str | None, *, media: MediaStore | None = None
) -> ResumePoint:
    """Find where to continue a run. Without one, or if it recorded nothing, find where a new turn of the session starts."""
    latest = (await store.checkpoints(session_id=session_id, limit=1)).items
    checkpoint = latest[0] if latest else None
    messages: list[ModelMessage] = (
        [] if checkpoint is None else await load_history(store, checkpoint, media=media)
    )
    chain = await continued_runs(store, run_id)
    if checkpoint is None or checkpoint.run_id not in {run.id for run in chain}:
        closing = await close_open_calls(store, session_id, messages, MediaOffloader(store, media))
        return ResumePoint(
            messages=[*messages, *closing], checkpoint=checkpoint, recorded=messages, chain=chain, begun=False
        )
    begun = bool(chain)
    if begun and checkpoint.seq == chain[0].first_seq:
        begun = (
            await prompt_aside(store, chain[0], media) is None
        )  # else it made no request, and starts again
    return ResumePoint(messages=messages, checkpoint=checkpoint, recorded=messages, chain=chain, begun=begun)


async def continued_runs(store: Store, run_id: str | None, *, longest: int = _LONGEST_CHAIN) -> list[Run]:
    """Return a run, the run that it continued, and so on."""
    chain: list[Run] = []
    while run_id is not None and len(chain) < longest:
        run = await store.run(run_id)
        chain.append(run)
        run_id = json.loads(run.metadata).get("resumes")
    return chain
