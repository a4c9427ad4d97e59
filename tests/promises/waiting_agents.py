"""Runs an agent that sleeps and waits for signals, kills the process at a chosen point, and continues in another one.

`python -m tests.promises.waiting_agents URL FOLDER KIND continue [POINT …]` prints one line of JSON per point, as tests/promises/crash.py
does. KIND is `plain`, or `tool` for a Pydantic AI agent whose tool waits while another one acts. Each process has a worker and a client
that sends the message and the signals.
"""

import json
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from holdfast import FunctionAgent, Turn, agent, signal, sleep, step
from holdfast.errors import SignalTimeout
from holdfast.store import Store, open_store
from tests.builders import until
from tests.promises.crash import Points, drill
from tests.runtime.agents import kinds, send, working

SIGNALS = ("paid", "paid", "unexpected")


class Acts:
    """Records each act of the agent as a line in a file."""

    def __init__(self, log: Path, points: Points) -> None:
        self._log = log
        self._points = points

    def act(self, name: str) -> str:
        with self._log.open("a") as file:
            file.write(f"{name}\n")
        self._points.here(f"did-{name}")
        return name

    async def wait(self) -> list[Any]:
        """Act before and after each kind of wait, and return what was received."""
        await self._step("first")
        await sleep(seconds=0.2)
        self._points.here("slept")
        await self._step("second")
        received = [await signal("paid")]
        await self._step("third")
        received.append(await signal("paid", timeout=timedelta(minutes=10)))
        try:
            received.append(await signal("never", timeout=timedelta(seconds=0.2)))
        except SignalTimeout:
            received.append("late")
        await self._step("last")
        return received

    async def _step(self, name: str) -> None:
        await step(name, self.act, name, recovery="retry")


def make_agent(talk: str, acts: Acts, kind: str) -> FunctionAgent | Agent[object, str]:
    """Return an agent for one session only: several drills may share a database, and each has its own workers."""
    name = f"clerk of {talk}"
    if kind == "plain":

        @agent(name)
        async def clerk(turn: Turn) -> str:
            del turn
            return json.dumps(await acts.wait())

        return clerk

    def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        del info
        results = {p.tool_name: p.content for m in messages for p in m.parts if isinstance(p, ToolReturnPart)}
        if results:
            return ModelResponse(parts=[TextPart(json.dumps(results["wait"]))])
        return ModelResponse(parts=[ToolCallPart("wait", {}, "c1"), ToolCallPart("other", {}, "c2")])

    async def other() -> str:
        return await step("other", acts.act, "other", recovery="retry")

    waiter = Agent(FunctionModel(respond), name=name)
    waiter.tool_plain(metadata={"recovery": "steps"})(acts.wait)
    waiter.tool_plain(metadata={"recovery": "steps"})(other)
    return waiter


async def talk_to(store: Store, session_id: str) -> None:
    """Send the message and the signals, and wait for the end. A second client sends all of them again."""
    await store.create_session(agent=f"clerk of {session_id}", owner="you", id=session_id, exist_ok=True)
    message = await send(store, session_id, "go", idempotency_key="go")
    for number, name in enumerate(SIGNALS):
        payload = json.dumps({"name": name, "data": number})
        await store.submit(session_id, "signal", payload, lane="control", idempotency_key=f"{name} {number}")

    async def is_over() -> bool:
        return (await store.submission(message.id)).ended_at is not None

    await until(is_over, 120)


async def first(url: str, talk: str, log: Path, policy: str, point: str | None) -> None:
    points = Points(point)
    async with open_store(url) as store:
        points.watch_writes(store)
        async with working(store, make_agent(talk, Acts(log, points), policy)):
            await talk_to(store, talk)
        (log.parent / "points.json").write_text(json.dumps({"points": points.passed}))


async def second(url: str, talk: str, log: Path, policy: str, mode: str) -> dict[str, Any]:
    del mode
    async with open_store(url) as store:
        async with working(store, make_agent(talk, Acts(log, Points(None)), policy)):
            await talk_to(store, talk)
        events = await store.events(talk, limit=1000)
        waits = [json.loads(event.payload) for event in events if event.kind == "wait_ended"]
        effects = (await store.effects(talk)).items
        submissions = (await store.submissions(talk)).items
        return {
            "output": "".join(event.message or "" for event in events[-4:]),
            "waits": sorted([wait["wait"], wait.get("name"), wait["ended_by"]] for wait in waits),
            "kinds": await kinds(store, talk),
            "open": [effect.call_id for effect in effects if effect.state == "started"],
            "left": [record.key.split("/")[0] for record in await store.records(talk, "signal")],
            "submissions": sorted([found.kind, found.state, found.reason] for found in submissions),
            "violations": [str(violation) for violation in await store.check()],
            "status": (await store.session(talk)).status,
        }


if __name__ == "__main__":
    drill(first, second, *sys.argv[1:])  # pyright: ignore[reportArgumentType]
