"""An agent as a loop around the OpenAI SDK, without any framework: every model request and every tool call is a step.

    OPENAI_API_KEY=… OPENAI_MODEL=gpt-5 holdfast serve examples.openai_loop:assistant

`OPENAI_BASE_URL` names any server with the same API. Kill the worker at any moment: the next one continues the loop where it was, and
asks the model nothing twice.
"""

import json
import os
from typing import Any

from openai import APIConnectionError, AsyncOpenAI, RateLimitError

import holdfast
from holdfast import Retry, Turn

TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "water_level",
            "description": "The water level of a harbour in metres.",
            "parameters": {
                "type": "object",
                "properties": {"harbour": {"type": "string"}},
                "required": ["harbour"],
            },
        },
    }
]
BUSY = Retry(on=(APIConnectionError, RateLimitError), attempts=5)


async def ask_model(messages: Any) -> dict[str, Any]:
    """Return the next message of the model."""
    async with AsyncOpenAI(max_retries=0) as client:
        made = await client.chat.completions.create(
            model=os.environ.get("OPENAI_MODEL", "gpt-5"), messages=messages, tools=TOOLS
        )
    return made.choices[0].message.model_dump(exclude_none=True)


async def water_level(harbour: str) -> float:
    """Return the water level of a harbour."""
    return {"Rostock": 5.1, "Hamburg": 7.4}.get(harbour, 0.0)


@holdfast.agent("assistant")
async def assistant(turn: Turn) -> str:
    """Call the model and its tools until it answers."""
    messages: list[dict[str, Any]] = list(turn.messages)
    while True:
        answer = await turn.step("model", ask_model, messages, recovery="retry", retry=BUSY)
        messages.append(answer)
        if not answer.get("tool_calls"):
            return str(answer.get("content") or "")
        await turn.add(answer)
        for call in answer["tool_calls"]:
            harbour = json.loads(call["function"]["arguments"])["harbour"]
            level = await turn.step("water_level", water_level, harbour, recovery="retry")
            result = {"role": "tool", "tool_call_id": call["id"], "content": str(level)}
            messages.append(result)
            await turn.add(result)
