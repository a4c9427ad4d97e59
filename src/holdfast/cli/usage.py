"""`holdfast usage`: what sessions used, as a table, JSON or CSV."""

import asyncio
import csv
import io
from datetime import date
from typing import TYPE_CHECKING, Annotated, cast

import typer

from holdfast.cli.options import AsJson, ServerUrl, StoreUrl, connected
from holdfast.cli.terminal import TextTable, echo, new_console, one_line, print_json
from holdfast.errors import BadInput
from holdfast.usage import USAGE_GROUPS, UsageGroup

if TYPE_CHECKING:
    from holdfast.api.usage import UsageInfo


def usage(
    by: Annotated[
        str, typer.Option(metavar="GROUPS", help="Any of day, owner, agent, model and session, with commas.")
    ] = "day",
    first: Annotated[
        str | None, typer.Option("--from", metavar="DATE", help="The first day, in UTC, such as 2026-11-01.")
    ] = None,
    last: Annotated[str | None, typer.Option("--to", metavar="DATE", help="The last day.")] = None,
    owner: Annotated[
        str | None, typer.Option(help="Only this owner; another one requires an administrator.")
    ] = None,
    agent: Annotated[str | None, typer.Option(help="Only this agent.")] = None,
    model: Annotated[str | None, typer.Option(help="Only this model.")] = None,
    session: Annotated[str | None, typer.Option(metavar="ID", help="Only this session.")] = None,
    store: StoreUrl = None,
    url: ServerUrl = None,
    as_json: AsJson = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV with a header.")] = False,
) -> None:
    """Show model requests, tokens, cost and tool calls.

    The numbers remain when sessions are cleaned or erased. A cost with + is incomplete: some requests have no known price. Set the
    prices of such models with the setting `prices`.

    Examples:
        holdfast usage
        holdfast usage --by owner,model --from 2026-11-01
        holdfast usage --by session --csv > usage.csv
    """
    if as_json and as_csv:
        raise BadInput(problem="use either --json or --csv")
    groups = _groups(by)
    days = _day(first, "--from"), _day(last, "--to")

    async def work() -> "list[UsageInfo]":
        async with connected(store, url) as client:
            sums = client.usage(
                groups,
                first=days[0],
                last=days[1],
                owner=owner,
                agent=agent,
                model=model,
                session_id=session,
            )
            return [each async for each in sums]

    results = asyncio.run(work())
    if as_json:
        print_json({"items": [each.model_dump(mode="json") for each in results]})
    elif as_csv:
        _print_csv(groups, results)
    elif results:
        new_console().print(_table(groups, results))
    else:
        echo("Nothing was used.")


def _groups(text: str) -> list[UsageGroup]:
    names = [name for part in text.split(",") if (name := part.strip())]
    groups = ["session_id" if name == "session" else name for name in names]
    if unknown := sorted(set(groups) - set(USAGE_GROUPS)):
        raise BadInput(
            problem=f"--by cannot be {', '.join(unknown)}; use day, owner, agent, model or session"
        )
    return cast("list[UsageGroup]", [group for group in USAGE_GROUPS if group in groups])


def _day(text: str | None, option: str) -> date | None:
    try:
        return None if text is None else date.fromisoformat(text)
    except ValueError:
        raise BadInput(problem=f"{option} must be a day such as 2026-11-01, not {text!r}") from None


def _table(groups: list[UsageGroup], results: "list[UsageInfo]") -> TextTable:
    numbers = ("requests", "input", "output", "cost", "tool calls", "time")
    table = TextTable(*("session" if group == "session_id" else group for group in groups), *numbers)
    for each in results:
        cost = f"${each.cost_usd:,.4f}" + ("+" if each.unpriced else "")
        table.add_row(
            *(one_line(str(getattr(each, group) or "-")) for group in groups),
            f"{each.requests:,}",
            f"{each.input_tokens:,}",
            f"{each.output_tokens:,}",
            cost,
            f"{each.tool_calls:,}",
            _time(each.seconds),
        )
    return table


def _time(seconds: float) -> str:
    minutes, left = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {left} s" if minutes else f"{seconds:.1f} s"


def _print_csv(groups: list[UsageGroup], results: "list[UsageInfo]") -> None:
    from holdfast.api.usage import UsageInfo

    names = [name for name in UsageInfo.model_fields if name in groups or name not in USAGE_GROUPS]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([_cell(name, getattr(each, name)) for name in names] for each in results)
    echo(text.getvalue().removesuffix("\n"))


def _cell(name: str, value: object) -> str:
    """Return a value for a spreadsheet, which would run a text that begins like a formula."""
    if name == "cost_usd":
        return f"{value:.9f}"
    if not isinstance(value, str):
        return str(value)
    return f"'{value}" if value.startswith(("=", "+", "-", "@", "\t", "\r")) else value
