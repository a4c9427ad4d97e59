"""`holdfast sessions`: list and show sessions."""

import asyncio
import json
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.text import Text

from holdfast.cli.help import Commands
from holdfast.cli.options import (
    AsJson,
    Cursor,
    Limit,
    ServerUrl,
    SessionId,
    StoreUrl,
    chosen_sessions,
    conversation_of,
    find_turn,
    pending_approvals,
    unended_calls,
    why_waiting,
)
from holdfast.cli.talk import FAILED, is_retriable
from holdfast.cli.terminal import (
    TextTable,
    coloured,
    echo,
    new_console,
    one_line,
    print_json,
    record,
    retry_command,
    settle_command,
    time_text,
)
from holdfast.ids import check_choice
from holdfast.types import STATUSES, Effect, Page, Session, Submission

app = Commands("List, show, export, clean and erase sessions.")


@app.command("list")
def list_(
    store: StoreUrl = None,
    url: ServerUrl = None,
    status: Annotated[
        str | None,
        typer.Option(help="Only sessions with this status: idle, queued, running, waiting, failed, …"),
    ] = None,
    agent: Annotated[str | None, typer.Option(help="Only sessions of this agent.")] = None,
    owner: Annotated[str | None, typer.Option(help="Only sessions of this owner.")] = None,
    search: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Only sessions with this text in their title.")
    ] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
    as_json: AsJson = False,
) -> None:
    """List sessions, last active first.

    Examples:
        holdfast sessions list --status waiting
        holdfast sessions list --agent clerk --limit 10 --json
    """
    if status is not None:
        check_choice(status, STATUSES, "value for --status")

    async def work() -> Page[Session]:
        async with chosen_sessions(store, url) as opened:
            return await opened.sessions(
                status=status,  # pyright: ignore[reportArgumentType]
                agent=agent,
                owner=owner,
                search=search,
                limit=limit,
                cursor=cursor,
            )

    page = asyncio.run(work())
    if as_json:
        print_json({"sessions": [record(item) for item in page.items], "next_cursor": page.next_cursor})
        return
    table = TextTable("id", "status", "reason", "title", "agent", "active", "owner", "pending", "holder")
    for item in page.items:
        table.add_row(
            one_line(item.id),
            coloured(item.status),
            one_line(item.waiting_for or item.error),
            one_line(item.title),
            one_line(item.agent),
            time_text(item.active_at),
            one_line(item.owner),
            str(item.pending),
            one_line(item.holder),
        )
    console = new_console()
    console.print(table)
    if page.next_cursor is not None:
        console.print(f"More results: --cursor {page.next_cursor}", soft_wrap=True)


@app.command()
def show(
    session_id: SessionId, store: StoreUrl = None, url: ServerUrl = None, as_json: AsJson = False
) -> None:
    """Show a session, its queue and the calls that wait for a person.

    If the last turn failed, it is shown with its reason and the command that continues it. A call that was cut off is shown with the command that records its outcome.

    Examples:
        holdfast sessions show s1
    """

    async def work() -> tuple[
        Session,
        list[Submission],
        Submission | None,
        list[dict[str, Any]],
        Sequence[Effect],
        Sequence[Effect],
        str | None,
    ]:
        async with chosen_sessions(store, url) as opened:
            session = await opened.session(session_id)
            waiting = [
                item
                for state in ("claimed", "waiting", "queued")
                for item in (await opened.submissions(session_id, state=state, limit=100)).items
            ]
            questions = await pending_approvals(opened, session_id)
            running, unknown = await unended_calls(opened, session)
            last = None if waiting else await find_turn(opened, session_id)
            failed = last if last is not None and last.state in FAILED else None
            return (
                session,
                waiting,
                failed,
                questions,
                running,
                unknown,
                await why_waiting(opened, session_id),
            )

    session, waiting, failed, questions, running, unknown, problem = asyncio.run(work())
    if as_json:
        print_json(
            {
                "session": record(session),
                "submissions": [record(s) for s in waiting],
                "failed": None if failed is None else record(failed),
                "approvals": questions,
                "running": [record(effect) for effect in running],
                "effects": [record(effect) for effect in unknown],
                "problem": problem,
            }
        )
        return
    console = new_console()
    held = f"{session.holder} until {time_text(session.held_until)}" if session.holder else "no worker"
    lines = [
        ("session", one_line(session.id)),
        ("title", one_line(session.title)),
        ("agent", one_line(session.agent)),
        ("owner", one_line(session.owner)),
        ("status", coloured(session.status)),
        *([] if session.waiting_for is None else [("waiting for", one_line(session.waiting_for))]),
        *([] if problem is None else [("problem", one_line(problem))]),
        ("held by", one_line(held)),
        ("events", Text(str(session.seq))),
        ("created", time_text(session.created_at)),
        ("active", time_text(session.active_at)),
        *([] if session.error is None or failed else [("last run", one_line(f"failed: {session.error}"))]),
        *([] if failed is None else [("last turn", one_line(f"{failed.state}: {failed.reason}"))]),
        *([("retry", retry_command(session.id))] if failed and is_retriable(failed) else []),
        *((item.state, one_line(f"{item.id} {item.kind}, attempts {item.attempts}")) for item in waiting),
        *(line for question in questions for line in _question(question)),
        *(("running", one_line(f"{effect.tool} {effect.call_id}")) for effect in running),
        *(
            (
                "unknown",
                Text(f"{effect.tool}: ").append_text(settle_command(effect.run_id, effect.call_id)),
            )
            for effect in unknown
        ),
    ]
    for name, value in lines:
        console.print(Text(f"{name:<12}").append_text(value), soft_wrap=True)


@app.command()
def conversation(
    session_id: SessionId, store: StoreUrl = None, url: ServerUrl = None, as_json: AsJson = False
) -> None:
    """Print the conversation in a session of another framework.

    An entry that is not understood is printed as its framework stored it. `holdfast tail` prints the sessions of Holdfast's own agents.

    Examples:
        holdfast sessions conversation openai-agents-1f2e
        holdfast sessions conversation openai-agents-1f2e --json
    """

    async def work() -> list[dict[str, Any]]:
        async with chosen_sessions(store, url) as opened:
            return await conversation_of(opened, session_id)

    entries = asyncio.run(work())
    if as_json:
        print_json({"entries": entries})
        return
    for entry in entries:
        echo(f"{entry['role']}: {entry['text'] or json.dumps(entry['body'], ensure_ascii=False)}")


def _question(question: dict[str, Any]) -> list[tuple[str, Text]]:
    """Return a question about a call, and the command that settles the call if it was started before."""
    call = f"{question['call_id']}: {question['tool']} {json.dumps(question['arguments'])}"
    lines = [("approval", one_line(f"{call} {question.get('note') or ''}"))]
    if unsettled := question.get("unsettled"):
        lines.append(("or settle", settle_command(**unsettled)))
    return lines
