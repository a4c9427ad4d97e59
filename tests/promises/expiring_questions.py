"""Runs an agent whose questions expire, kills the process at a chosen point, and continues in another one.

`python -m tests.promises.expiring_questions URL FOLDER KIND continue [POINT …]` prints one line of JSON per point, as
tests/promises/crash.py does. KIND is `plain`, or `tool` for a Pydantic AI agent that asks all questions at once. Nobody answers but the
client, after the last reminder of the question with the default `remind`.
"""

import json
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from holdfast import FunctionAgent, Turn, agent, step
from holdfast.questions import pending_approvals
from holdfast.record import deadlines
from holdfast.store import Store, open_store
from tests.builders import until
from tests.promises.crash import Points, drill
from tests.promises.waiting_agents import Acts
from tests.runtime.agents import kinds, send, working

SOON = timedelta(seconds=0.3)
QUESTIONS = {"pay": "approve", "send": "deny", "ship": "remind"}
deadlines.MOST_REMINDERS = 2  # pyright: ignore[reportAttributeAccessIssue, reportConstantRedefinition]


def make_agent(talk: str, acts: Acts, kind: str) -> FunctionAgent | Agent[object, str]:
    """Return an agent for one session only: several drills may share a database, and each has its own workers."""
    name = f"clerk of {talk}"

    if kind == "plain":

        @agent(name)
        async def clerk(turn: Turn) -> str:
            await step("first", acts.act, "first", recovery="retry")
            decided: list[str] = []
            for what, default in QUESTIONS.items():
                if await turn.ask(what, deadline=SOON, default=default):  # pyright: ignore[reportArgumentType]
                    decided.append(await step(what, acts.act, what, recovery="retry"))
            return json.dumps(decided)

        return clerk

    def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        del info
        results = [p for m in messages for p in m.parts if isinstance(p, ToolReturnPart)]
        if results:
            decided = [part.content for part in results if part.outcome == "success"]
            return ModelResponse(parts=[TextPart(json.dumps([*filter("first".__ne__, decided)]))])
        return ModelResponse(parts=[ToolCallPart(what, {}, what) for what in ("first", *QUESTIONS)])

    asking = Agent(FunctionModel(respond), name=name)

    def add(what: str, default: str | None) -> None:
        async def tool() -> str:
            return acts.act(what)

        approval = {"deadline": SOON, "default": default}
        metadata: dict[str, Any] = {"recovery": "retry"} | ({"approval": approval} if default else {})
        asking.tool_plain(name=what, requires_approval=default is not None, metadata=metadata)(tool)

    add("first", None)
    for what, default in QUESTIONS.items():
        add(what, default)
    return asking


async def talk_to(store: Store, session_id: str, points: Points) -> None:
    """Send the message, answer the last question after its reminders, and wait for the end. A second client sends the same again."""
    await store.create_session(agent=f"clerk of {session_id}", owner="you", id=session_id, exist_ok=True)
    message = await send(store, session_id, "go", idempotency_key="go")
    answered = False

    async def is_over() -> bool:
        nonlocal answered
        for question in [] if answered else await pending_approvals(store, session_id):
            if question.get("reminders") == deadlines.MOST_REMINDERS:
                answered = True
                points.here("asked")
                given = {"call_id": question["call_id"], "digest": question["digest"], "approved": True}
                await store.submit(
                    session_id, "approval", json.dumps(given), lane="control", idempotency_key="answer"
                )
        return (await store.submission(message.id)).ended_at is not None

    await until(is_over, 120)


async def first(url: str, talk: str, log: Path, policy: str, point: str | None) -> None:
    points = Points(point)
    async with open_store(url) as store:
        points.watch_writes(store)
        async with working(store, make_agent(talk, Acts(log, points), policy)):
            await talk_to(store, talk, points)
        (log.parent / "points.json").write_text(json.dumps({"points": points.passed}))


async def second(url: str, talk: str, log: Path, policy: str, mode: str) -> dict[str, Any]:
    del mode
    async with open_store(url) as store:
        async with working(store, make_agent(talk, Acts(log, Points(None)), policy)):
            await talk_to(store, talk, Points(None))
        events = await store.events(talk, limit=1000)
        answers = [json.loads(event.payload) for event in events if event.kind == "approval_answered"]
        reminders = [json.loads(event.payload) for event in events if event.kind == "approval_reminder"]
        asked = [
            call for e in events if e.kind == "approval_requested" for call in json.loads(e.payload)["calls"]
        ]
        return {
            "output": "".join(event.message or "" for event in events[-4:]),
            "answers": [[answer["call_id"], answer["approved"], answer.get("by")] for answer in answers],
            "reminders": [reminder["number"] for reminder in reminders],
            "asked": [[call["call_id"], call["deadline"]] for call in asked],
            "kinds": await kinds(store, talk),
            "submissions": sorted([s.kind, s.state, s.reason] for s in (await store.submissions(talk)).items),
            "open": [e.call_id for e in (await store.effects(talk)).items if e.state == "started"],
            "violations": [str(violation) for violation in await store.check()],
            "status": (await store.session(talk)).status,
        }


if __name__ == "__main__":
    drill(first, second, *sys.argv[1:])  # pyright: ignore[reportArgumentType]
