"""`holdfast sessions`: list and show sessions."""

import asyncio
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from holdfast.api.models import ConversationEntry, EffectInfo, Items, SessionDetail, SessionInfo
from holdfast.api.submissions import SubmissionDetail
from holdfast.approval import ApprovalRequest
from holdfast.cli.failures import FAILED, failure_lines
from holdfast.cli.help import Commands
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
from holdfast.cli.terminal import (
    TextTable,
    coloured,
    echo,
    new_console,
    one_line,
    print_json,
    record,
    result_command,
    settle_command,
    time_text,
)
from holdfast.ids import check_choice
from holdfast.runtime.payloads import is_refused_retry
from holdfast.schedules import schedule_of
from holdfast.types import SIGNAL, STATUSES, TURNS, state_text

if TYPE_CHECKING:
    from holdfast.client import Client

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

    It also shows the last turn that has ended, and the signals that no tool or agent has received yet. If the last turn failed, it is shown with its reason and the command that continues it. A call that was cut off is shown with the command that records its outcome.

    Examples:
        holdfast sessions show s1
    """

    async def work() -> _Shown:
        async with connected(store, url) as client:
            return await _read(client, session_id)

    shown = asyncio.run(work())
    session, failed, last = shown.session, shown.failed, shown.last_turn
    questions, problem = session.approvals, session.problem
    if as_json:
        print_json(
            {
                "session": session.model_dump(mode="json", exclude={"approvals", "problem"}),
                "submissions": [record(s) for s in shown.waiting],
                "last_turn": None if last is None else record(last),
                "failed": None if failed is None else record(failed),
                "approvals": [call.model_dump(mode="json") for call in questions],
                "signals": [{"name": name, "data": data} for name, data in shown.signals],
                "running": [record(effect) for effect in shown.running],
                "effects": [record(effect) for effect in shown.unknown],
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
        *([] if last is None or failed else [("last turn", one_line(f"{last.submission_id} {last.state}"))]),
        *(
            []
            if session.error is None or shown.failure
            else [("last run", one_line(f"failed: {session.error}"))]
        ),
        *shown.failure,
        *(
            (
                state_text(item.state),
                one_line(f"{item.submission_id} {item.kind}{_start(item)}{_sender(item)}"),
            )
            for item in shown.waiting
        ),
        *(line for question in questions for line in _question(session.id, question)),
        *(("signal", one_line(f"{name} {json.dumps(data)}")) for name, data in shown.signals),
        *(("running", one_line(f"{effect.tool} {effect.call_id}")) for effect in shown.running),
        *(
            (
                "unknown",
                Text(f"{effect.tool}: ").append_text(settle_command(effect.run_id, effect.call_id)),
            )
            for effect in shown.unknown
        ),
    ]
    for name, value in lines:
        console.print(Text(f"{name:<12}").append_text(value), soft_wrap=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shown:
    """A session and all that `holdfast sessions show` prints about it."""

    session: SessionDetail
    waiting: list[SubmissionDetail]
    last_turn: SubmissionDetail | None
    """The last turn that has ended."""
    failed: SubmissionDetail | None
    """The last turn, if it failed and no later one waits, except for its time."""
    failure: list[tuple[str, Text]]
    signals: list[tuple[str, Any]]
    """The names and data of the signals that no wait has received yet."""
    running: list[EffectInfo]
    unknown: list[EffectInfo]


async def _read(client: "Client", session_id: str) -> _Shown:
    handle = await client.session(session_id)
    session = await handle.info()
    waiting = [
        item for state in ("claimed", "waiting", "queued") async for item in handle.submissions(state=state)
    ]
    turns = [item async for item in handle.submissions() if item.kind in TURNS and not is_refused_retry(item)]
    ended = [item for item in turns if item.ended_at is not None]
    last = ended[-1] if ended else None
    shows_failure = session.status == "failed" or not waiting
    failed = last if last is not None and last.state in FAILED and shows_failure else None
    is_failed = failed is not None or session.status == "failed"
    running, unknown = await unended_calls(client, session)
    return _Shown(
        session=session,
        waiting=waiting,
        last_turn=last,
        failed=failed,
        failure=await failure_lines(client, session_id, failed) if is_failed else [],
        signals=[
            (signal.key.rpartition("/")[0], signal.body["data"]) async for signal in handle.records(SIGNAL)
        ],
        running=running,
        unknown=unknown,
    )


def _start(item: SubmissionDetail) -> str:
    """Return when a submission may start, or how often it has started."""
    if item.state == "queued" and item.deliver_at is not None and item.run_id is None:
        return f", not before {time_text(item.deliver_at)}"
    return f", attempts {item.attempts}"


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
        lines.append(("answer by", time_text(question.deadline).append_text(default)))
    if question.unsettled:
        lines.append(("or settle", settle_command(question.unsettled.run_id, question.unsettled.call_id)))
    return lines
