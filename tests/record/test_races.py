"""Two processes that continue the same session: one of them does, and nothing of the other is lost or repeated."""

import io
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from pydantic_ai.messages import ToolReturnPart

from holdfast import Store, continue_session, load_history, resume
from holdfast.errors import Conflict
from holdfast.media import open_media
from holdfast.retention import write_archive
from holdfast.retention.archive import verify_archive
from holdfast.types import Message
from tests.record.agents import call, recorded


def meanwhile(store: Store, other: Callable[[], Coroutine[Any, Any, Any]]) -> None:
    """Let something happen right after the next read of a history, as when the reader is paused there."""
    read = store.history
    happened: list[int] = []

    async def late(session_id: str, **options: Any) -> list[Message]:
        page = await read(session_id, **options)
        if not happened:
            happened.append(1)
            await other()
        return page

    store.history = late  # pyright: ignore[reportAttributeAccessIssue]


async def test_a_session_that_continued_meanwhile_keeps_what_was_said(store: Store):
    agent = recorded(store)
    await agent.run("first", conversation_id="talk")
    meanwhile(store, lambda: continue_session(agent, store, "talk", "second"))
    with pytest.raises(Conflict, match="continued since its history was read"):
        await continue_session(agent, store, "talk", "third")
    latest = (await store.checkpoints(session_id="talk", limit=1)).items[0]
    said = str(await load_history(store, latest))
    assert ("first" in said, "second" in said, "third" in said) == (True, True, False)


async def test_a_run_that_was_resumed_meanwhile_repeats_nothing(store: Store):
    ran: list[str] = []

    async def pay() -> str:
        ran.append("pay")
        if len(ran) == 1:
            message = "cut off"
            raise RuntimeError(message)
        return "paid"

    agent = recorded(store, [call("pay", "c1")], tools=[pay])
    with pytest.raises(RuntimeError):
        await agent.run("go", conversation_id="talk")
    run_id = (await store.runs(session_id="talk")).items[0].id
    ran_before = len(ran)
    meanwhile(store, lambda: resume(agent, store, run_id))
    with pytest.raises(Conflict, match="continued since its history was read"):
        await resume(agent, store, run_id)
    runs = (await store.runs(session_id="talk")).items
    assert [run.status for run in runs] == ["failed", "completed"]
    assert len(ran) <= ran_before + 1


async def test_a_number_with_very_many_digits_does_not_end_the_session(store: Store):
    """Python reads at most 4300 digits. Such a result is recorded exactly, and read as a string of digits."""

    async def power() -> int:
        return 7**6000

    agent = recorded(store, [call("power", "c1")], tools=[power])
    await agent.run("go", conversation_id="talk")
    again = await continue_session(agent, store, "talk", "again")
    (part,) = again.all_messages()[2].parts
    assert isinstance(part, ToolReturnPart)
    assert (type(part.content), len(str(part.content))) == (str, 5071)
    media = open_media(store=store)
    archive = b"".join([piece async for piece in write_archive(store, media, "talk")])
    verify_archive(io.BytesIO(archive), longest=10_000_000)
