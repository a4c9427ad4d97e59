"""The usage of a model response: its tokens and its cost."""

from typing import Any

from pydantic_ai.messages import ModelResponse


def response_facts(response: ModelResponse) -> dict[str, Any]:
    """Return the facts of a completed model request for its event: the model, the tokens and the price."""
    usage = response.usage
    tokens = {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens}
    return {"model": response.model_name, "usage": tokens, "cost": _cost(response)}


def _cost(response: ModelResponse) -> str | None:
    try:
        return str(response.cost().total_price)
    except (LookupError, AssertionError, ValueError):  # no price is known for this model
        return None
