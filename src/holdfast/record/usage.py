"""The usage of a model response: its tokens and its cost."""

import asyncio
import time
from collections.abc import Awaitable
from typing import Any

from pydantic_ai.messages import ModelResponse

from holdfast.counting import count


async def counted_request(
    request: Awaitable[ModelResponse], *, agent: str, model: str
) -> tuple[ModelResponse, dict[str, Any]]:
    """Await a model request and count it. Return the response, and its facts for an event.

    `model` is the model that the agent requested: a provider may respond with any name.
    """
    began = time.perf_counter()
    try:
        response = await request
    except BaseException as error:
        outcome = "cancelled" if isinstance(error, asyncio.CancelledError) else "failed"
        count("model_requests", agent=agent, model=model, outcome=outcome)
        raise
    count("model_seconds", time.perf_counter() - began, agent=agent, model=model)
    return response, count_response(response, agent=agent, model=model)


def count_response(response: ModelResponse, *, agent: str, model: str) -> dict[str, Any]:
    """Count a completed model request, and return the facts for its event: the model, the tokens and the price."""
    usage, cost = response.usage, _cost(response)
    count("model_requests", agent=agent, model=model, outcome="completed")
    for direction, tokens in (
        ("input", usage.input_tokens),
        ("output", usage.output_tokens),
        ("cache_read", usage.cache_read_tokens),
        ("cache_write", usage.cache_write_tokens),
    ):
        if tokens > 0:
            count("model_tokens", tokens, agent=agent, model=model, direction=direction)
    if cost is not None and (price := float(cost)) >= 0:
        count("model_cost_usd", price, agent=agent, model=model)
    known = {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens}
    return {"model": response.model_name, "usage": known, "cost": cost}


def _cost(response: ModelResponse) -> str | None:
    try:
        return str(response.cost().total_price)
    except (LookupError, AssertionError, ValueError):  # no price is known for this model
        return None
