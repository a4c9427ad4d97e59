"""An agent whose model has a price, and calls its tools and one that it invented."""

from pydantic_ai import Agent, ModelRetry
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import RequestUsage

CALLS = (("look", "a"), ("look", "b"), ("secret-invented-by-the-model", "c"), ("refuse", "d"), ("fail", "e"))


def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    del info
    usage = RequestUsage(input_tokens=1000, output_tokens=100, cache_read_tokens=400, cache_write_tokens=10)
    asked = sum(isinstance(message, ModelResponse) for message in messages)
    part = ToolCallPart(CALLS[asked][0], {}, CALLS[asked][1]) if asked < len(CALLS) else TextPart("done")
    return ModelResponse(parts=[part], usage=usage)


agent: Agent[None, str] = Agent(FunctionModel(respond, model_name="gpt-4o"), name="measured", retries=3)


@agent.tool_plain
async def look() -> str:
    return "seen"


@agent.tool_plain
async def refuse() -> str:
    raise ModelRetry("Ask for something else.")


@agent.tool_plain
async def fail() -> str:
    raise ValueError("secret of an error")
