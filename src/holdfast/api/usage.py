"""The model of usage."""

from datetime import date

from pydantic import Field

from holdfast.api.models import ResponseBody
from holdfast.usage import NANOS, UsageOf


class UsageInfo(ResponseBody):
    """What was used on one day, by one owner, agent or session, with one model, or a combination of these. Sums have no content."""

    day: date | None = Field(description="In UTC; null unless grouped by day.")
    owner: str | None = Field(description="Null unless grouped by owner.")
    agent: str | None = Field(description="Null unless grouped by agent.")
    model: str | None = Field(
        description="The requested model; null unless grouped by model. Empty for the work of runs without a model."
    )
    session_id: str | None = Field(description="Null unless grouped by session.")
    requests: int = Field(description="Completed model requests.")
    unpriced: int = Field(description="How many of them have no known cost.")
    input_tokens: int = Field(description="Includes the tokens from and for the cache.")
    output_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    cost_usd: float = Field(description="The known cost in dollars.")
    tool_calls: int = Field(description="Tool calls that the models requested.")
    seconds: float = Field(description="How long runs worked. Runs at the same time add up.")

    @classmethod
    def of_usage(cls, usage: UsageOf) -> "UsageInfo":
        """Return sums in the form in which they are sent."""
        return cls(
            day=usage.day,
            owner=usage.owner,
            agent=usage.agent,
            model=usage.model,
            session_id=usage.session_id,
            requests=usage.requests,
            unpriced=usage.unpriced,
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            cache_read_tokens=usage.cache_read_tokens,
            cache_write_tokens=usage.cache_write_tokens,
            cost_usd=usage.cost_nanos / NANOS,
            tool_calls=usage.tool_calls,
            seconds=usage.working_us / 1_000_000,
        )
