"""The agent behind the format tests. It streams, calls tools, asks for leave, fails and hangs, as it is told."""

import asyncio
from collections.abc import AsyncGenerator

from pydantic_ai import Agent, DeferredToolRequests
from pydantic_ai.messages import ModelMessage, ModelRequest, ToolReturnPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, DeltaToolCalls, FunctionModel

SAID = [f"word{number} " for number in range(12)]


async def talk(messages: list[ModelMessage], info: AgentInfo) -> AsyncGenerator[str | DeltaToolCalls, None]:
    del info
    prompts = [
        (number, part.content)
        for number, message in enumerate(messages)
        if isinstance(message, ModelRequest)
        for part in message.parts
        if isinstance(part, UserPromptPart)
    ]
    last, prompt = prompts[-1]
    results = [part for m in messages[last:] for part in m.parts if isinstance(part, ToolReturnPart)]
    match prompt:
        case "use":
            if results:
                yield f"It says {results[0].content}"
            else:
                yield "Looking. "
                yield {0: DeltaToolCall("look", '{"where": "here"}', tool_call_id=f"call-{last}")}
        case "ask":
            if results:
                yield "Done."
            else:
                yield {0: DeltaToolCall("launch", '{"what": "it"}', tool_call_id=f"call-{last}")}
        case "fail":
            yield "Well, "
            raise ValueError("the model broke")
        case "hang":
            yield "Still here"
            await asyncio.sleep(600)
        case _:
            for word in SAID:
                yield word
                await asyncio.sleep(0.08)


agent: Agent[None, str | DeferredToolRequests] = Agent(
    FunctionModel(stream_function=talk), name="agent", output_type=[str, DeferredToolRequests]
)


@agent.tool_plain
async def look(where: str) -> str:
    return f"nothing {where}"


@agent.tool_plain(requires_approval=True)
async def launch(what: str) -> str:
    return f"launched {what}"
