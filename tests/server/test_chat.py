"""What stock front ends send and expect: `useChat` of the Vercel AI SDK, and the HttpAgent of AG-UI."""

import asyncio
import json
import threading
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from signal import SIGKILL
from typing import Any

import httpx2
import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, UserPromptPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel
from pydantic_ai.ui.vercel_ai import VercelAIAdapter

from holdfast import Store
from holdfast.config import load_settings
from holdfast.server import create_app
from holdfast.types import Batch, Checkpoint, Message, Run, Segment
from tests.browser.app import agent
from tests.conftest import Engine
from tests.promises.workers import lines, worker
from tests.server.serving import serving, working

pytestmark = pytest.mark.processes
TOKEN = "hf_a_front_ends_own"
OTHER = "hf_of_somebody_else"


@pytest.fixture
async def http(engine: Engine, store: Store) -> AsyncGenerator[httpx2.AsyncClient, None]:
    from holdfast.server.auth import digest

    await store.add_token(digest(TOKEN), owner="ada", scopes=["read", "write"])
    await store.add_token(digest(OTHER), owner="bob", scopes=["read", "write"])
    app = create_app(load_settings(), store, ["agent"])
    async with (
        serving(app) as url,
        httpx2.AsyncClient(base_url=url, headers={"authorization": f"Bearer {TOKEN}"}, timeout=30) as client,
    ):
        yield client


def user(text: str, id: str = "m1") -> dict[str, Any]:
    return {"id": id, "role": "user", "parts": [{"type": "text", "text": text}]}


def chunks(text: str) -> list[dict[str, Any]]:
    """Return the chunks of a whole Vercel stream."""
    data = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    assert data[-1] == "[DONE]"
    return [json.loads(each) for each in data[:-1]]


def events(text: str) -> list[dict[str, Any]]:
    return [
        json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: ")
    ]


def said(found: list[dict[str, Any]]) -> str:
    return "".join(each.get("delta", "") for each in found if each["type"] == "text-delta")


async def chat(
    http: httpx2.AsyncClient, *messages: dict[str, Any], id: str = "c1", **more: Any
) -> list[dict[str, Any]]:
    response = await http.post(
        "/api/chat", json={"id": id, "messages": messages, "trigger": "submit-message", **more}
    )
    assert response.status_code == 200, response.text
    assert response.headers["x-vercel-ai-ui-message-stream"] == "v1"
    return chunks(response.text)


async def test_use_chat_gets_the_answer_to_its_last_message_once(http: httpx2.AsyncClient, store: Store):
    async with working(store, agent):
        first = await chat(http, user("say hello there"))
        assert first[0]["type"] == "start"
        assert said(first) == "hello there "
        again = await chat(http, user("say hello there"))  # sent again: the same turn
        assert (again[0], said(again)) == (first[0], said(first))
        second = await chat(http, user("say hello there"), user("say more", "m2"))
        assert said(second) == "more "
        assert (await http.get("/api/chat/c1/stream")).status_code == 204
        history = (await http.get("/api/chat/c1")).json()
    assert [message["role"] for message in history] == ["user", "assistant", "user", "assistant"]
    assert len((await store.submissions("c1")).items) == 2


async def test_a_reloaded_page_gets_the_active_turn_from_its_start(http: httpx2.AsyncClient, store: Store):
    async with working(store, agent):
        sending = asyncio.create_task(chat(http, user("say " + "word " * 60)))
        while (await http.get("/api/sessions/c1")).json().get("status") != "running":
            await asyncio.sleep(0.01)
        resumed = await http.get("/api/chat/c1/stream")
        whole = await sending
    assert resumed.status_code == 200
    again = chunks(resumed.text)
    assert again[0] == whole[0]
    assert said(again) == said(whole)


async def test_the_history_has_one_message_for_each_turn_with_the_id_of_its_stream(
    http: httpx2.AsyncClient, store: Store, tmp_path: Path
):
    async with working(store, agent):
        streamed = await chat(http, user(f"work 2 {tmp_path / 'mark'}"))
        asked = await chat(http, user("remove it", "m2"))
        history = (await http.get("/api/chat/c1")).json()
    assert [message["role"] for message in history] == ["user", "assistant"] * 2
    assert [message["id"] for message in history[1::2]] == [streamed[0]["messageId"], asked[0]["messageId"]]
    types = ["step-start", "tool-act", "step-start", "tool-act", "step-start", "text"]
    assert [part["type"] for part in history[1]["parts"]] == types
    assert history[3]["parts"][1]["state"] == "approval-requested"


async def test_a_call_that_runs_is_not_a_question(
    http: httpx2.AsyncClient, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HOLD", "1")
    async with working(store, agent):
        sending = asyncio.create_task(chat(http, user(f"work 1 {tmp_path / 'mark'}")))
        await lines(tmp_path / "mark", 1)
        part = (await http.get("/api/chat/c1")).json()[-1]["parts"][-1]
        await sending
    assert (part["state"], "approval" in part) == ("input-available", False)


@pytest.mark.parametrize("format", ["vercel", "ag-ui"])
async def test_the_text_of_a_killed_worker_is_continued_and_not_repeated(
    format: str, http: httpx2.AsyncClient, engine: Engine, store: Store
):
    words = "".join(f"{number} " for number in range(100))
    start = partial(
        worker, engine.url, app="tests.browser.app:agent", lease_ttl_seconds="2", lease_renew_seconds="0.5"
    )
    body: dict[str, Any] = {"id": "c1", "messages": [user(f"say {words}".strip())]}
    path, delta = "/api/chat", "text-delta"
    if format == "ag-ui":
        message = {"id": "m1", "role": "user", "content": f"say {words}".strip()}
        path, delta, body = (
            "/api/ag-ui",
            "TEXT_MESSAGE_CONTENT",
            {"threadId": "c1", "runId": "r1", "messages": [message]},
        )
    text = ""
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(start())
        response = await stack.enter_async_context(http.stream("POST", path, json=body))
        async for piece in response.aiter_text():
            text += piece
            if "20 " in text and first.process.returncode is None:
                first.signal(SIGKILL)
                await first.ended()
                await stack.enter_async_context(start())
    found = chunks(text) if format == "vercel" else events(text)
    assert "".join(each["delta"] for each in found if each["type"] == delta) == words
    kinds = {each["type"] for each in found}
    assert not any(kind.startswith(("data-", "ACTIVITY")) for kind in kinds)  # the prompt is no other message
    assert "recovered" in [event.kind for event in await store.events("c1")]
    if format == "vercel":
        history = (await http.get("/api/chat/c1")).json()
        assert history[-1]["id"] == found[0]["messageId"]


async def test_a_message_behind_another_gets_only_its_own_turn(http: httpx2.AsyncClient, store: Store):
    async with working(store, agent):
        one, two = await asyncio.gather(
            chat(http, user("say " + "one " * 40)), chat(http, user("say two", "m2"))
        )
    assert {said(one).split()[0], said(two).split()[0]} == {"one", "two"}
    assert len(set(said(one).split())) == len(set(said(two).split())) == 1


async def test_an_approval_in_the_last_message_continues_the_turn(http: httpx2.AsyncClient, store: Store):
    async with working(store, agent):
        asked = await chat(http, user("remove it"))
        request = next(each for each in asked if each["type"] == "tool-approval-request")
        call = next(each for each in asked if each["type"] == "tool-input-available")
        assert (await http.get("/api/chat/c1/stream")).status_code == 204
        part = {
            "type": f"tool-{call['toolName']}",
            "toolCallId": call["toolCallId"],
            "state": "approval-responded",
            "input": call["input"],
            "approval": {"id": request["approvalId"], "approved": True},
        }
        answer = {"id": asked[0]["messageId"], "role": "assistant", "parts": [part]}
        other = answer | {"parts": [part | {"input": {"path": "other.txt"}}]}
        refused = await http.post("/api/chat", json={"id": "c1", "messages": [other]})
        assert (refused.status_code, "has other arguments" in refused.text) == (409, True)
        continued = await chat(http, user("remove it"), answer)
        assert continued[0]["messageId"] == asked[0]["messageId"]
        assert "removed notes.txt" in said(continued)
        again = await http.post("/api/chat", json={"id": "c1", "messages": [answer]})
        assert again.status_code == 409


async def test_a_reload_after_an_approval_gets_the_whole_turn(http: httpx2.AsyncClient, store: Store):
    async with working(store, agent):
        asked = await chat(http, user("remove and say " + "word " * 60))
        call = next(each for each in asked if each["type"] == "tool-input-available")
        part = {
            "type": "tool-remove",
            "toolCallId": call["toolCallId"],
            "state": "approval-responded",
            "input": call["input"],
            "approval": {"id": call["toolCallId"], "approved": True},
        }
        answer = {"id": asked[0]["messageId"], "role": "assistant", "parts": [part]}
        answering = asyncio.create_task(chat(http, answer))
        while (response := await http.get("/api/chat/c1/stream")).status_code == 204:
            await asyncio.sleep(0.01)
        resumed = chunks(response.text)
        continued = await answering
    assert resumed[0]["messageId"] == asked[0]["messageId"]
    assert "tool-approval-request" not in [each["type"] for each in resumed]
    assert (
        next(each for each in resumed if each["type"] == "tool-output-available")["output"]
        == "removed notes.txt"
    )
    assert said(resumed) == said(continued)


async def test_regenerate_answers_the_last_message_again(http: httpx2.AsyncClient, store: Store):
    async with working(store, agent):
        await chat(http, user("say hello"))
        assert said(await chat(http, user("say hello"), trigger="regenerate-message")) == "hello "
        history = (await http.get("/api/chat/c1")).json()
    assert [message["role"] for message in history] == ["user", "assistant"]


async def test_only_the_last_message_is_answered_again(http: httpx2.AsyncClient, store: Store):
    async with working(store, agent):
        for number, text in enumerate(("say one", "say two")):
            await chat(http, user(text, f"m{number}"))
        first = {"id": "c1", "messages": [user("say one", "m0")], "trigger": "regenerate-message"}
        refused = await http.post("/api/chat", json=first)
        assert (refused.status_code, "only the last message" in refused.text) == (409, True)
        reloaded = (await http.get("/api/chat/c1")).json()[-2]  # with an id of ours
        assert said(await chat(http, reloaded, trigger="regenerate-message")) == "two "
        history = (await http.get("/api/chat/c1")).json()
        assert [message["role"] for message in history] == ["user", "assistant"] * 2
        await chat(http, user("remove it", "m3"))
        waiting = {"id": "c1", "messages": [user("remove it", "m3")], "trigger": "regenerate-message"}
        assert (await http.post("/api/chat", json=waiting)).status_code == 409


@pytest.mark.parametrize(
    "part",
    [
        {"approval": {"id": "a", "approved": "yes"}},
        {"approval": {"id": "a"}},
        {"approval": {"id": "a", "approved": True, "reason": {}}},
        {},
    ],
)
async def test_an_answer_that_is_not_one_is_refused(http: httpx2.AsyncClient, part: dict[str, Any]):
    whole: dict[str, Any] = {"type": "tool-x", "toolCallId": "c", "state": "approval-responded", "input": {}}
    whole |= part
    message: dict[str, Any] = {"id": "m1", "role": "assistant", "parts": [whole]}
    answer = await http.post("/api/chat", json={"id": "c1", "messages": [message]})
    assert answer.status_code == 422
    assert "pydantic.dev" not in answer.text
    assert (await http.get("/api/sessions/c1")).status_code == 404


@pytest.mark.parametrize("payload", [{"reason": {"a": 1}}, {"editedArgs": "x"}, {"editedArgs": [1]}])
async def test_an_answer_over_ag_ui_that_is_not_one_is_refused(
    http: httpx2.AsyncClient, payload: dict[str, Any]
):
    known = f"int-c-{'0' * 64}"
    entry = {"interruptId": known, "status": "resolved", "payload": {"approved": True, **payload}}
    body = {"threadId": "c1", "runId": "r1", "messages": [], "resume": [entry]}
    assert (await http.post("/api/ag-ui", json=body)).status_code == 422
    body["resume"] = [{"interruptId": "int-c", "status": "resolved", "payload": {"approved": True}}]
    assert (await http.post("/api/ag-ui", json=body)).status_code == 422  # of no known arguments
    body["resume"] = [{"interruptId": known, "status": "resolved", "payload": {"approved": True}}]
    assert (await http.post("/api/ag-ui", json=body)).status_code == 404
    assert (await http.get("/api/sessions/c1")).status_code == 404


async def test_a_turn_that_cannot_start_is_an_error_chunk(http: httpx2.AsyncClient, store: Store):
    await store.create_session(agent="agent", owner="ada", id="c1", metadata='{"model": "unknown"}')
    async with working(store, agent):
        failed = await chat(http, user("say hello"))
    assert "not allowed" in next(each for each in failed if each["type"] == "error")["errorText"]


async def test_bad_requests_and_strangers_create_nothing(http: httpx2.AsyncClient, store: Store):
    cases: list[tuple[list[Any], int]] = [
        ([], 422),
        ([{"id": "m", "role": "user"}], 422),
        ([{"id": "m", "role": "assistant", "parts": []}], 422),
        ([{"id": "m", "role": "user", "parts": []}], 422),
        (
            [
                {
                    "id": "m",
                    "role": "user",
                    "parts": [{"type": "file", "mediaType": "image/png", "url": "file:///etc/passwd"}],
                }
            ],
            422,
        ),
    ]
    for messages, status in cases:
        response = await http.post("/api/chat", json={"id": "c1", "messages": messages})
        assert response.status_code == status, response.text
    wrong = await http.post("/api/chat?agent=nobody", json={"id": "c1", "messages": [user("say x")]})
    assert wrong.status_code == 422
    assert (await store.sessions()).items == []
    await store.create_session(agent="agent", owner="ada", id="c1")
    stranger = {"authorization": f"Bearer {OTHER}"}
    for path, body in (
        ("/api/chat", {"id": "c1", "messages": [user("say x")]}),
        (
            "/api/ag-ui",
            {"threadId": "c1", "runId": "r", "messages": [{"id": "m", "role": "user", "content": "x"}]},
        ),
    ):
        assert (await http.post(path, json=body, headers=stranger)).status_code == 409  # the id is taken
    assert (await http.get("/api/chat/c1/stream", headers=stranger)).status_code == 404
    assert (await http.get("/api/chat/c1", headers=stranger)).status_code == 404
    assert (await store.submissions("c1")).items == []


async def run(http: httpx2.AsyncClient, run_id: str, text: str = "", **more: Any) -> list[dict[str, Any]]:
    body: dict[str, Any] = {
        "threadId": "t1",
        "runId": run_id,
        "protocolVersion": "1.0",
        "state": {},
        "messages": [{"id": f"m-{run_id}", "role": "user", "content": text}],
        "tools": [],
        "context": [],
        "forwardedProps": {},
    }
    response = await http.post("/api/ag-ui", json=body | more)
    assert response.status_code == 200, response.text
    return events(response.text)


async def test_an_http_agent_gets_its_own_ids_and_the_same_run_again(http: httpx2.AsyncClient, store: Store):
    async with working(store, agent):
        first = await run(http, "r1", "say hello")
        assert (first[0]["type"], first[0]["threadId"], first[0]["runId"]) == ("RUN_STARTED", "t1", "r1")
        assert (first[-1]["type"], first[-1]["runId"]) == ("RUN_FINISHED", "r1")
        assert "".join(each["delta"] for each in first if each["type"] == "TEXT_MESSAGE_CONTENT") == "hello "
        again = await run(http, "r1", "say hello")
        assert [each["type"] for each in again] == [each["type"] for each in first]
        changed = await http.post(
            "/api/ag-ui",
            json={
                "threadId": "t1",
                "runId": "r1",
                "messages": [{"id": "x", "role": "user", "content": "other"}],
            },
        )
        assert changed.status_code == 409
    assert len((await store.submissions("t1")).items) == 1


async def test_an_http_agent_answers_an_interrupt(http: httpx2.AsyncClient, store: Store):
    async with working(store, agent):
        asked = await run(http, "r1", "remove it")
        (interrupt,) = asked[-1]["outcome"]["interrupts"]
        answer = {
            "interruptId": interrupt["id"],
            "status": "resolved",
            "payload": {"approved": False, "reason": "No."},
        }
        answered = await run(http, "r2", messages=[], resume=[answer])
        assert (answered[0]["runId"], answered[-1]["type"]) == ("r2", "RUN_FINISHED")
        assert "No." in json.dumps(answered)
        again = await run(http, "r2", messages=[], resume=[answer])  # the same run again
        assert [each["type"] for each in again] == [each["type"] for each in answered]
        other = {"threadId": "t1", "runId": "r3", "resume": [answer]}
        assert (await http.post("/api/ag-ui", json=other)).status_code == 409
    assert [sent.kind for sent in (await store.submissions("t1")).items] == ["message", "approval"]


def paying_agent(paid: list[int]) -> Agent[None, str]:
    """Return an agent that pays the amount in the last message, always with the same call id."""

    async def respond(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
        del info
        last = messages[-1].parts[-1]
        if isinstance(last, UserPromptPart):
            yield {0: DeltaToolCall(name="pay", json_args=f'{{"amount": {last.content}}}', tool_call_id="c")}
        else:
            yield "done"

    payer = Agent(FunctionModel(stream_function=respond), name="agent")

    @payer.tool_plain(requires_approval=True)
    def pay(amount: int) -> str:  # pyright: ignore[reportUnusedFunction]
        paid.append(amount)
        return f"paid {amount}"

    return payer


async def test_an_answer_over_ag_ui_does_not_approve_other_arguments_with_the_same_call_id(
    http: httpx2.AsyncClient, store: Store
):
    paid: list[int] = []
    async with working(store, paying_agent(paid)):
        small = (await run(http, "r1", "1"))[-1]["outcome"]["interrupts"][0]
        answer = {"interruptId": small["id"], "status": "resolved", "payload": {"approved": True}}
        await run(http, "r2", messages=[], resume=[answer])
        large = (await run(http, "r3", "1000000"))[-1]["outcome"]["interrupts"][0]
        assert (large["toolCallId"], small["toolCallId"]) == ("c", "c")
        body = {"threadId": "t1", "runId": "r4", "messages": [], "resume": [answer]}
        refused = await http.post("/api/ag-ui", json=body)
        assert (refused.status_code, "other arguments" in refused.text) == (409, True)
        assert paid == [1]
        await run(http, "r5", messages=[], resume=[answer | {"interruptId": large["id"]}])
    assert paid == [1, 1_000_000]


async def test_a_repeated_answer_over_ag_ui_does_not_approve_the_same_call_of_a_later_turn(
    http: httpx2.AsyncClient, store: Store
):
    paid: list[int] = []
    async with working(store, paying_agent(paid)):
        asked = (await run(http, "r1", "1"))[-1]["outcome"]["interrupts"][0]
        answer = {"interruptId": asked["id"], "status": "resolved", "payload": {"approved": True}}
        first = await run(http, "r2", messages=[], resume=[answer])
        await run(http, "r3", "1")
        again = await run(http, "r2", messages=[], resume=[answer])
        assert [each["type"] for each in again] == [each["type"] for each in first]
        assert (await http.get("/api/sessions/t1")).json()["status"] == "waiting"
    assert paid == [1]


async def test_an_answer_of_use_chat_does_not_approve_other_arguments_with_the_same_call_id(
    http: httpx2.AsyncClient, store: Store
):
    paid: list[int] = []
    part: dict[str, Any] = {
        "type": "tool-pay",
        "toolCallId": "c",
        "state": "approval-responded",
        "approval": {"id": "c", "approved": True},
    }
    async with working(store, paying_agent(paid)):
        await chat(http, user("1000000"))
        for given in ({"input": {"amount": 1}}, {"input": {"amount": 1_000_000.5}}, {"input": None}, {}):
            answer = {"id": "a", "role": "assistant", "parts": [part | given]}
            refused = await http.post("/api/chat", json={"id": "c1", "messages": [answer]})
            assert (refused.status_code, "other arguments" in refused.text) == (409, True), given
    assert paid == []


MEGABYTE = 1024 * 1024


async def fill(store: Store, messages: list[dict[str, Any]], session_id: str = "c1") -> None:
    """Create a session with these messages as its history."""
    await store.create_session(agent="agent", owner="ada", id=session_id)
    lease = await store.acquire(session_id, await store.join("filler"))
    runs = [Run(id=run_id) for run_id in dict.fromkeys(message["run_id"] for message in messages)]
    await store.write(lease, Batch(segments=[Segment(number=1)], runs=runs))
    for position, message in enumerate(messages):
        stored = Message(segment=1, position=position, body=json.dumps(message))
        await store.write(lease, Batch(messages=[stored]))
    place = Checkpoint(id=f"c-{session_id}", segment=1, length=len(messages))
    await store.write(lease, Batch(checkpoints=[place]))
    await store.release(lease)


def prompt(run_id: str, text: str) -> dict[str, Any]:
    part = {"part_kind": "user-prompt", "content": text, "timestamp": "2026-01-01T00:00:00Z"}
    return {"kind": "request", "parts": [part], "run_id": run_id}


def response(run_id: str, *parts: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "response", "parts": parts, "run_id": run_id, "timestamp": "2026-01-01T00:00:00Z"}


async def chat_pages(http: httpx2.AsyncClient, id: str = "c1") -> list[list[dict[str, Any]]]:
    """Return the pages of a chat, the latest first."""
    pages: list[list[dict[str, Any]]] = []
    path: str | None = f"/api/chat/{id}"
    while path is not None:
        answer = await http.get(path)
        assert len(answer.content) < 6 * MEGABYTE
        pages.append(answer.json())
        earlier = answer.links.get("prev")
        path = None if earlier is None else earlier["url"]
    return pages


async def test_a_long_chat_is_read_in_pages_whose_size_is_bounded(
    http: httpx2.AsyncClient, store: Store, monkeypatch: pytest.MonkeyPatch
):
    threads: set[int] = set()
    dump = VercelAIAdapter.dump_messages

    def noted(*given: Any, **options: Any) -> Any:
        threads.add(threading.get_ident())
        return dump(*given, **options)

    monkeypatch.setattr(VercelAIAdapter, "dump_messages", noted)
    text = "x" * MEGABYTE
    turns = [
        each
        for number in range(12)
        for each in (
            prompt(f"run-{number}", f"{number} {text}"),
            response(f"run-{number}", {"part_kind": "text", "content": f"{number} answer"}),
        )
    ]
    await fill(store, turns)
    pages = await chat_pages(http)
    assert len(pages) > 3
    whole = [message for page in reversed(pages) for message in page]
    assert [message["role"] for message in whole] == ["user", "assistant"] * 12
    assert [message["id"] for message in whole[1::2]] == [f"run-{number}" for number in range(12)]
    assert len({message["id"] for message in whole}) == 24
    assert threading.get_ident() not in threads


async def test_a_turn_that_is_too_large_for_a_page_is_divided_between_its_steps(
    http: httpx2.AsyncClient, store: Store
):
    text = "x" * MEGABYTE
    messages = [prompt("run-1", "go")]
    for number in range(12):
        call = {"tool_name": "act", "tool_call_id": f"c{number}"}
        messages.append(response("run-1", {"part_kind": "tool-call", "args": "{}", **call}))
        result = {"part_kind": "tool-return", "content": text, "timestamp": "2026-01-01T00:00:00Z", **call}
        messages.append({"kind": "request", "parts": [result], "run_id": "run-1"})
    messages.append(response("run-1", {"part_kind": "text", "content": "done"}))
    await fill(store, messages)
    pages = await chat_pages(http)
    assert len(pages) > 2
    whole = [message for page in reversed(pages) for message in page]
    assert pages[0][-1]["id"] == "run-1"  # as its stream has it
    assert len({message["id"] for message in whole}) == len(whole)
    calls = [part for message in whole for part in message["parts"] if part["type"] == "tool-act"]
    assert [call["toolCallId"] for call in calls] == [f"c{number}" for number in range(12)]
    assert {call["state"] for call in calls} == {"output-available"}
