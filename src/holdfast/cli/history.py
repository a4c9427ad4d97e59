"""`holdfast undo | rewind | undo-effects | retry | compact | fork | settle`: change the history of a session, and settle tool calls."""

import asyncio
import json
from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.options import AsJson, ServerUrl, SessionId, StoreUrl, connected
from holdfast.cli.runs import RunId
from holdfast.cli.talk import (
    Answer,
    Timeout,
    Wait,
    WaitForAnswer,
    answered,
    check_processed,
    print_answer,
    print_sent,
    processed,
    submit,
)
from holdfast.cli.terminal import echo, print_json, record
from holdfast.errors import BadInput, Conflict
from holdfast.events import EffectUndone
from holdfast.runtime.payloads import is_refused_retry
from holdfast.types import TURNS

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from holdfast.api.models import EffectInfo
    from holdfast.api.submissions import SubmissionInfo
    from holdfast.client import Client, SessionHandle, TurnHandle


def undo(
    session_id: SessionId,
    store: StoreUrl = None,
    url: ServerUrl = None,
    wait: Wait = False,
    as_json: AsJson = False,
) -> None:
    """Undo the last message and everything after it.

    The events of the undone messages are kept.

    Examples:
        holdfast undo s1 --wait
    """
    submit(session_id, lambda session: session.undo(), store, url, wait=wait, as_json=as_json)


def rewind(
    session_id: SessionId,
    checkpoint_id: Annotated[
        str, typer.Argument(help="Id of the checkpoint. `holdfast runs show` prints it.")
    ],
    store: StoreUrl = None,
    url: ServerUrl = None,
    wait: Wait = False,
    as_json: AsJson = False,
) -> None:
    """Continue from an earlier checkpoint.

    The events after that point are kept.

    Examples:
        holdfast rewind s1 019a8f4c-77aa-7c1e-9d3f-2b6f0a1c5e77 --wait
    """
    submit(session_id, lambda session: session.rewind(checkpoint_id), store, url, wait=wait, as_json=as_json)


def retry(
    session_id: SessionId,
    submission_id: Annotated[
        str | None, typer.Argument(help="Id of the turn. Default: the last turn of the session.")
    ] = None,
    from_step: Annotated[
        str | None,
        typer.Option(metavar="CALL", help="Repeat this step of a plain agent and all later ones."),
    ] = None,
    store: StoreUrl = None,
    url: ServerUrl = None,
    wait: WaitForAnswer = False,
    timeout: Timeout = None,
    as_json: AsJson = False,
) -> None:
    """Continue a turn that failed, was interrupted or was given up.

    Recorded tool calls and steps are not repeated, except with --from-step. Settle calls with an unknown outcome first. Prints
    the id of the submission; with --wait the answer, with the exit codes of `holdfast send --wait`.

    Examples:
        holdfast retry s1 --wait
        holdfast retry s1 --from-step turn/search~2
    """

    async def work() -> Answer:
        async with connected(store, url) as client:
            session = await client.session(session_id)
            turn_id = submission_id or await last_turn(session)
            if turn_id is None:
                raise Conflict(problem=f"session {session_id} has no turn yet")
            sent = await (await session.turn(turn_id)).retry(from_step=from_step)
            return await answered(client, sent, timeout, wait=wait)

    print_answer(asyncio.run(work()), wait=wait, as_json=as_json)


def undo_effects(
    session_id: SessionId,
    submission_id: Annotated[
        str | None, typer.Argument(help="Id of the turn. Default: the last turn of the session.")
    ] = None,
    store: StoreUrl = None,
    url: ServerUrl = None,
    wait: Wait = False,
    as_json: AsJson = False,
) -> None:
    """Undo what the steps of a turn did outside the session.

    Runs the undo functions of its completed steps, the last one first. Stops at the first that fails or has an unknown outcome; the next
    call continues there. The messages stay: `holdfast undo` removes them. With --wait, prints the steps that are undone.

    Examples:
        holdfast undo-effects s1 --wait
    """

    async def work() -> "tuple[SubmissionInfo, list[str]]":
        async with connected(store, url) as client:
            session = await client.session(session_id)
            turn_id = submission_id or await last_turn(session)
            if turn_id is None:
                raise Conflict(problem=f"session {session_id} has no turn yet")
            sent = await (await session.turn(turn_id)).undo_effects()
            ended = await processed(sent, wait=wait)
            return ended, [each async for each in _undone(sent)] if wait else []

    sent, undone = asyncio.run(work())
    print_sent(sent, as_json=as_json)
    if wait and not as_json:
        for step in undone:
            echo(f"undone: {step}")
        if not undone and sent.state == "done":
            echo("Nothing was left to undo.")
    check_processed(sent, wait=wait)


async def _undone(sent: "TurnHandle[None]") -> "AsyncGenerator[str, None]":
    """Yield the steps that an undo of effects, which has ended, has undone."""
    is_running = False
    async with aclosing(sent.events()) as events:
        async for event in events:
            if event.kind == "submission_started":
                is_running = getattr(event, "submission_id", None) == sent.id
            elif is_running and isinstance(event, EffectUndone):
                yield f"{event.undoes} by {event.name}"


def compact(
    session_id: SessionId,
    store: StoreUrl = None,
    url: ServerUrl = None,
    wait: Wait = False,
    as_json: AsJson = False,
) -> None:
    """Replace the history with a shorter one.

    Examples:
        holdfast compact s1 --wait
    """
    submit(session_id, lambda session: session.compact(), store, url, wait=wait, as_json=as_json)


def fork(
    session_id: SessionId,
    checkpoint: Annotated[
        str | None, typer.Option(metavar="ID", help="Checkpoint to copy. Default: the latest.")
    ] = None,
    to: Annotated[
        str | None, typer.Option(metavar="ID", help="Id of the new session. Default: a new id.")
    ] = None,
    store: StoreUrl = None,
    url: ServerUrl = None,
    wait: Wait = False,
    as_json: AsJson = False,
) -> None:
    """Copy the history of a session into a new session.

    The event `forked` contains the id of the new session.

    Examples:
        holdfast fork s1 --to s1-copy --wait
    """
    submit(
        session_id,
        lambda session: session.start_fork(checkpoint, session_id=to),
        store,
        url,
        wait=wait,
        as_json=as_json,
    )


def settle(
    run_id: RunId,
    call_id: Annotated[
        str, typer.Argument(help="Id of the tool call. `holdfast runs effects RUN --unresolved` lists them.")
    ],
    result: Annotated[str | None, typer.Option(metavar="JSON", help="The result of the call.")] = None,
    error: Annotated[str | None, typer.Option(metavar="TEXT", help="The error, if the call failed.")] = None,
    store: StoreUrl = None,
    url: ServerUrl = None,
    as_json: AsJson = False,
) -> None:
    """Record the outcome of a tool call whose outcome is unknown.

    The outcome is unknown if the process ended during the call. Pass --result or --error.

    Examples:
        holdfast settle run-1 call-7 --result '{"paid": 5}'
        holdfast settle run-1 call-7 --error "The bank rejected it."
    """
    if (result is None) == (error is None):
        raise BadInput(problem="pass either --result or --error")
    try:
        value: Any = None if result is None else json.loads(result)
    except ValueError as problem:
        text = "text must be a quoted JSON string, as in --result '\"text\"'"
        raise BadInput(problem=f"--result is not JSON ({problem}); {text}") from problem

    async def work() -> "tuple[EffectInfo, str]":
        async with connected(store, url) as client:
            consequence = "" if as_json else await _consequence(client, run_id, call_id)
            settled = await client.run(run_id).settle(call_id, result=value, error=error)
            return settled, consequence

    settled, consequence = asyncio.run(work())
    if as_json:
        print_json({"effect": record(settled)})
    else:
        echo(f"Call {settled.call_id} of {settled.tool} is {settled.state}.{consequence}")


async def last_turn(session: "SessionHandle[Any]") -> str | None:
    """Return the id of the last turn of a session, without messages for later; None if there is none."""
    turns = [
        each.submission_id
        async for each in session.submissions()
        if each.kind in TURNS
        and not is_refused_retry(each)
        and not (each.state == "queued" and each.deliver_at is not None)
    ]
    return turns[-1] if turns else None


async def _consequence(client: "Client", run_id: str, call_id: str) -> str:
    """Return the effect of settling a call on the conversation."""
    session_id = (await client.run(run_id).info()).session_id
    questions = (await (await client.session(session_id)).info()).approvals
    asked = [question.unsettled for question in questions if question.unsettled]
    if any((each.run_id, each.call_id) == (run_id, call_id) for each in asked):
        others = " when the other questions are answered" if len(questions) > 1 else ""
        return f" Its turn continues with this outcome{others}."
    if any(each.run_id == run_id for each in asked):
        return ""
    async for latest in client.runs(session_id=session_id):
        if latest.id != run_id and latest.status in {"completed", "waiting"}:
            return (
                " The conversation has continued: the model was already informed that the outcome is unknown."
            )
        break
    return ""
