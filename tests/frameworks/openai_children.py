"""Processes that use a `HoldfastSession` in real runs: `python -m tests.frameworks.openai_children drill|approve PATH SEED`."""

import asyncio
import json
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from agents import Agent, Runner, Tool, function_tool, set_tracing_disabled
from agents.testing import ScriptedModel, assistant_message, function_call

from holdfast.frameworks.openai_agents import HoldfastSession
from tests.frameworks.drill import kill_and_continue

KILLS = 20
set_tracing_disabled(True)


@function_tool
def note(number: int) -> str:
    """Note a number."""
    return f"noted {number}"


def scripted(*steps: Any, tools: list[Tool] | None = None) -> Agent[Any]:
    """Return an agent whose model answers with these items, one after the other."""
    return Agent(name="clerk", model=ScriptedModel([[step] for step in steps]), tools=tools or [note])


def expected(number: int) -> list[tuple[str, str]]:
    """Return the four items of a turn, as `brief` shows them."""
    return [
        ("user", f"question {number}"),
        ("function_call", f"call-{number}"),
        ("function_call_output", f"noted {number}"),
        ("assistant", f"answer {number}"),
    ]


def brief(item: Any) -> tuple[str, str]:
    if item.get("role") == "assistant":
        return "assistant", item["content"][0]["text"]
    if item.get("role") == "user":
        return "user", item["content"]
    return item["type"], item["output" if item["type"] == "function_call_output" else "call_id"]


async def turn(session: HoldfastSession, number: int) -> None:
    agent = scripted(
        function_call("note", {"number": number}, call_id=f"call-{number}"),
        assistant_message(f"answer {number}"),
    )
    assert (await Runner.run(agent, f"question {number}", session=session)).final_output == f"answer {number}"


async def talk(path: str, acknowledge: Callable[[str], None], *, is_last: bool) -> None:
    """Remove what is left of a turn that was cut off, and do turns: one if this is the last process, else until it is killed."""
    session = HoldfastSession("drill", path)
    items = [brief(item) for item in await session.get_items()]
    while items and items[-1][0] != "assistant":
        assert brief(await session.pop_item()) == items.pop()
    number = len(items) // 4
    acknowledge(f"found {number}")
    while True:
        number += 1
        await turn(session, number)
        acknowledge(f"did {number}")
        if is_last:
            session.close()
            return


async def wait_for_approval(path: str, acknowledge: Callable[[str], None], *, is_last: bool) -> None:
    """Ask to deploy, and wait until this process is killed. The last process approves, and continues."""

    @function_tool(needs_approval=True)
    def deploy(place: str) -> str:
        acknowledge(f"deploys to {place}")
        return "deployed"

    session = HoldfastSession("approval", path)
    if not is_last:
        agent = scripted(function_call("deploy", {"place": "moon"}, call_id="call"), tools=[deploy])
        result = await Runner.run(agent, "Deploy it.", session=session)
        await session.save_state(result.to_state())
        acknowledge(f"waits for {len(result.interruptions)}")
        await asyncio.sleep(3600)
    agent = scripted(assistant_message("It is done."), tools=[deploy])
    state = await session.load_state(agent)
    assert state is not None
    for interruption in state.get_interruptions():
        state.approve(interruption)
    assert await session.delete_state()
    result = await Runner.run(agent, state, session=session)
    acknowledge(str(result.final_output))
    session.close()


def main() -> None:
    how, path, seed = sys.argv[1:]
    child = {"drill": talk, "approve": wait_for_approval}[how]

    def work(acknowledge: Callable[[str], None], *, is_last: bool) -> None:
        asyncio.run(partial(child, path)(acknowledge, is_last=is_last))

    print(json.dumps(kill_and_continue(work, kills=KILLS if how == "drill" else 1, seed=int(seed))))


if __name__ == "__main__":
    main()
