"""Shared by the tests of the runtime: a worker in this process, waiting for its work, and an agent that echoes."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from holdfast import FunctionAgent, Store
from holdfast.runtime import Worker
from holdfast.testing.agents import Killed, killed_after
from holdfast.types import Batch, Event, Lease, Submission
from tests.builders import within


@asynccontextmanager
async def working(store: Store, agents: Any, **options: Any) -> AsyncGenerator[Worker, None]:
    """Run a worker for as long as the block lasts."""
    worker = Worker(store, agents, **options)
    task = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        worker.stop()
        await asyncio.wait_for(task, 30)


async def until(
    store: Store, session_id: str, wanted: Callable[[Event], bool], *, after: int = 0
) -> list[Event]:
    """Return the events up to the first one that is wanted."""
    found: list[Event] = []
    async with within(store, 20):
        async for event in store.watch(session_id, after=after):
            found.append(event)
            if wanted(event):
                break
    return found


def is_kind(kind: str) -> Callable[[Event], bool]:
    return lambda event: event.kind == kind


async def send(store: Store, session_id: str, text: str, **options: Any) -> Submission:
    return await store.submit(session_id, "message", json.dumps({"text": text}), **options)


async def ended(store: Store, submission: Submission) -> Submission:
    """Wait until a submission has ended, and return it."""
    facts = {"submission_done", "submission_failed"}

    def is_its_end(event: Event) -> bool:
        return event.kind in facts and json.loads(event.payload)["submission_id"] == submission.id

    await until(store, submission.session_id, is_its_end, after=submission.position)
    return await reread(store, submission)


async def reread(store: Store, submission: Submission) -> Submission:
    page = await store.submissions(submission.session_id, payloads=False, limit=10_000)
    return next(item for item in page.items if item.id == submission.id)


async def kinds(store: Store, session_id: str) -> list[str]:
    return [event.kind for event in await store.events(session_id, limit=1000)]


async def texts(store: Store, session_id: str) -> str:
    """Return all messages of a session as one text."""
    return "\n".join(event.message or "" for event in await store.events(session_id, limit=1000))


def said(messages: list[ModelMessage]) -> list[str]:
    return [
        str(part.content)
        for message in messages
        if isinstance(message, ModelRequest)
        for part in message.parts
        if isinstance(part, UserPromptPart)
    ]


def echo() -> FunctionModel:
    """Answer with everything the user said so far."""

    def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        return ModelResponse(parts=[TextPart(" | ".join(said(messages)))])

    async def stream(messages: list[ModelMessage], info: AgentInfo):
        yield " | ".join(said(messages))

    return FunctionModel(respond, stream_function=stream)


async def kill_worker(store: Store, agent: FunctionAgent, kind: str, number: int = 1) -> None:
    """Run a worker in this process until an event of a kind is recorded, as if it were killed then."""
    with killed_after(store, kind, number=number):
        worker = Worker(store, agent, ttl=1.0)
        running = asyncio.create_task(worker.run())
        killed = asyncio.Event()
        write = store.write

        async def watched(lease: Lease, batch: Batch) -> int:
            try:
                return await write(lease, batch)
            except Killed:
                killed.set()
                raise

        store.write = watched
        await asyncio.wait_for(killed.wait(), 20)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        del store.write
        store.write = write
