"""`holdfast inbox` lists the sessions that wait for a person, and `holdfast dismiss` removes a failed one from it."""

import asyncio
from typing import TYPE_CHECKING

from holdfast.cli.options import AsJson, ServerUrl, SessionId, StoreUrl, connected
from holdfast.cli.terminal import (
    TextTable,
    echo,
    new_console,
    one_line,
    print_json,
    record,
    result_command,
    settle_command,
    time_text,
)

if TYPE_CHECKING:
    from holdfast.api.models import Inbox, SessionInfo
    from holdfast.approval import ApprovalRequest


def inbox(store: StoreUrl = None, url: ServerUrl = None, as_json: AsJson = False) -> None:
    """List the sessions that wait for a person, oldest first.

    A session waits for a decision about a tool call, for the outcome of a call that was cut off, for a worker, or to be resumed.
    A call that was cut off stays in the inbox until you record its outcome, or the session is cleaned or erased. A session whose last
    turn failed stays until its next turn, or until you dismiss the failure.

    Examples:
        holdfast inbox
        holdfast inbox --json
    """

    async def work() -> "Inbox":
        async with connected(store, url) as client:
            return await client.inbox()

    waiting = asyncio.run(work())
    if as_json:
        print_json(waiting.model_dump(mode="json"))
        return
    table = TextTable("id", "agent", "waits for", "since")
    for item in waiting.items:
        cut_off = [f"{effect.tool} (outcome unknown)" for effect in item.effects]
        asked = [_asked(call) for call in item.approvals]
        calls = ", ".join([*asked, *cut_off])
        reason = calls or item.problem or item.waiting_for or item.error or ""
        table.add_row(one_line(item.id), one_line(item.agent), one_line(reason), time_text(item.active_at))
    console = new_console()
    console.print(table)
    outside = [(item.id, call) for item in waiting.items for call in item.approvals if call.external]
    if outside:
        console.print("\nDeliver the results of the calls that run outside.")
    for session_id, call in outside:
        console.print(result_command(session_id, call.call_id), soft_wrap=True)
    started = [call.unsettled for item in waiting.items for call in item.approvals if call.unsettled]
    unknown = [effect for item in waiting.items for effect in item.effects]
    if started or unknown:
        console.print(
            "\nRecord the outcome of the calls that were cut off, as JSON, or the error of a call that failed."
        )
    for call in (*started, *unknown):
        console.print(settle_command(call.run_id, call.call_id), soft_wrap=True)
    if any(item.status == "failed" for item in waiting.items):
        console.print(
            "\n`holdfast sessions show` prints how to continue a turn that failed; `holdfast dismiss` removes it from the inbox.",
            soft_wrap=True,
        )
    if waiting.more:
        echo(
            "More sessions wait. Answer these first, or list all with `holdfast sessions list --status waiting` and `--status failed`."
        )


def _asked(call: "ApprovalRequest") -> str:
    if call.external:
        return f"{call.tool} (result)"
    return f"{call.tool} (run again?)" if call.unsettled else call.tool


def dismiss(
    session_id: SessionId, store: StoreUrl = None, url: ServerUrl = None, as_json: AsJson = False
) -> None:
    """Dismiss the failure of the last turn of a session.

    The session is idle again and leaves the inbox. Its events and submissions keep the failure. If the session is not failed,
    nothing changes.

    Examples:
        holdfast dismiss s1
    """

    async def work() -> "SessionInfo":
        async with connected(store, url) as client:
            return await (await client.session(session_id)).dismiss()

    session = asyncio.run(work())
    if as_json:
        print_json(record(session))
    else:
        echo(f"Session {session.id} is {session.status}.")
