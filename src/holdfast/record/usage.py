"""Counts the model requests of a run: for the metrics, for the events, and for the usage of the session."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from pydantic_ai.messages import ModelResponse
from pydantic_ai.usage import RequestUsage

from holdfast.config import Price
from holdfast.counting import count
from holdfast.usage import NANOS, Usage

_LONGEST_MODEL: Final = 200
_MICROSECONDS: Final = 1_000_000
MOST_TOKENS: Final = 10**12
MOST_DOLLARS: Final = 10**5
"""A request with more has no plausible cost, and counts as unpriced."""


@dataclass(frozen=True, slots=True)
class Counted:
    """A completed model request: what it used, and the facts for its event: the model, the tokens and the price."""

    model: str
    numbers: Mapping[str, int]
    facts: Mapping[str, Any]


class UsageMeter:
    """Adds up what an agent uses, until a batch records it. `prices` override the known prices, by model."""

    def __init__(self, agent: str, prices: Mapping[str, Price]) -> None:
        self.model = ""
        """The model that was requested last, to which the working time counts."""
        self._agent = agent
        self._prices = prices
        self._unwritten: dict[str, Usage] = {}
        self._since = time.monotonic()  # when the working time was last added
        self._lock = threading.Lock()  # synchronous steps count in threads

    async def request(self, request: Awaitable[ModelResponse], model: str) -> tuple[ModelResponse, Counted]:
        """Await a model request and count it for the metrics. Pass what is returned to `add` with the event of the response.

        `model` is the model that the agent requested: a provider may respond with any name.
        """
        began = time.perf_counter()
        try:
            response = await request
        except BaseException as error:
            outcome = "cancelled" if isinstance(error, asyncio.CancelledError) else "failed"
            count("model_requests", agent=self._agent, model=model, outcome=outcome)
            raise
        count("model_seconds", time.perf_counter() - began, agent=self._agent, model=model)
        return response, self.measure(response, model)

    def measure(self, response: ModelResponse, model: str) -> Counted:
        """Count a completed model request for the metrics, and return what it used."""
        price = self._prices.get(response.model_name or "")
        cost = _known_cost(response) if price is None else price.of(response.usage)
        return self.count(
            model, response.usage, cost=cost, tool_calls=len(response.tool_calls), name=response.model_name
        )

    def count(
        self,
        model: str,
        usage: RequestUsage,
        *,
        cost: Decimal | None,
        tool_calls: int,
        name: str | None = None,
    ) -> Counted:
        """Count a completed model request for the metrics, and return what it used. A price in the settings overrides the `cost`."""
        if (price := self._prices.get(model)) is not None:
            cost = price.of(usage)
        tokens = {
            "input": _plausible(usage.input_tokens),
            "output": _plausible(usage.output_tokens),
            "cache_read": _plausible(usage.cache_read_tokens),
            "cache_write": _plausible(usage.cache_write_tokens),
        }
        count("model_requests", agent=self._agent, model=model, outcome="completed")
        for direction, number in tokens.items():
            if number:
                count("model_tokens", number, agent=self._agent, model=model, direction=direction)
        if cost is not None and not 0 <= cost <= MOST_DOLLARS:
            cost = None
        if cost is not None:
            count("model_cost_usd", float(cost), agent=self._agent, model=model)
        numbers = {
            "requests": 1,
            "unpriced": int(cost is None),
            **{f"{direction}_tokens": number for direction, number in tokens.items()},
            "cost_nanos": 0 if cost is None else round(cost * NANOS),
            "tool_calls": _plausible(tool_calls),
        }
        known = {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens}
        price_text = None if cost is None else str(cost)
        return Counted(model, numbers, {"model": name, "usage": known, "cost": price_text})

    def add(self, counted: Counted) -> None:
        """Record what a request used with the next batch."""
        with self._lock:
            self.model = counted.model
            self._add(**counted.numbers)

    def end(self) -> None:
        """Add the time since the last request: the run ends."""
        with self._lock:
            self._add()

    def take(self, earlier: Sequence[Usage] = ()) -> list[Usage]:
        """Return what no batch has recorded yet, with that of an earlier batch that was not written."""
        with self._lock:
            self._put(earlier)
            taken, self._unwritten = self._unwritten, {}
        return list(taken.values())

    def give_back(self, usage: Sequence[Usage]) -> None:
        """Record the usage of a batch that was not written with the next one."""
        with self._lock:
            self._put(usage)

    def _put(self, usage: Sequence[Usage]) -> None:
        for each in usage:
            before = self._unwritten.get(each.model)
            self._unwritten[each.model] = each if before is None else before + each

    def _add(self, **numbers: int) -> None:
        now = time.monotonic()
        worked = round((now - self._since) * _MICROSECONDS)
        self._since = now
        model = self.model[:_LONGEST_MODEL].replace("\0", "").encode("utf-8", "replace").decode()
        self._put([Usage(agent=self._agent, model=model, working_us=worked, **numbers)])


def _plausible(number: int) -> int:
    """Return the number of a response, which may be wrong, within the limits."""
    return min(max(0, number), MOST_TOKENS)


def _known_cost(response: ModelResponse) -> Decimal | None:
    try:
        return response.cost().total_price
    except (LookupError, AssertionError, ValueError):  # no price is known for this model
        return None
