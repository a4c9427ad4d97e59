"""Budgets: administrators set them, and an owner sees its own."""

from typing import Annotated

from pydantic import Field

from holdfast.api.budgets import BudgetChanged, BudgetInfo, NewBudget
from holdfast.api.models import Items
from holdfast.budgets import Limits, Per
from holdfast.errors import BadInput
from holdfast.operations.access import Caller
from holdfast.operations.registry import NO_NUL, ClientMethod, CursorText, Limit, operation


@operation(
    "PUT",
    "/api/budgets",
    "admin",
    ClientMethod("Client.set_budget", "budget set"),
    ClientMethod("Client.remove_budget", "budget remove"),
    topic="budgets",
)
async def set_budget(caller: Caller, body: NewBudget) -> BudgetChanged:
    """Set or remove a budget. It replaces that of the settings, and the sessions that wait for it continue if it allows that."""
    limits = Limits(**body.model_dump(include=set(Limits.model_fields)))
    name = "" if body.per == "store" else body.name
    if name is None:
        raise BadInput(problem=f"a budget per {body.per} needs a name")
    sums = await caller.store.set_budget(body.per, name, limits, daily=body.daily, actor=caller.actor)
    woken = await caller.store.wake_for_budgets(body.per, name)
    return BudgetChanged(**dict(BudgetInfo.of_sums(sums)), woken=woken)


@operation("GET", "/api/budgets", "user", ClientMethod("Client.budgets", "budget list"), topic="budgets")
async def list_budgets(
    caller: Caller,
    per: Annotated[Per | None, Field(description="Only budgets of this kind.")] = None,
    name: Annotated[
        str | None,
        Field(max_length=256, pattern=NO_NUL, description="Only those of this session, owner or agent."),
    ] = None,
    cursor: CursorText = None,
    limit: Limit = 100,
) -> Items[BudgetInfo]:
    """List the budgets that administrators have set, with what was used. If you are not one: the budgets of your owner name."""
    principal = caller.principal
    if not principal.is_admin:
        per, name = "owner", principal.owner
    page = await caller.store.budgets(per=per, name=name, cursor=cursor, limit=limit)
    return Items[BudgetInfo](
        items=[BudgetInfo.of_sums(each) for each in page.items], next_cursor=page.next_cursor
    )
