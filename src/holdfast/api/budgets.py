"""The models of budgets."""

from pydantic import ConfigDict, Field, StrictBool

from holdfast.api.models import Name, RequestBody, ResponseBody
from holdfast.budgets import BudgetSums, Limits, Per, readable

_NAME = "The id of the session, the owner or the agent; none for the store."


class NewBudget(Limits, RequestBody):
    """A budget for one session, the turns of one session, an owner, an agent or the store. Without any limit it is removed."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"per": "owner", "name": "ada", "daily": True, "cost": 5}]}
    )
    per: Per = Field(description="Whose use is added up.")
    name: Name | None = Field(None, description=_NAME)
    daily: StrictBool = Field(False, description="Whether it begins again each day, in UTC.")


class BudgetLimits(ResponseBody):
    """Limits, or what was used of them. Null means no limit."""

    requests: int | None
    tokens: int | None
    cost: float | None = Field(description="Dollars.")
    seconds: float | None


class BudgetInfo(ResponseBody):
    """A budget that an administrator has set, and what was used in the current period."""

    per: Per
    name: str = Field(description="The id of the session, the owner or the agent; empty for the store.")
    daily: bool
    limits: BudgetLimits
    used: BudgetLimits

    @classmethod
    def of_sums(cls, sums: BudgetSums) -> "BudgetInfo":
        """Return a budget in the form in which it is sent."""
        return cls(
            per=sums.per,
            name=sums.name,
            daily=sums.daily,
            limits=BudgetLimits(**readable(sums.most)),
            used=BudgetLimits(**readable(sums.spent)),
        )


class BudgetChanged(BudgetInfo):
    """A budget, and how many sessions check it again."""

    woken: int = Field(description="How many sessions that waited for a budget check it again now.")
