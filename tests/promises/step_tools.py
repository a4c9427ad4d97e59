"""Runs an agent whose tool has steps, kills the process at a chosen point, and resumes the run in another one.

`python -m tests.promises.step_tools URL FOLDER POLICY MODE [POINT …]` prints one line of JSON per point, as tests/promises/crash.py does.
The policy is that of all steps; with `probe`, the probe of each step looks for its key in the file of effects.
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from pydantic_ai import Agent, Tool
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from holdfast import Done, Holdfast, NotDone, Retry, Unsettled, idempotency_key, load_history, resume, step
from holdfast.errors import Conflict, NotFound
from holdfast.record import Policy, buffer, is_provider_valid
from holdfast.store import Store, open_store
from holdfast.testing.agents import ledger
from tests.promises.crash import Points, drill, lease_ttl, when_free


class Effects:
    """Steps with real effects: each appends a line with its name and its key to a file."""

    def __init__(self, log: Path, points: Points, policy: Policy) -> None:
        self._log = log
        self._points = points
        self.options: dict[str, Any] = {"recovery": policy}
        """The options of every step."""
        if policy == "probe":
            self.options["probe"] = self._find

    async def act(self, name: str) -> str:
        self._points.here(f"in-{name}")
        with self._log.open("a") as file:
            file.write(f"{name} {idempotency_key()}\n")
        await asyncio.sleep(0)
        self._points.here(f"did-{name}")
        return f"{name} done"

    async def fail_once(self, name: str) -> str:
        """Fail without an effect the first time, in whichever process that is."""
        failed = self._log.with_name("failed")
        if not failed.exists():
            failed.touch()
            self._points.here(f"failed-{name}")
            raise OSError(name)
        return await self.act(name)

    async def act_with_inner_step(self, name: str) -> str:
        await step("inner", self.act, "inner", **self.options)
        return await self.act(name)

    def _find(self, call: Unsettled) -> Done[str] | NotDone:
        keys = [line.split()[1] for line in self._log.read_text().splitlines()]
        return Done(f"{call.name} done") if call.key in keys else NotDone()


def make_agent(store: Store, log: Path, points: Points, policy: Policy) -> Agent[None, str]:
    effects = Effects(log, points, policy)
    options = effects.options

    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        del info
        points.here("model")
        results = [p for m in messages for p in m.parts if isinstance(p, ToolReturnPart)]
        if not results:
            return ModelResponse(parts=[ToolCallPart("book", {}, "call-1")])
        return ModelResponse(parts=[TextPart(str(results[-1].content))])

    async def book() -> str:
        done = [await step("first", effects.act, "first", **options)]
        done += await asyncio.gather(
            step("left", effects.act, "left", **options), step("right", effects.act, "right", **options)
        )
        done.append(await step("outer", effects.act_with_inner_step, "outer", **options))
        rule = Retry(on=OSError, backoff=0)
        done.append(await step("flaky", effects.fail_once, "flaky", **options, retry=rule))
        done.append(await step("last", effects.act, "last", **options))
        return ", ".join(done)

    return Agent(
        FunctionModel(model),
        deps_type=type(None),
        capabilities=[Holdfast(store, lease_ttl=lease_ttl(store))],
        tools=[Tool(book, metadata={"recovery": "steps"})],
    )


async def first(url: str, talk: str, log: Path, policy: Policy, point: str | None) -> None:
    points = Points(point)
    buffer._SETUP = 60  # the start of the run is in the same write at whatever pace
    async with open_store(url) as store:
        points.watch_writes(store)
        agent = make_agent(store, log, points, policy)
        result = await agent.run("go", conversation_id=talk, run_id=f"run-{talk}")
        facts = {"points": points.passed, "output": result.output}
        (log.parent / "points.json").write_text(json.dumps(facts))


async def second(url: str, talk: str, log: Path, policy: Policy, mode: str) -> dict[str, Any]:
    del mode
    async with open_store(url) as store:
        agent = make_agent(store, log, Points(None), policy)
        recorded = await recorded_steps(store, talk)
        output = await when_free(store, lambda: _resume(agent, store, talk))
        history = await _history(store, talk)
        return {
            "output": output,
            "recorded": recorded,
            "steps": await recorded_steps(store, talk),
            "valid": is_provider_valid(history),
            "violations": [str(violation) for violation in await store.check()],
            "status": (await store.session(talk)).status,
        }


async def recorded_steps(store: Store, session_id: str) -> dict[str, tuple[str, str | None]]:
    """Return the state and the key of each recorded step by its name."""
    try:
        entries = await ledger(store, session_id)
    except NotFound:
        return {}
    steps = [entry for entry in entries if "/" in entry.call_id and entry.idempotency_key]
    return {entry.tool: (entry.state, entry.idempotency_key) for entry in steps}


async def _history(store: Store, session_id: str) -> list[ModelMessage]:
    (latest,) = (await store.checkpoints(session_id=session_id, limit=1)).items
    return await load_history(store, latest)


async def _resume(agent: Agent[None, str], store: Store, talk: str) -> str:
    """Resume the run. One that has completed is only read."""
    try:
        return (await resume(agent, store, f"run-{talk}")).output
    except NotFound:  # it was killed before its first write: no model was called, no tool has run
        return (await agent.run("go", conversation_id=talk)).output
    except Conflict as reason:
        if "completed" not in str(reason):
            raise
        return str((await _history(store, talk))[-1].parts[0].content)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownArgumentType]


if __name__ == "__main__":
    drill(first, second, *sys.argv[1:])  # pyright: ignore[reportArgumentType]
