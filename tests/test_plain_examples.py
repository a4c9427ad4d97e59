"""The examples of plain agents run as they are: against a server that speaks OpenAI's API, with LangGraph, and without a model."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI, Request, Response

from examples import etl, langgraph_graph, openai_loop
from holdfast import connect
from holdfast.errors import ApprovalNeeded
from holdfast.testing.agents import ledger, memory_store


@asynccontextmanager
async def openai_server(failures: int = 0) -> AsyncGenerator[tuple[str, list[Any]], None]:
    """Serve the chat completions of OpenAI's API: one tool call, then an answer. The first requests fail."""
    app = FastAPI()
    requests: list[Any] = []

    @app.post("/v1/chat/completions")
    async def complete(request: Request) -> Any:
        body = await request.json()
        requests.append(body)
        if len(requests) <= failures:
            return Response(status_code=429, content='{"error": {"message": "slow down"}}')
        message: dict[str, Any] = {"role": "assistant", "content": None}
        if body["messages"][-1]["role"] == "tool":
            message["content"] = f"It is {body['messages'][-1]['content']} metres."
        else:
            function = {"name": "water_level", "arguments": '{"harbour": "Rostock"}'}
            message["tool_calls"] = [
                {"id": f"call-{len(requests)}", "type": "function", "function": function}
            ]
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        return {"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}

    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}/v1", requests
    finally:
        server.should_exit = True
        await serving


async def test_a_loop_with_the_openai_sdk(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    agent = openai_loop.assistant
    async with openai_server(failures=1) as (url, requests), memory_store() as store:
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        async with connect(store, agents=agent) as hf:
            session = await hf.session("s", agent=agent)
            assert await (await session.send("How high?")).result(timeout=30) == "It is 5.1 metres."
            assert await (await session.send("And now?")).result(timeout=30) == "It is 5.1 metres."
        assert [message["role"] for message in requests[-1]["messages"]] == [
            *("user", "assistant", "tool", "assistant"),
            *("user", "assistant", "tool"),
        ]
        attempts = [entry.attempts for entry in await ledger(store, "s") if entry.tool == "model"]
        assert sorted(attempts) == [1, 1, 1, 2]


async def test_a_langgraph_graph():
    agent = langgraph_graph.writer
    async with memory_store() as store, connect(store, agents=agent) as hf:
        session = await hf.session("s", agent=agent)
        turn = await session.send("tides")
        with pytest.raises(ApprovalNeeded) as needed:
            await turn.result(timeout=30)
        await session.approve(needed.value.calls[0])
        assert await turn.result(timeout=30) == "# Why tides matters\n\n# How tides works\n"
        names = sorted(entry.call_id for entry in await ledger(store, "s"))
        assert names == ["turn/outline", "turn/section", "turn/section~2"]


async def test_an_etl_job(tmp_path: Path):
    source = tmp_path / "amounts.csv"
    source.write_text("a,1\nb,2\nc,3\n")
    async with memory_store() as store, connect(store, agents=etl.importer) as hf:
        session = await hf.session("s", agent=etl.importer)
        assert await (await session.send(str(source))).result(timeout=30) == {"lines": 3, "total": 6}
    booked = [json.loads(line)["amount"] for line in Path(f"{source}.booked").read_text().splitlines()]
    assert booked == [1, 2, 3]
