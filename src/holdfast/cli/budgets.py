"""`holdfast budget`: limits on what sessions, owners, agents or all together may use."""

import asyncio
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from holdfast.budgets import BUDGET_KINDS, Limits, Per, amount
from holdfast.cli.help import Commands
from holdfast.cli.options import AsJson, ServerUrl, StoreUrl, connected
from holdfast.cli.terminal import TextTable, echo, new_console, one_line, print_json, record
from holdfast.errors import BadInput
from holdfast.ids import check_choice

if TYPE_CHECKING:
    from holdfast.api.budgets import BudgetChanged, BudgetInfo, BudgetLimits

app = Commands("Limit what sessions, owners and agents may use.")
Kind = Annotated[str, typer.Argument(metavar="KIND", help="turn, session, owner, agent or store.")]
Name = Annotated[
    str, typer.Argument(metavar="NAME", help="Id of the session, owner or agent; none for the store.")
]
Daily = Annotated[bool, typer.Option("--daily", help="It begins again each day, in UTC.")]


@app.command("set")
def set_budget(
    kind: Kind,
    name: Name = "",
    daily: Daily = False,
    requests: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Completed model requests.")
    ] = None,
    tokens: Annotated[int | None, typer.Option(metavar="N", min=0, help="Input and output tokens.")] = None,
    cost: Annotated[
        float | None, typer.Option(metavar="DOLLARS", min=0, help="Known cost, such as 2.50.")
    ] = None,
    seconds: Annotated[float | None, typer.Option(metavar="N", min=0, help="How long runs work.")] = None,
    store: StoreUrl = None,
    url: ServerUrl = None,
    as_json: AsJson = False,
) -> None:
    """Limit what a session, owner, agent or the store may use.

    Its limits replace those of the same kind in the settings and in code. A run whose budget is used up waits before its next model request. It
    continues when the budget is raised, or on the next day if it is daily.

    Examples:
        holdfast budget set owner ada --daily --cost 5
        holdfast budget set session 0190f7c4 --requests 200 --tokens 1000000
        holdfast budget set store --daily --cost 100
    """
    limits: dict[str, Any] = {
        "requests": requests,
        "tokens": tokens,
        "cost": cost,
        "seconds": seconds,
    }
    if all(limit is None for limit in limits.values()):
        raise BadInput(problem="give a limit: --requests, --tokens, --cost or --seconds")
    _change(_kind(kind, name), name, daily, limits, store, url, as_json=as_json)


@app.command("remove")
def remove(
    kind: Kind,
    name: Name = "",
    daily: Daily = False,
    store: StoreUrl = None,
    url: ServerUrl = None,
    as_json: AsJson = False,
) -> None:
    """Remove a budget.

    Those of the settings and of agents apply again.

    Examples:
        holdfast budget remove owner ada --daily
    """
    _change(_kind(kind, name), name, daily, {}, store, url, as_json=as_json)


@app.command("list")
def list_budgets(
    kind: Annotated[
        str | None, typer.Option("--kind", help="Only turn, session, owner, agent or store.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Only this session, owner or agent.")] = None,
    store: StoreUrl = None,
    url: ServerUrl = None,
    as_json: AsJson = False,
) -> None:
    """List budgets, and what was used of each.

    These are the budgets that administrators have set. Those of settings, agents and sessions are not listed.

    Examples:
        holdfast budget list
        holdfast budget list --kind owner --json
    """
    if kind is not None:
        check_choice(kind, BUDGET_KINDS, "--kind")

    async def work() -> "list[BudgetInfo]":
        async with connected(store, url) as client:
            return [each async for each in client.budgets(per=cast("Per | None", kind), name=name)]

    results = asyncio.run(work())
    if as_json:
        print_json({"items": [each.model_dump(mode="json") for each in results]})
        return
    if not results:
        echo("No administrator has set a budget.")
        return
    table = TextTable("budget", "name", "used", "limit")
    for each in results:
        title = f"{each.per} per day" if each.daily else each.per
        table.add_row(title, one_line(each.name) or "-", _text(each.used, each.limits), _text(each.limits))
    new_console().print(table)


def _change(
    kind: Per,
    name: str,
    daily: bool,
    limits: dict[str, Any],
    store: str | None,
    url: str | None,
    *,
    as_json: bool,
) -> None:
    async def work() -> "BudgetChanged":
        async with connected(store, url) as client:
            if limits:
                return await client.set_budget(kind, name, daily=daily, **limits)
            return await client.remove_budget(kind, name, daily=daily)

    result = asyncio.run(work())
    if as_json:
        print_json(record(result))
        return
    what = " ".join(part for part in (kind, str(one_line(name)), "per day" if daily else "") if part)
    if not limits:
        echo(f"removed the budget of {what}")
        return
    echo(f"set the budget of {what}: {_text(result.limits)}; used {_text(result.used, result.limits)}")
    if result.woken:
        echo(f"sessions that wait and check it again: {result.woken}")


def _kind(kind: str, name: str) -> Per:
    check_choice(kind, BUDGET_KINDS, "kind of budget")
    if (kind == "store") == bool(name):
        problem = "the budget of the store has no name" if name else f"a budget per {kind} needs a name"
        raise BadInput(problem=problem)
    return cast("Per", kind)


def _text(values: "BudgetLimits", limits: "BudgetLimits | None" = None) -> str:
    """Return the values of those measures that have a limit."""
    given = values.model_dump()
    wanted = given if limits is None else limits.model_dump()
    numbers = Limits(**{name: given[name] for name, limit in wanted.items() if limit is not None}).numbers
    measures = zip(("requests", "tokens", "cost_nanos", "working_us"), numbers, strict=True)
    return ", ".join(amount(measure, number) for measure, number in measures if number is not None)
