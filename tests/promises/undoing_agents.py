"""Runs a turn of four steps with undos that fails, kills the process at a chosen point, and continues in another one.

`python -m tests.promises.undoing_agents URL FOLDER POLICY KIND [POINT …]` prints one line of JSON per point, as tests/promises/crash.py does.
The policy is that of the steps and their undos: with `probe`, their probes look for their keys in the file of effects; with `report`, a person
does, and undoes the rest. KIND is `plain`, or `tool` for a Pydantic AI agent whose tool has the steps.
"""

import asyncio
import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from holdfast import (
    AgentSetup,
    CompletedStep,
    Done,
    FunctionAgent,
    NotDone,
    Turn,
    Undo,
    Unsettled,
    agent,
    idempotency_key,
    step,
)
from holdfast.record import buffer
from holdfast.record.ledger import is_cut_off
from holdfast.runtime.settling import settle_effect
from holdfast.store import Store, open_store
from holdfast.testing.agents import ledger
from holdfast.types import Submission
from tests.builders import until
from tests.promises.crash import Points, drill, when_free
from tests.runtime.agents import kinds, send, working

STEPS = ("seat", "hotel", "pay", "mail")


class Trip:
    """Steps with real effects, and what undoes them. Each appends its name and its key to a file; an undo has a minus before the name."""

    def __init__(self, log: Path, points: Points, policy: Any) -> None:
        self._log = log
        self._points = points
        probe = self._find if policy == "probe" else None
        self._options: dict[str, Any] = {"recovery": policy, "probe": probe, "undo": "cancel"}
        self.undo = Undo(self._cancel, name="cancel", recovery=policy, probe=probe, step_probe=probe)

    async def book(self) -> None:
        await step("seat", self._act, "seat", **self._options)
        await step("hotel", self._with_inner_step, **self._options)
        await asyncio.sleep(0)
        await step("pay", self._act, "pay", **self._options)
        await step("mail", self._act, "mail", **self._options)
        message = "no more seats"
        raise RuntimeError(message)

    async def _with_inner_step(self) -> str:
        await step("room", len, "room", recovery="retry", undo="cancel")  # the outer step covers it
        return await self._act("hotel")

    async def _act(self, name: str) -> str:
        self._points.here(f"in{name}")
        with self._log.open("a") as file:
            file.write(f"{name} {idempotency_key()}\n")
        await asyncio.sleep(0)
        self._points.here(f"did{name}")
        return f"{name} done"

    async def _cancel(self, completed: CompletedStep[str]) -> None:
        assert completed.result == f"{completed.name} done"
        await self._act(f"-{completed.name}")

    def _find(self, call: Unsettled) -> Done[str] | NotDone:
        keys = [line.split()[1] for line in self._log.read_text().splitlines()]
        return Done(f"{call.name} done") if call.key in keys else NotDone()


def make_agent(talk: str, trip: Trip, kind: str) -> FunctionAgent | AgentSetup:
    """Return an agent for one session only: several drills may share a database, and each has its own workers."""
    name = f"travel of {talk}"
    if kind == "plain":

        @agent(name, undo=[trip.undo], on_failure="undo")
        async def travel(turn: Turn) -> None:
            del turn
            await trip.book()

        return travel

    def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        del info
        if messages[-1].parts[-1].part_kind != "user-prompt":
            message = "the tool has failed"
            raise RuntimeError(message)
        return ModelResponse(parts=[ToolCallPart("book", {}, "c1")])

    travel_agent = Agent(FunctionModel(respond))
    travel_agent.tool_plain(metadata={"recovery": "steps"})(trip.book)
    return AgentSetup(agent=travel_agent, name=name, undo=[trip.undo], on_failure="undo")


async def talk_to(store: Store, session_id: str) -> Submission:
    """Send the message, and wait for its end."""
    await store.create_session(agent=f"travel of {session_id}", owner="you", id=session_id, exist_ok=True)
    message = await send(store, session_id, "go", idempotency_key="go")
    return await _ended(store, message)


async def _ended(store: Store, submission: Submission) -> Submission:
    async def is_over() -> bool:
        return (await store.submission(submission.id)).ended_at is not None

    await until(is_over, 120)
    return await store.submission(submission.id)


async def _settle_and_undo(store: Store, turn: Submission, log: Path) -> list[str | None]:
    """Settle what is unknown by looking into the log, and undo the rest. Return how the undos ended."""
    ends: list[str | None] = []
    while not ends or ends[-1] is not None:
        keys = {line.split()[1] for line in log.read_text().splitlines()}
        for effect in await ledger(store, turn.session_id):
            if is_cut_off(effect) and "/" in effect.call_id:
                done = effect.idempotency_key in keys or effect.tool == "room"
                known = {"result": f"{effect.tool} done"} if done else {"error": "it did not happen"}
                settling = partial(settle_effect, store, effect.run_id, effect.call_id, actor="you", **known)
                await when_free(store, settling)
        payload = json.dumps({"submission_id": turn.id})
        undo = await store.submit(turn.session_id, "undo_effects", payload)
        ends.append((await _ended(store, undo)).reason)
        assert len(ends) < 5, ends
    return ends


async def first(url: str, talk: str, log: Path, policy: str, point: str | None) -> None:
    points, kind = Points(point), sys.argv[4]
    buffer._SETUP = 60  # the start of the run is in the same write at whatever pace
    async with open_store(url) as store:
        points.watch_writes(store)
        async with working(store, make_agent(talk, Trip(log, points, policy), kind)):
            await talk_to(store, talk)
        (log.parent / "points.json").write_text(json.dumps({"points": points.passed}))


async def second(url: str, talk: str, log: Path, policy: str, kind: str) -> dict[str, Any]:
    async with open_store(url) as store:
        async with working(store, make_agent(talk, Trip(log, Points(None), policy), kind)):
            turn = await talk_to(store, talk)
            ends = await _settle_and_undo(store, turn, log) if policy == "report" else []
        effects = await ledger(store, talk)
        return {
            "output": turn.reason,
            "state": turn.state,
            "ends": ends,
            "undone": [effect.undoes for effect in effects if effect.undoes and effect.state == "completed"],
            "open": [e.call_id for e in effects if "/" in e.call_id and e.state == "started"],
            "kinds": await kinds(store, talk),
            "violations": [str(violation) for violation in await store.check()],
            "status": (await store.session(talk)).status,
        }


if __name__ == "__main__":
    drill(first, second, *sys.argv[1:])  # pyright: ignore[reportArgumentType]
