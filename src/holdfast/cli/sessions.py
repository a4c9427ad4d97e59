"""`holdfast sessions`: list and show sessions."""

import asyncio
import json
from typing import Annotated

import typer
from rich.text import Text

from holdfast.api.models import ConversationEntry, EffectInfo, Items, SessionDetail, SessionInfo
from holdfast.api.submissions import SubmissionDetail
from holdfast.approval import ApprovalRequest
from holdfast.cli.help import Commands
from holdfast.cli.history import last_turn
from holdfast.cli.options import (
    AsJson,
    Cursor,
    Limit,
    ServerUrl,
    SessionId,
    StoreUrl,
    connected,
    unended_calls,
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
    result_command,
    retry_command,
    settle_command,
    time_text,
)
from holdfast.ids import check_choice
from holdfast.schedules import schedule_of
from holdfast.types import STATUSES

app = Commands("List, show, export, clean and erase sessions.")


@app.command("list")
def list_(
    store: StoreUrl = None,
    url: ServerUrl = None,
    status: Annotated[
        str | None,
        typer.Option(
            help="Only sessions with this status: idle, queued, running, waiting, sleeping, failed, …"
        ),
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
    """List sessions, most recently active first.

    Examples:
        holdfast sessions list --status waiting
        holdfast sessions list --agent clerk --limit 10 --json
    """
    if status is not None:
        check_choice(status, STATUSES, "value for --status")

    async def work() -> Items[SessionInfo]:
        async with connected(store, url) as client:
            given = {"status": status, "agent": agent, "owner": owner, "search": search}
            params = {**given, "limit": limit, "cursor": cursor}
            return await client.transport.call(Items[SessionInfo], "GET", "/api/sessions", params=params)

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
        SessionDetail,
        list[SubmissionDetail],
        SubmissionDetail | None,
        list[EffectInfo],
        list[EffectInfo],
    ]:
        async with connected(store, url) as client:
            handle = await client.session(session_id)
            session = await handle.info()
            waiting = [
                item
                for state in ("claimed", "waiting", "queued")
                async for item in handle.submissions(state=state)
            ]
            failed = None
            if (not waiting or session.status == "failed") and (last := await last_turn(handle)) is not None:
                turns = [item async for item in handle.submissions() if item.submission_id == last]
                failed = turns[0] if turns[0].state in FAILED else None
            running, unknown = await unended_calls(client, session)
            return session, waiting, failed, running, unknown

    session, waiting, failed, running, unknown = asyncio.run(work())
    questions, problem = session.approvals, session.problem
    if as_json:
        print_json(
            {
                "session": session.model_dump(mode="json", exclude={"approvals", "problem"}),
                "submissions": [record(s) for s in waiting],
                "failed": None if failed is None else record(failed),
                "approvals": [call.model_dump(mode="json") for call in questions],
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
        *(
            (
                item.state,
                one_line(f"{item.submission_id} {item.kind}, attempts {item.attempts}{_sender(item)}"),
            )
            for item in waiting
        ),
        *(line for question in questions for line in _question(session.id, question)),
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


def _sender(item: SubmissionDetail) -> str:
    schedule = schedule_of(item.idempotency_key)
    return "" if schedule is None else f", sent by schedule {schedule}"


@app.command()
def conversation(
    session_id: SessionId, store: StoreUrl = None, url: ServerUrl = None, as_json: AsJson = False
) -> None:
    """Print the conversation in a session of another framework.

    Unrecognized entries are printed as stored. `holdfast tail` prints the sessions of Holdfast's own agents.

    Examples:
        holdfast sessions conversation openai-agents-1f2e
        holdfast sessions conversation openai-agents-1f2e --json
    """

    async def work() -> list[ConversationEntry]:
        async with connected(store, url) as client:
            session = await client.session(session_id)
            return [entry async for entry in session.conversation()]

    entries = asyncio.run(work())
    if as_json:
        print_json({"entries": [record(entry) for entry in entries]})
        return
    for entry in entries:
        echo(f"{entry.role}: {entry.text or json.dumps(entry.body, ensure_ascii=False)}")


def _question(session_id: str, question: ApprovalRequest) -> list[tuple[str, Text]]:
    """Return a question about a call, the delegate that asks, its deadline, and the command that settles the call if it runs outside or was started before."""
    call = f"{question.call_id}: {question.tool} {json.dumps(question.arguments)}"
    what = "result of" if question.external else "approval"
    lines = [(what, one_line(f"{call} {question.note or ''}"))]
    if question.external:
        lines.append(("deliver", result_command(session_id, question.call_id)))
    if question.origin:
        path = " > ".join(question.origin.agents)
        lines.append(("asked by", one_line(f"{path}, session {question.origin.session_id}")))
    if question.deadline:
        default = Text(f", then {question.default}")
        lines.append(("answer until", time_text(question.deadline).append_text(default)))
    if question.unsettled:
        lines.append(("or settle", settle_command(question.unsettled.run_id, question.unsettled.call_id)))
    return lines
