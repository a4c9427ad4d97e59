"""`holdfast undo | rewind | compact | fork | settle`: change the history of a session, and settle unknown calls."""

import asyncio
import json
from dataclasses import asdict
from typing import Annotated, Any

import typer

from holdfast.cli.options import AsJson, ServerUrl, StoreUrl, chosen_sessions
from holdfast.cli.retention import actor
from holdfast.cli.runs import RunId
from holdfast.cli.sessions import SessionId
from holdfast.cli.talk import outcome, print_sent
from holdfast.cli.terminal import echo, print_json
from holdfast.errors import BadInput
from holdfast.store import Store
from holdfast.types import Effect, Submission

Wait = Annotated[bool, typer.Option("--wait", help="Wait for the end; exit 1 if it failed.")]


def undo(
    session_id: SessionId,
    store: StoreUrl = None,
    url: ServerUrl = None,
    wait: Wait = False,
    as_json: AsJson = False,
) -> None:
    """Go back to before the last message. What came after it stays on record."""
    _submit(session_id, "undo", {}, store, url, wait=wait, as_json=as_json)


def rewind(
    session_id: SessionId,
    checkpoint_id: Annotated[str, typer.Argument(help="The checkpoint; `runs show` names some.")],
    store: StoreUrl = None,
    url: ServerUrl = None,
    wait: Wait = False,
    as_json: AsJson = False,
) -> None:
    """Continue from an earlier checkpoint. What came after it stays on record."""
    payload = {"checkpoint_id": checkpoint_id}
    _submit(session_id, "rewind", payload, store, url, wait=wait, as_json=as_json)


def compact(
    session_id: SessionId,
    store: StoreUrl = None,
    url: ServerUrl = None,
    wait: Wait = False,
    as_json: AsJson = False,
) -> None:
    """Replace the history by a shorter one."""
    _submit(session_id, "compact", {}, store, url, wait=wait, as_json=as_json)


def fork(
    session_id: SessionId,
    checkpoint: Annotated[
        str | None, typer.Option(help="The checkpoint to copy; by default the latest.")
    ] = None,
    to: Annotated[str | None, typer.Option(help="The id of the new session.")] = None,
    store: StoreUrl = None,
    url: ServerUrl = None,
    wait: Wait = False,
    as_json: AsJson = False,
) -> None:
    """Copy the history of a session into a new one. A `forked` event has the new id."""
    given = {"checkpoint_id": checkpoint, "session_id": to}
    payload = {name: value for name, value in given.items() if value is not None}
    _submit(session_id, "fork", payload, store, url, wait=wait, as_json=as_json)


def _submit(
    session_id: str,
    kind: str,
    payload: dict[str, str],
    store: str | None,
    url: str | None,
    *,
    wait: bool,
    as_json: bool,
) -> None:
    async def work() -> Submission:
        async with chosen_sessions(store, url) as opened:
            sent = await opened.submit(session_id, kind, json.dumps(payload))
            return await outcome(opened, sent) if wait else sent

    sent = asyncio.run(work())
    print_sent(sent, as_json=as_json)
    if wait and sent.state != "done":
        echo(f"{sent.state}: {sent.reason}", err=True)
        raise typer.Exit(1)


def settle(
    run_id: RunId,
    call_id: Annotated[str, typer.Argument(help="The call; `runs effects --unresolved` lists them.")],
    result: Annotated[str | None, typer.Option(help="What it returned, as JSON.")] = None,
    error: Annotated[str | None, typer.Option(help="That it failed, and why.")] = None,
    store: StoreUrl = None,
    url: ServerUrl = None,
    as_json: AsJson = False,
) -> None:
    """Record the outcome of a tool call that is unknown, because its process ended: its result, or that it failed."""
    if (result is None) == (error is None):
        raise BadInput(problem="give either --result or --error")
    try:
        value: Any = None if result is None else json.loads(result)
    except ValueError as problem:
        raise BadInput(problem=f"--result is not JSON: {problem}") from problem

    async def work() -> Effect:
        async with chosen_sessions(store, url) as opened:
            if not isinstance(opened, Store):
                return await opened.settle(run_id, call_id, result=value, error=error)
            from holdfast.record.recovery import settle_effect

            return await settle_effect(opened, run_id, call_id, actor=actor(), result=value, error=error)

    settled = asyncio.run(work())
    if as_json:
        print_json({"effect": asdict(settled)})
    else:
        echo(f"Call {settled.call_id} of {settled.tool} is {settled.state}.")
