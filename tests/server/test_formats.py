"""The streams that front ends already speak, over a real server: whole, live, and resumed at any number."""

import asyncio
import json
import re
import sys
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from typing import Any

import httpx2
import pytest
from ag_ui.core import Event as AgUiEvent
from pydantic import TypeAdapter
from pydantic_ai.messages import ModelResponse, TextPart

from holdfast import Store, open_store
from holdfast.config import load_settings
from holdfast.errors import MissingExtra
from holdfast.record.history import dump
from holdfast.server import create_app
from holdfast.server.formats import StreamFormatter, stream_factory
from holdfast.types import Draft, Event
from tests.conftest import Engine
from tests.raw_client import AsyncClient
from tests.server.serving import serving, working
from tests.server.talker import SAID, agent

pytestmark = pytest.mark.processes
FORMATS = ["vercel", "ag-ui"]
TOKEN = "hf_a_front_ends_own"
AG_UI: TypeAdapter[Any] = TypeAdapter(AgUiEvent)


class Block:
    """One block of a stream: its number, if it has one, and what it says."""

    def __init__(self, text: str) -> None:
        lines = [line.partition(": ") for line in text.split("\n")]
        assert {name for name, _, _ in lines} <= {"id", "data"}, text
        self.number = next((int(value) for name, _, value in lines if name == "id"), None)
        data = "\n".join(value for name, _, value in lines if name == "data")
        self.done = data == "[DONE]"
        self.facts: dict[str, Any] = {} if self.done or not data else json.loads(data)
        if self.facts and self.facts["type"].isupper():
            AG_UI.validate_python(self.facts)
            self.facts.pop("timestamp", None)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Block) and vars(self) == vars(other)

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __repr__(self) -> str:
        return f"{self.number}: {self.facts}"


async def blocks(
    client: AsyncClient, session: str, format: str, *, after: int = 0, follow: bool = False
) -> AsyncGenerator[Block, None]:
    http: Any = client._http  # pyright: ignore[reportPrivateUsage]
    path = f"/api/sessions/{session}/events?format={format}&follow={str(follow).lower()}"
    async with (
        asyncio.timeout(30),
        http.stream("GET", path, headers={"last-event-id": str(after)}) as response,
    ):
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        assert (response.headers.get("x-vercel-ai-ui-message-stream") == "v1") == (format == "vercel")
        text = ""
        async for piece in response.aiter_text():
            text += piece
            *whole, text = text.split("\n\n")
            for block in whole:
                if not block.startswith(":"):
                    yield Block(block)


async def all_of(client: AsyncClient, session: str, format: str, **where: Any) -> list[Block]:
    return [block async for block in blocks(client, session, format, **where)]


def kinds(found: list[Block]) -> list[str]:
    return [block.facts["type"] for block in found if block.facts]


def text_of(found: list[Block]) -> str:
    said = [block.facts for block in found if block.facts]
    return "".join(f["delta"] for f in said if re.match(r"text-delta|TEXT_MESSAGE_CONTENT", f["type"]))


@pytest.fixture
async def client(engine: Engine, store: Store) -> AsyncGenerator[AsyncClient, None]:
    """A client of a server that has its own connections to the store of a worker."""
    async with (
        open_store(engine.url) as served,
        working(store, agent),
        serving(create_app(load_settings(token=TOKEN), served)) as url,
        AsyncClient(url, TOKEN) as client,
    ):
        yield client


async def ended(client: AsyncClient, session: str, text: str, *kinds: str) -> int:
    """Say something, wait until a run has ended, and return the number of its end."""
    sent = await client.submit(session, text)
    async with asyncio.timeout(30):
        async for event in client.stream(session, after=sent["position"]):
            if event["kind"] in (kinds or ("submission_done", "submission_failed")):
                return event["seq"]
    raise AssertionError


async def test_a_turn_is_told_whole_and_from_any_number_on(client: AsyncClient):
    session = (await client.create_session("agent"))["id"]
    end = await ended(client, session, "use")
    for format in FORMATS:  # noqa: A001
        whole = await all_of(client, session, format)
        numbers = [block.number for block in whole if block.number is not None]
        assert numbers == sorted(set(numbers))
        assert text_of(whole) == "Looking. It says nothing here"
        if format == "vercel":
            assert whole[-1].done
            assert kinds(whole)[0] == "start"
            assert kinds(whole)[-1] == "finish"
            (given,) = [b.facts for b in whole if kinds([b]) == ["tool-input-available"]]
            (result,) = [b.facts for b in whole if kinds([b]) == ["tool-output-available"]]
            assert (given["input"], result["output"]) == ({"where": "here"}, "nothing here")
        else:
            assert (kinds(whole)[0], kinds(whole)[-1]) == ("RUN_STARTED", "RUN_FINISHED")
            assert whole[-1].facts["threadId"] == session
            (result,) = [b.facts for b in whole if kinds([b]) == ["TOOL_CALL_RESULT"]]
            assert result["content"] == "nothing here"
        # Whoever has a number gets what follows it, and nothing that it has.
        for number in range(1, numbers[-1]):
            place = next(n for n, block in enumerate(whole) if (block.number or 0) > number)
            while place and whole[place - 1].number is None:
                place -= 1  # what is said of the next event, before its last block
            assert await all_of(client, session, format, after=number) == whole[place:], number
        # Nothing runs: there is nothing to wait for.
        http: Any = client._http  # pyright: ignore[reportPrivateUsage]
        path = f"/api/sessions/{session}/events?format={format}&follow=false"
        idle: httpx2.Response = await http.get(path, headers={"last-event-id": str(end)})
        assert idle.status_code == 204


@pytest.mark.parametrize("format", FORMATS)
async def test_what_is_being_said_is_told_as_it_comes(client: AsyncClient, format: str):
    session = (await client.create_session("agent"))["id"]
    sent = await client.submit(session, "talk to me")
    live = await all_of(client, session, format, after=sent["position"])
    assert text_of(live) == "".join(SAID)
    without_number = [b for b in live if b.number is None and text_of([b])]
    assert len(without_number) > 2  # it came in pieces, before the message was complete
    replayed = await all_of(client, session, format)
    assert text_of(replayed) == "".join(SAID)
    assert {b.facts["id"] for b in live if kinds([b]) == ["text-start"]} == {
        b.facts["id"] for b in replayed if kinds([b]) == ["text-start"]
    }
    # Who comes back in the middle gets what is being said from its beginning.
    again = await client.submit(session, "once more")
    watching = blocks(client, session, format, after=again["position"])
    seen: list[Block] = []
    async for block in watching:
        seen.append(block)
        if len(text_of(seen)) > 30:
            break
    await watching.aclose()
    number = max(block.number for block in seen if block.number is not None)
    rest = await all_of(client, session, format, after=number)
    assert text_of(rest) == "".join(SAID)


@pytest.mark.parametrize("format", FORMATS)
async def test_ends_that_are_none(client: AsyncClient, format: str):
    """What fails, what is interrupted, what asks for leave and goes on: each in the words of the protocol."""
    session = (await client.create_session("agent"))["id"]
    number = await ended(client, session, "fail")
    failed = kinds(await all_of(client, session, format))
    assert ("error" if format == "vercel" else "RUN_ERROR") in failed
    sent = await client.submit(session, "hang")
    async for block in blocks(client, session, format, after=sent["position"]):
        if "Still here" in text_of([block]):
            await client.interrupt(session)
            break
    stopped = kinds(await all_of(client, session, format, after=number))
    assert ("abort" if format == "vercel" else "RUN_FINISHED") in stopped
    number = await ended(client, session, "ask", "approval_requested")
    asked = await all_of(client, session, format, after=number - 1)
    if format == "vercel":
        assert "tool-approval-request" in kinds(asked)
    else:
        (finished,) = [b.facts for b in asked if kinds([b]) == ["RUN_FINISHED"]]
        assert finished["outcome"]["type"] == "interrupt"
    question = (await client.session(session))["approvals"][0]
    await client.approve(session, question)
    answered = await all_of(client, session, format, after=number)
    assert "launched it" in json.dumps([block.facts for block in answered])
    assert text_of(answered) == "Done."


@pytest.mark.parametrize("format", FORMATS)
async def test_text_of_a_stopped_turn_is_told(client: AsyncClient, format: str):
    session = (await client.create_session("agent"))["id"]
    sent = await client.submit(session, "talk to me")
    live: list[Block] = []
    stopped = False
    async for block in blocks(client, session, format, after=sent["position"]):
        live.append(block)
        if len(text_of(live)) > 30 and not stopped:
            stopped = True
            await client.interrupt(session)
    replayed = await all_of(client, session, format)
    assert len(text_of(replayed)) > 30
    assert text_of(replayed) == text_of(live)
    assert ("text-end" if format == "vercel" else "TEXT_MESSAGE_END") in kinds(replayed)
    http: Any = client._http  # pyright: ignore[reportPrivateUsage]
    chat = (await http.get(f"/api/chat/{session}")).json()
    assert [part["text"] for part in chat[-1]["parts"] if part["type"] == "text"] == [text_of(replayed)]


async def test_a_stream_that_follows_goes_on_over_turns(client: AsyncClient):
    session = (await client.create_session("agent"))["id"]
    watching = blocks(client, session, "vercel", follow=True)
    await client.submit(session, "use")
    seen: list[Block] = []
    async for block in watching:
        seen.append(block)
        if block.done and kinds(seen).count("finish") == 1:
            await client.submit(session, "use")
        elif block.done:
            break
    await watching.aclose()
    assert kinds(seen).count("start") == 2


async def test_bad_formats(http: httpx2.AsyncClient, store: Store):
    await store.create_session(agent="agent", owner="owner", id="s1")
    answer = await http.get("/api/sessions/s1/events?format=klingon")
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "bad_input")
    assert "format" in answer.json()["error"]["message"]


async def test_a_format_that_is_not_installed(
    http: httpx2.AsyncClient, store: Store, monkeypatch: pytest.MonkeyPatch
):
    await store.create_session(agent="agent", owner="owner", id="s1")
    monkeypatch.setitem(sys.modules, "pydantic_ai.ui.ag_ui", None)
    with pytest.raises(MissingExtra, match=r"pip install 'holdfast\[ag-ui\]'"):
        stream_factory("ag-ui", "s1")
    answer = await http.get("/api/sessions/s1/events?format=ag-ui")
    assert (answer.status_code, answer.json()["error"]["code"]) == (501, "missing_extra")


@pytest.mark.parametrize(
    ("again", "parts"),
    [
        (["one", "one two", "one two three"], ["one two three"]),
        (["one", "one other"], ["one two", "one other"]),
    ],
    ids=["the same text", "another text"],
)
async def test_a_text_that_is_generated_again_continues_unless_it_differs(
    again: list[str], parts: list[str], store: Store
):
    formatter = StreamFormatter(store, "s1", stream_factory("vercel", "s1"))

    def happened(seq: int, kind: str, run_id: str, payload: str = "{}", message: str | None = None) -> Event:
        now = datetime.now(UTC)
        return Event(
            session_id="s1",
            seq=seq,
            kind=kind,
            run_id=run_id,
            step=None,
            at=now,
            payload=payload,
            message=message,
        )

    def drafted(run_id: str, text: str) -> dict[tuple[str, int], Draft]:
        return {(run_id, 0): Draft(run_id=run_id, part=0, kind="text", text=text)}

    told = await formatter.add(happened(1, "run_started", "r1"))
    told += await formatter.show(drafted("r1", "one two"), 1)
    told += await formatter.add(happened(2, "recovered", "r2", '{"run_id": "r1"}'))
    told += await formatter.add(happened(3, "run_started", "r2"))
    for text in again:
        told += await formatter.show(drafted("r2", text), 3)
    response = dump(ModelResponse(parts=[TextPart(again[-1])]))
    told += await formatter.add(happened(4, "message", "r2", message=response))
    told += await formatter.add(happened(5, "run_completed", "r2"))
    texts: dict[str, str] = {}
    for facts in (Block(block.strip()).facts for block in told):
        if facts.get("type") == "text-delta":
            texts[facts["id"]] = texts.get(facts["id"], "") + facts["delta"]
    assert list(texts.values()) == parts
