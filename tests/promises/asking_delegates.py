"""Runs an agent that asks through a delegate three levels deep, kills the process at a chosen point, and continues in another one.

`python -m tests.promises.asking_delegates URL FOLDER KIND continue [POINT …]` prints one line of JSON per point, as tests/promises/crash.py
does. KIND is `root` or `below`: the session in which the client answers. Each process has a worker and that client.
"""

import json
import sys
from pathlib import Path
from typing import Any

from pydantic_ai import Agent, DeferredToolRequests, RunContext
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from holdfast import Holdfast, connect, step
from holdfast.approval import ApprovalRequest
from holdfast.client import SessionHandle
from holdfast.errors import Conflict, NotFound
from holdfast.store import Store, open_store
from tests.builders import until
from tests.promises.crash import Points, drill, lease_ttl
from tests.promises.waiting_agents import Acts
from tests.runtime.agents import kinds, send, working

AMOUNTS = (5, 5)


def make_agent(store: Store, talk: str, acts: Acts) -> Agent[object, Any]:
    """Return an agent for one session only: several drills may share a database, and each has its own workers."""
    recorder = Holdfast(store, lease_ttl=lease_ttl(store))

    def new(name: str, *responses: list[ToolCallPart]) -> Agent[object, Any]:
        def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
            del info
            number = sum(isinstance(message, ModelResponse) for message in messages)
            if number < len(responses):
                return ModelResponse(parts=[*responses[number]])
            results = [str(p.content) for m in messages for p in m.parts if isinstance(p, ToolReturnPart)]
            return ModelResponse(parts=[TextPart(" ".join(results))])

        return Agent(
            FunctionModel(respond),
            name=name,
            capabilities=[recorder],
            output_type=[str, DeferredToolRequests],
        )

    # Each payment has the same id and the same arguments as the other.
    payer = new(
        "payer",
        *([ToolCallPart("pay", {"amount": n}, "c1"), ToolCallPart("look", {}, "c2")] for n in AMOUNTS),
    )

    @payer.tool_plain(requires_approval=True, metadata={"recovery": "retry"})
    async def pay(amount: int) -> str:  # pyright: ignore[reportUnusedFunction]
        return acts.act(f"paid-{amount}")

    @payer.tool_plain(metadata={"recovery": "retry"})
    async def look() -> str:  # pyright: ignore[reportUnusedFunction]
        return acts.act("looked")

    def above(delegate: Agent[object, Any], name: str) -> Agent[object, Any]:
        agent = new(name, [ToolCallPart("ask", {}, "c1")])

        @agent.tool(metadata={"recovery": "steps"})
        async def ask(ctx: RunContext[object]) -> str:  # pyright: ignore[reportUnusedFunction]
            await step("before", acts.act, f"before-{name.split(maxsplit=1)[0]}", recovery="retry")
            result = await delegate.run("help", conversation_id=ctx.conversation_id)
            await step("after", acts.act, f"after-{name.split(maxsplit=1)[0]}", recovery="retry")
            return result.output

        return agent

    return above(above(payer, "middle"), f"clerk of {talk}")


async def talk_to(store: Store, session_id: str, kind: str, points: Points) -> None:
    """Send the message, approve each question once, and wait for the end. A second client sends the same again."""
    await store.create_session(agent=f"clerk of {session_id}", owner="local", id=session_id, exist_ok=True)
    message = await send(store, session_id, "go", idempotency_key="go")
    answered: set[str] = set()
    async with connect(store) as hf:
        root = await hf.session(session_id)

        async def is_over() -> bool:
            for asked in (await root.info()).approvals:
                if asked.call_id not in answered:
                    points.here("asked")
                    answered.add(asked.call_id)
                    if not await _approve(
                        root,
                        asked,
                        (await hf.session(asked.origin.session_id))
                        if asked.origin and kind == "below"
                        else None,
                    ):
                        answered.discard(asked.call_id)
            return (await store.submission(message.id)).ended_at is not None

        await until(is_over, 120)


async def _approve(
    root: SessionHandle[Any], asked: ApprovalRequest, below: SessionHandle[Any] | None
) -> bool:
    """Approve a call at the root, or in the session of the delegate. Return false if it was not found there: it was answered meanwhile."""
    try:
        if below is None or asked.origin is None:
            await root.approve(asked)
        else:
            await below.approve(asked.origin.call_id)
    except (Conflict, NotFound):
        return False
    return True


async def first(url: str, talk: str, log: Path, policy: str, point: str | None) -> None:
    points = Points(point)
    async with open_store(url) as store:
        points.watch_writes(store)
        async with working(store, make_agent(store, talk, Acts(log, points))):
            await talk_to(store, talk, policy, points)
        (log.parent / "points.json").write_text(json.dumps({"points": points.passed}))


async def second(url: str, talk: str, log: Path, policy: str, mode: str) -> dict[str, Any]:
    del mode
    async with open_store(url) as store:
        async with working(store, make_agent(store, talk, Acts(log, Points(None)))):
            await talk_to(store, talk, policy, Points(None))
        sessions = await _tree(store, talk)
        events = {each: await store.events(each, limit=1000) for each in sessions}
        return {
            "output": "".join(event.message or "" for event in events[talk][-4:]),
            "sessions": len(sessions),
            "answers": [sum(e.kind == "approval_answered" for e in events[each]) for each in sessions],
            "asked": sorted(
                {
                    c["call_id"]
                    for e in events[talk]
                    if e.kind == "approval_requested"
                    for c in json.loads(e.payload)["calls"]
                }
            ),
            "kinds": await kinds(store, talk),
            "submissions": sorted([s.kind, s.state, s.reason] for s in (await store.submissions(talk)).items),
            "open": [
                effect.call_id
                for each in sessions
                for effect in (await store.effects(each)).items
                if effect.state == "started"
            ],
            "violations": [str(violation) for violation in await store.check()],
            "statuses": [(await store.session(each)).status for each in sessions],
        }


async def _tree(store: Store, session_id: str) -> list[str]:
    """Return a session and the sessions of its delegates, from the root downwards."""
    below = [each for child in await store.child_sessions(session_id) for each in await _tree(store, child)]
    return [session_id, *below]


if __name__ == "__main__":
    drill(first, second, *sys.argv[1:])  # pyright: ignore[reportArgumentType]
