"""Runs an agent with a delegate in its conversation, kills the process at a chosen point, and continues in another one.

`python -m tests.promises.delegates URL FOLDER POLICY MODE [POINT …]` prints one line of JSON per point, as tests/promises/crash.py does.
"""

import json
import sys
from pathlib import Path
from typing import Any

from pydantic_ai import Agent, RunContext, Tool
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from holdfast import Holdfast, continue_session, idempotency_key, load_history, resume
from holdfast.errors import Conflict, NotFound
from holdfast.record import Policy, is_provider_valid
from holdfast.store import Store, open_store
from holdfast.types import Run
from tests.promises.crash import Points, drill, lease_ttl, when_free


class Agents:
    """An agent, and the one that it delegates to. The effects of both are lines in a file."""

    def __init__(self, store: Store, log: Path, points: Points, policy: Policy) -> None:
        self._log = log
        self._points = points
        self._recorder = Holdfast(store, policies={"delegate": policy}, lease_ttl=lease_ttl(store))
        self.delegate = self._agent("delegate", [[("left", 2)], [("right", 3)]], [])
        self.parent = self._agent(
            "parent",
            [[("delegate", 0), ("left", 1)], [("right", 4)]],
            [Tool(self._run_delegate, name="delegate")],
        )

    def _agent(
        self, name: str, turns: list[list[tuple[str, int]]], tools: list[Tool[None]]
    ) -> Agent[None, str]:
        def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
            del info
            self._points.here(f"{name}-model")
            if prompts(messages)[-1] == "next":
                return ModelResponse(parts=[TextPart(f"{name} continued")])
            turn = sum(isinstance(message, ModelResponse) for message in messages)
            if turn == len(turns):
                return ModelResponse(parts=[TextPart(f"{name} is done")])
            # Both agents use the same ids for their calls, as test models and some providers do.
            return ModelResponse(
                parts=[ToolCallPart(tool, {"x": x}, f"call-{tool}") for tool, x in turns[turn]]
            )

        acting = [Tool(self._act, name="left"), Tool(self._act, name="right")]
        model_of = FunctionModel(model)
        return Agent(
            model_of, name=name, deps_type=type(None), capabilities=[self._recorder], tools=[*acting, *tools]
        )

    async def _act(self, ctx: RunContext[None], x: int) -> str:
        self._points.here(f"in-{x}")
        with self._log.open("a") as file:
            file.write(f"{x} {idempotency_key(ctx)}\n")
        self._points.here(f"did-{x}")
        return f"result {x}"

    async def _run_delegate(self, ctx: RunContext[None], x: int) -> str:
        del x
        self._points.here("delegating")
        result = await self.delegate.run("help", conversation_id=ctx.conversation_id)
        self._points.here("delegated")
        return result.output


async def first(url: str, talk: str, log: Path, policy: Policy, point: str | None) -> None:
    points = Points(point)
    async with open_store(url) as store:
        points.watch_writes(store)
        agents = Agents(store, log, points, policy)
        result = await agents.parent.run("go", conversation_id=talk, run_id=f"run-{talk}")
        facts = {"points": points.passed, "output": result.output}
        (log.parent / "points.json").write_text(json.dumps(facts))


async def second(url: str, talk: str, log: Path, policy: Policy, mode: str) -> dict[str, Any]:
    async with open_store(url) as store:
        agents = Agents(store, log, Points(None), policy)
        cut_off = await _delegates(store, talk)
        output = await when_free(store, lambda: _continue(agents.parent, store, talk, f"run-{talk}", mode))
        delegates = await _delegates(store, talk)
        outputs = [
            await when_free(store, lambda: _continue(agents.delegate, store, run.session_id, run.id, mode))  # noqa: B023
            for run in delegates
        ]
        return {
            "output": output,
            "cut_off": [run.id for run in cut_off],
            "delegates": [run.id for run in delegates],
            "delegate_outputs": outputs,
            "parent_prompts": prompts(await _history(store, talk)),
            "delegate_prompts": [prompts(await _history(store, run.session_id)) for run in delegates],
            "valid": [is_provider_valid(await _history(store, name)) for name in _sessions(talk, delegates)],
            "statuses": [(await store.session(name)).status for name in _sessions(talk, delegates)],
            "violations": [str(violation) for violation in await store.check()],
            "reported": "it is unknown whether it took effect" in str(await _history(store, talk)),
        }


def _sessions(talk: str, delegates: list[Run]) -> list[str]:
    return [talk, *(run.session_id for run in delegates)]


async def _delegates(store: Store, talk: str) -> list[Run]:
    """Return the delegates of all runs of a session, which a later run may have started as well."""
    try:
        runs = (await store.runs(session_id=talk)).items
    except NotFound:
        return []
    return [child for run in runs for child in (await store.runs(parent_id=run.id)).items]


async def _history(store: Store, session_id: str) -> list[ModelMessage]:
    (latest,) = (await store.checkpoints(session_id=session_id, limit=1)).items
    return await load_history(store, latest)


def prompts(messages: list[ModelMessage]) -> list[str]:
    return [
        str(part.content) for message in messages for part in message.parts if part.part_kind == "user-prompt"
    ]


async def _continue(agent: Agent[None, str], store: Store, session_id: str, run_id: str, mode: str) -> str:
    """Resume a run, or send the next message to its session. A run that has completed is only read."""
    if mode == "continue":
        try:
            return (await continue_session(agent, store, session_id, "next")).output
        except NotFound:
            return (await agent.run("next", conversation_id=session_id)).output
    try:
        return (await resume(agent, store, run_id)).output
    except NotFound:  # it was killed before its first write: no model was called, no tool has run
        return (await agent.run("go", conversation_id=session_id)).output
    except Conflict as reason:
        if "completed" not in str(reason):
            raise
        return str((await _history(store, session_id))[-1].parts[0].content)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownArgumentType]


if __name__ == "__main__":
    drill(first, second, *sys.argv[1:])  # pyright: ignore[reportArgumentType]
