"""Processes that use a `HoldfastStepStore`: `python -m tests.frameworks.harness_children drill PATH SEED`, or `append URL NAME`."""

import asyncio
import json
import sys
from collections.abc import Callable

from pydantic_ai import Agent
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai_harness.step_persistence import (
    InMemoryStepStore,
    StepEvent,
    StepPersistence,
    StepStore,
    continue_run,
)

from holdfast.frameworks.harness import HoldfastStepStore
from holdfast.record.history import dump, load
from tests.frameworks.drill import kill_and_continue

KILLS = 20
TALK = "drill"
EVENTS = 30


async def note(number: int) -> str:
    """Note a number."""
    return f"noted {number}"


def _answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Call the tool for a question, and answer once it has returned."""
    del info
    number = int(
        [
            str(part.content)
            for message in messages
            for part in message.parts
            if isinstance(part, UserPromptPart)
        ][-1].removeprefix("question ")
    )
    if isinstance(messages[-1].parts[-1], ToolReturnPart):
        return ModelResponse(parts=[TextPart(f"answer {number}")])
    return ModelResponse(parts=[ToolCallPart("note", {"number": number}, tool_call_id=f"call-{number}")])


def clerk(store: StepStore) -> Agent[None, str]:
    return Agent(
        FunctionModel(_answer), tools=[note], capabilities=[StepPersistence(store=store)], name="clerk"
    )


def expected(number: int) -> list[tuple[str, object]]:
    """Return the four messages of a turn, as `brief` shows them."""
    return [
        ("user-prompt", f"question {number}"),
        ("tool-call", f"call-{number}"),
        ("tool-return", f"noted {number}"),
        ("text", f"answer {number}"),
    ]


def brief(message: ModelMessage) -> tuple[str, object]:
    (part,) = message.parts
    if isinstance(part, ToolCallPart):
        return part.part_kind, part.tool_call_id
    return part.part_kind, getattr(part, "content", None)


async def newest(store: StepStore) -> list[ModelMessage]:
    """Return the history of the latest run that can be continued."""
    for run in reversed(await store.list_runs(conversation_id=TALK)):
        try:
            return await continue_run(store, run_id=run.run_id)
        except LookupError:  # it was killed before its first snapshot
            continue
    return []


async def talk(path: str, acknowledge: Callable[[str], None], *, is_last: bool) -> None:
    """Complete a turn that was cut off, and do turns: one if this is the last process, else until it is killed."""
    store = HoldfastStepStore(path)
    agent = clerk(store)
    history = await newest(store)
    number = sum(isinstance(message.parts[-1], TextPart) for message in history)
    acknowledge(f"found {number}")
    while True:
        number += 1
        is_cut_off = bool(history) and isinstance(history[-1], ModelRequest)
        question = None if is_cut_off else f"question {number}"
        result = await agent.run(question, message_history=history, conversation_id=TALK)
        assert result.output == f"answer {number}"
        history = result.all_messages()
        acknowledge(f"did {number}")
        if is_last:
            store.close()
            return


async def append(url: str, name: str) -> None:
    store = HoldfastStepStore(url)
    for number in range(EVENTS):
        await store.append_event(
            StepEvent(run_id="shared", kind="run_started", step_index=number, agent_name=name)
        )
    store.close()


def main() -> None:
    how, where, what = sys.argv[1:]
    if how == "append":
        asyncio.run(append(where, what))
        return

    def work(acknowledge: Callable[[str], None], *, is_last: bool) -> None:
        asyncio.run(talk(where, acknowledge, is_last=is_last))

    warm_up = asyncio.run(
        clerk(InMemoryStepStore()).run("question 0")
    )  # the first run of a process builds schemas
    assert load(map(dump, warm_up.all_messages()))
    print(json.dumps(kill_and_continue(work, kills=KILLS, seed=int(what), most_seconds=0.5)))


if __name__ == "__main__":
    main()
