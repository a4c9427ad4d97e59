"""Runs an agent that is killed at a chosen point, and goes on with it in another process.

`python -m tests.promises.crash URL FOLDER POLICY [POINT …]` prints one line of JSON per point. Every run, every kill and
every going on is a process of its own, forked from this one before it has opened anything.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from pydantic_ai import Agent, RunContext, Tool
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from holdfast import Holdfast, continue_session, idempotency_key, load_history, resume
from holdfast.errors import Conflict, NotFound, SessionBusy
from holdfast.ids import new_id
from holdfast.record import Policy, buffer, is_provider_valid
from holdfast.store import Store, open_store
from holdfast.types import Batch, Lease

T = TypeVar("T")
LARGE = "0123456789 " * 30
"""More than the threshold: it goes to the media store. The prompt, one response and one result have it; the others are small."""


class Points:
    """The points that a run passes, in order; at the chosen one the process is killed."""

    def __init__(self, chosen: str | None) -> None:
        self.chosen = chosen
        self.passed: list[str] = []

    def here(self, name: str) -> None:
        number = sum(1 for passed in self.passed if passed.split("#")[0] == name)
        point = f"{name}#{number}"
        self.passed.append(point)
        if point == self.chosen:
            os.kill(os.getpid(), signal.SIGKILL)

    def watch_writes(self, store: Store) -> asyncio.Event:
        """Pass a point before and after every write of a run, and return the event that the first one sets."""
        buffer._A_MOMENT = 60  # the same writes at whatever pace this machine has today
        write, written = store.write, asyncio.Event()

        async def watched(lease: Lease, batch: Batch) -> int:
            self.here("before-write")
            seq = await write(lease, batch)
            self.here("after-write")
            written.set()
            return seq

        store.write = watched
        return written


def lease_ttl(store: Store) -> float:
    """Return a lifetime that no run which goes well exceeds, however busy the machine is."""
    return 60.0 if store.engine == "mongodb" else 5.0


def make_agent(store: Store, log: Path, points: Points, policy: Policy) -> Agent[None, str]:
    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        points.here("model")
        if str(messages).count("media+sha256:"):
            return ModelResponse(parts=[TextPart("the model was shown a reference")])
        turn = [m for m in messages if isinstance(m, ModelResponse) or _prompts(m)]
        responses = 0
        for message in reversed(turn):
            if not isinstance(message, ModelResponse):
                break
            responses += 1
        if _prompts(messages[-1]) and "next" in _prompts(messages[-1]):
            return ModelResponse(parts=[TextPart("went on")])
        if responses == 0:
            calls = [ToolCallPart("left", {"x": 1}, "call-1"), ToolCallPart("right", {"x": 2}, "call-2")]
            return ModelResponse(parts=calls)
        if responses == 1:
            # The same id as before, as test models and some providers do.
            return ModelResponse(parts=[TextPart(LARGE), ToolCallPart("left", {"x": 3}, "call-1")])
        answers = [p for m in messages for p in m.parts if isinstance(p, ToolReturnPart)]
        return ModelResponse(parts=[TextPart(f"done with {len(answers)} answers")])

    recorder = Holdfast(
        store,
        policies=dict.fromkeys(("left", "right"), policy),
        lease_ttl=lease_ttl(store),
        media_threshold=256,
    )

    async def act(ctx: RunContext[None], x: int) -> str:
        points.here(f"in-{x}")
        with log.open("a") as file:
            file.write(f"{x} {idempotency_key(ctx)}\n")
        await asyncio.sleep(0)
        points.here(f"did-{x}")
        return f"result {x}" if x == 2 else f"result {x} {LARGE}"

    return Agent(
        FunctionModel(model),
        deps_type=type(None),
        capabilities=[recorder],
        tools=[Tool(act, name="left"), Tool(act, name="right")],
    )


def _prompts(message: ModelMessage) -> str:
    return " ".join(str(p.content) for p in message.parts if p.part_kind == "user-prompt")


async def first(url: str, talk: str, log: Path, policy: Policy, point: str | None) -> None:
    points = Points(point)
    async with open_store(url) as store:
        written = points.watch_writes(store)
        agent = make_agent(store, log, points, policy)

        @agent.instructions
        async def slow() -> str:  # pyright: ignore[reportUnusedFunction]
            await written.wait()  # the run is on record, and has asked no model yet
            if not log.with_name("began").exists():
                points.here("began")
                log.with_name("began").touch()
            return ""

        result = await agent.run(f"go {LARGE}", conversation_id=talk, run_id=f"run-{talk}")
        (log.parent / "points.json").write_text(
            json.dumps({"points": points.passed, "output": result.output})
        )


async def second(url: str, talk: str, log: Path, policy: Policy, mode: str) -> dict[str, Any]:
    async with open_store(url) as store:
        agent = make_agent(store, log, Points(None), policy)
        output = await when_free(store, lambda: _go_on(agent, store, talk, mode))
        (latest,) = (await store.checkpoints(session_id=talk, limit=1)).items
        history = await load_history(store, latest)
        return {
            "output": output,
            "valid": is_provider_valid(history),
            "violations": [str(v) for v in await store.check()],
            "status": (await store.session(talk)).status,
            "whole": all(LARGE in str(m) for m in history if _prompts(m).startswith("go")),
            "unknown": sum("it is unknown whether it took effect" in str(m) for m in history),
        }


async def when_free(store: Store, work: Callable[[], Awaitable[T]]) -> T:
    """Do the work as soon as no process holds the session."""
    while True:
        try:
            return await work()
        except SessionBusy:
            await store.reclaim()  # as a worker would: the process that held it has ended
            await asyncio.sleep(0.05)


async def _go_on(agent: Agent[None, str], store: Store, talk: str, mode: str) -> str:
    if mode == "continue":
        try:
            return (await continue_session(agent, store, talk, "next")).output
        except NotFound:
            return (await agent.run("next", conversation_id=talk)).output
    try:
        return (await resume(agent, store, f"run-{talk}")).output
    except NotFound:  # it was killed before its first write: no model was asked, no tool has run
        return (await agent.run(f"go {LARGE}", conversation_id=talk)).output
    except Conflict as reason:
        if "completed" not in str(reason):
            raise
        (latest,) = (await store.checkpoints(session_id=talk, limit=1)).items
        return str((await load_history(store, latest))[-1].parts[0].content)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownArgumentType]


def in_a_process(work: Callable[[], Any], answer: Path | None = None) -> int:
    """Run it in a fork of this process and return how that ended, as a shell would say it."""
    child = os.fork()
    if child == 0:
        try:
            result = work()
            if answer is not None:
                answer.write_text(json.dumps(result))
        except BaseException as error:  # noqa: BLE001 - it is a process's last word
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def drill(
    first: Callable[[str, str, Path, Policy, str | None], Coroutine[Any, Any, None]],
    second: Callable[[str, str, Path, Policy, str], Coroutine[Any, Any, dict[str, Any]]],
    urls: str,
    folder: str,
    policy: Policy,
    mode: str,
    *chosen: str,
) -> None:
    """Run `first` in a process that is killed at each chosen point in turn, and `second` in another; print the facts."""
    for number, point in enumerate(chosen):
        place = Path(folder) / f"{mode}-{policy}-{number}"
        place.mkdir()
        url = urls.replace("{place}", str(place))
        talk = new_id()  # several may share a database
        log, answer = place / "log", place / "answer.json"
        log.touch()
        kill = None if point == "none" else point
        ended = in_a_process(lambda: asyncio.run(first(url, talk, log, policy, kill)))  # noqa: B023
        killed_log = log.read_text()
        went = in_a_process(lambda: asyncio.run(second(url, talk, log, policy, mode)), answer)  # noqa: B023
        facts: dict[str, Any] = {
            "point": point,
            "ended": ended,
            "went": went,
            "before": killed_log.splitlines(),
            "log": log.read_text().splitlines(),
            **(json.loads(answer.read_text()) if answer.exists() else {}),
        }
        if (place / "points.json").exists():
            facts |= json.loads((place / "points.json").read_text()) | {"output": facts["output"]}
        print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    drill(first, second, *sys.argv[1:])  # pyright: ignore[reportArgumentType]
