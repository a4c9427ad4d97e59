"""`holdfast schedule`: messages that are submitted at the times of cron expressions."""

import asyncio
import sys
from typing import TYPE_CHECKING, Annotated, Any, cast
from zoneinfo import ZoneInfo

import typer
from rich.text import Text

from holdfast.cli.help import Commands
from holdfast.cli.options import AsJson, ServerUrl, StoreUrl, connected
from holdfast.cli.talk import print_sent
from holdfast.cli.terminal import (
    TextTable,
    coloured,
    echo,
    new_console,
    one_line,
    print_json,
    record,
    time_text,
)
from holdfast.errors import BadInput
from holdfast.ids import check_choice
from holdfast.leases import no_worker
from holdfast.schedules import CATCH_UPS, OVERLAPS, CatchUp, Overlap
from holdfast.types import state_text

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from datetime import datetime

    from holdfast.api.schedules import ScheduleInfo
    from holdfast.api.submissions import SubmissionInfo
    from holdfast.client import ScheduleHandle

app = Commands("Submit messages at the times of cron expressions.")
ScheduleId = Annotated[str, typer.Argument(help="Id of the schedule.")]
Mode = typer.Option(metavar="MODE", help="If the previous turn has not ended: skip, queue or interrupt.")
Late = typer.Option(metavar="MODE", help="After a time without workers: once, all or none.")
Latest = typer.Option(metavar="N", help="With --catch-up all: submit at most this many missed ticks.")
Zone = typer.Option(metavar="ZONE", help="Time zone of the times, such as Europe/Berlin.")


@app.command("create")
def create(
    cron: Annotated[
        str, typer.Option(metavar="CRON", help="Minute, hour, day of the month, month and day of the week.")
    ],
    text: Annotated[str, typer.Option(help="The message; - reads it from standard input.")],
    agent: Annotated[str | None, typer.Option(help="Run each tick in a new session of this agent.")] = None,
    session: Annotated[
        str | None,
        typer.Option(
            metavar="ID", help="Submit to this session. With --agent, create it if it does not exist."
        ),
    ] = None,
    timezone: Annotated[str, Zone] = "UTC",
    title: Annotated[
        str, typer.Option(help="Title of new sessions. Default: the first line of the text.")
    ] = "",
    overlap: Annotated[str, Mode] = "skip",
    catch_up: Annotated[str, Late] = "once",
    catch_up_limit: Annotated[int, Latest] = 10,
    schedule_id: Annotated[
        str | None, typer.Option("--id", help="Id of the schedule. By default it is generated.")
    ] = None,
    owner: Annotated[
        str | None, typer.Option(help="Owner of the schedule, for administrators. Default: yourself.")
    ] = None,
    store: StoreUrl = None,
    url: ServerUrl = None,
    as_json: AsJson = False,
) -> None:
    """Create a schedule.

    It submits the text at each time of the cron expression, while a worker runs. Prints the schedule, and a warning if no live worker serves
    its agent.

    Examples:
        holdfast schedule create --agent reporter --cron "0 9 * * MON-FRI" --timezone Europe/Berlin --text "Write the report."
        holdfast schedule create --session s1 --cron "*/30 * * * *" --text "Check the queue." --overlap queue
    """
    check_choice(overlap, OVERLAPS, "value for --overlap")
    check_choice(catch_up, CATCH_UPS, "value for --catch-up")
    message = _message(text)

    async def work() -> "tuple[ScheduleInfo, set[str]]":
        async with connected(store, url) as client:
            if session is not None:
                await client.session(session, agent=agent, owner=owner)
            schedule = await client.create_schedule(
                cron,
                message,
                timezone=timezone,
                agent=agent if session is None else None,
                session_id=session,
                title=title,
                overlap=cast("Overlap", overlap),
                catch_up=cast("CatchUp", catch_up),
                catch_up_limit=catch_up_limit,
                id=schedule_id,
                owner=owner,
            )
            served = {each for worker in await client.workers() for each in worker.agents}
            return await schedule.info(), served

    created, served = asyncio.run(work())
    _print(created, as_json=as_json)
    if created.agent not in served:
        echo(f"warning: {no_worker(created.agent, served)}", err=True)


@app.command("list")
def list_(
    owner: Annotated[
        str | None, typer.Option(help="Only schedules of this owner, for administrators.")
    ] = None,
    store: StoreUrl = None,
    url: ServerUrl = None,
    as_json: AsJson = False,
) -> None:
    """List schedules with their next and last ticks.

    Examples:
        holdfast schedule list
        holdfast schedule list --json
    """

    async def work() -> "list[ScheduleInfo]":
        async with connected(store, url) as client:
            return [each async for each in client.schedules(owner=owner)]

    found = asyncio.run(work())
    if as_json:
        print_json({"schedules": [record(each) for each in found]})
        return
    table = TextTable("id", "next", "last", "result", "cron", "timezone", "title", "agent", "owner")
    for each in found:
        table.add_row(
            one_line(each.id),
            _next(each),
            time_text(each.last_at),
            _result(each),
            one_line(each.cron),
            one_line(each.timezone),
            one_line(each.title or each.text),
            one_line(each.agent),
            one_line(each.owner),
        )
    new_console().print(table)


@app.command()
def show(
    schedule_id: ScheduleId, store: StoreUrl = None, url: ServerUrl = None, as_json: AsJson = False
) -> None:
    """Show a schedule, its next tick, and the outcome of the last one.

    Examples:
        holdfast schedule show daily
    """
    _print(_call(schedule_id, lambda schedule: schedule.info(), store, url), as_json=as_json)


@app.command()
def change(
    schedule_id: ScheduleId,
    cron: Annotated[str | None, typer.Option(metavar="CRON", help="New times.")] = None,
    timezone: Annotated[str | None, Zone] = None,
    text: Annotated[str | None, typer.Option(help="The message; - reads it from standard input.")] = None,
    title: Annotated[str | None, typer.Option(help="Title of new sessions.")] = None,
    overlap: Annotated[str | None, Mode] = None,
    catch_up: Annotated[str | None, Late] = None,
    catch_up_limit: Annotated[int | None, Latest] = None,
    store: StoreUrl = None,
    url: ServerUrl = None,
    as_json: AsJson = False,
) -> None:
    """Change a schedule.

    Other values stay as they are. With new times, it continues with the first of them from now on.

    Examples:
        holdfast schedule change daily --cron "30 8 * * *"
    """
    if overlap is not None:
        check_choice(overlap, OVERLAPS, "value for --overlap")
    if catch_up is not None:
        check_choice(catch_up, CATCH_UPS, "value for --catch-up")
    changed = _call(
        schedule_id,
        lambda schedule: schedule.change(
            cron=cron,
            timezone=timezone,
            text=None if text is None else _message(text),
            title=title,
            overlap=cast("Overlap | None", overlap),
            catch_up=cast("CatchUp | None", catch_up),
            catch_up_limit=catch_up_limit,
        ),
        store,
        url,
    )
    _print(changed, as_json=as_json)


@app.command()
def pause(
    schedule_id: ScheduleId, store: StoreUrl = None, url: ServerUrl = None, as_json: AsJson = False
) -> None:
    """Pause a schedule.

    It submits nothing until you resume it.

    Examples:
        holdfast schedule pause daily
    """
    _print(_call(schedule_id, lambda schedule: schedule.pause(), store, url), as_json=as_json)


@app.command()
def resume(
    schedule_id: ScheduleId, store: StoreUrl = None, url: ServerUrl = None, as_json: AsJson = False
) -> None:
    """Resume a schedule.

    It continues with the first tick from now on. Ticks during the pause are not made up for.

    Examples:
        holdfast schedule resume daily
    """
    _print(_call(schedule_id, lambda schedule: schedule.resume(), store, url), as_json=as_json)


@app.command()
def delete(
    schedule_id: ScheduleId, store: StoreUrl = None, url: ServerUrl = None, as_json: AsJson = False
) -> None:
    """Delete a schedule with its text.

    The sessions and submissions that it created remain.

    Examples:
        holdfast schedule delete daily
    """
    _call(schedule_id, lambda schedule: schedule.delete(), store, url)
    if as_json:
        print_json({"id": schedule_id, "done": "deleted"})
    else:
        echo(f"Schedule {schedule_id} is deleted.")


@app.command()
def run(
    schedule_id: ScheduleId, store: StoreUrl = None, url: ServerUrl = None, as_json: AsJson = False
) -> None:
    """Submit the message of a schedule now.

    Its ticks stay as they are. Prints the id of the submission.

    Examples:
        holdfast schedule run daily
    """

    async def work(schedule: "ScheduleHandle") -> "SubmissionInfo":
        return (await schedule.run()).accepted

    print_sent(_call(schedule_id, work, store, url), as_json=as_json)


@app.command()
def times(
    schedule_id: ScheduleId,
    count: Annotated[int, typer.Option(min=1, max=100, metavar="N", help="Number of times.")] = 10,
    store: StoreUrl = None,
    url: ServerUrl = None,
    as_json: AsJson = False,
) -> None:
    """List the next times of a schedule.

    In UTC and in its time zone.

    Examples:
        holdfast schedule times daily
        holdfast schedule times daily --count 30
    """

    async def work(schedule: "ScheduleHandle") -> "tuple[str, list[datetime]]":
        return (await schedule.info()).timezone, await schedule.times(count)

    timezone, found = _call(schedule_id, work, store, url)
    if as_json:
        print_json({"times": found})
        return
    zone = ZoneInfo(timezone)
    table = TextTable("time", timezone)
    for at in found:
        table.add_row(time_text(at), f"{at.astimezone(zone):%a %Y-%m-%d %H:%M %Z}")
    new_console().print(table)


def _message(text: str) -> str:
    """Return the value of `--text`, or standard input for -."""
    message = sys.stdin.read() if text == "-" else text
    if not message:
        raise BadInput(
            problem="the message is empty. Pass it with --text, or on standard input with --text -"
        )
    return message


def _call(
    schedule_id: str, work: "Callable[[ScheduleHandle], Awaitable[Any]]", store: str | None, url: str | None
) -> Any:
    async def call() -> Any:
        async with connected(store, url) as client:
            return await work(client.schedule(schedule_id))

    return asyncio.run(call())


def _print(schedule: "ScheduleInfo", *, as_json: bool) -> None:
    if as_json:
        print_json({"schedule": record(schedule)})
        return
    lines = [
        ("schedule", one_line(schedule.id)),
        ("title", one_line(schedule.title)),
        ("agent", one_line(schedule.agent)),
        ("session", one_line(schedule.session_id or "a new one for each tick")),
        ("owner", one_line(schedule.owner)),
        ("cron", one_line(f"{schedule.cron} ({schedule.timezone})")),
        ("text", one_line(schedule.text)),
        ("overlap", one_line(schedule.overlap)),
        ("catch-up", one_line(_catch_up(schedule))),
        ("next", _next(schedule)),
        ("last", time_text(schedule.last_at)),
        ("result", _result(schedule)),
        *([("in session", one_line(schedule.last_session_id))] if schedule.last_session_id else []),
    ]
    console = new_console()
    for name, value in lines:
        console.print(Text(f"{name:<12}").append_text(value), soft_wrap=True)


def _catch_up(schedule: "ScheduleInfo") -> str:
    limit = f", at most {schedule.catch_up_limit}" if schedule.catch_up == "all" else ""
    return f"{schedule.catch_up}{limit}"


def _next(schedule: "ScheduleInfo") -> Text:
    if schedule.moved:
        return Text("moved to another store")
    return Text("paused", style="yellow") if schedule.paused else time_text(schedule.next_at)


def _result(schedule: "ScheduleInfo") -> Text:
    """Return the reason why the last tick submitted nothing, or the state of what it submitted."""
    if schedule.problem is not None:
        return one_line(schedule.problem)
    if schedule.last_state in {"failed", "dead"}:
        return one_line(f"{schedule.last_state}: {schedule.last_reason}")
    return coloured(state_text(schedule.last_state or ""))
