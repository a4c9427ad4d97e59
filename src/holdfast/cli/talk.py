"""`holdfast send | tail | interrupt | cancel | signal | approve`: use a session from a terminal."""

import asyncio
import json
import sys
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from holdfast.cli.events import print_event
from holdfast.cli.exit_codes import ExitCode
from holdfast.cli.failures import FAILED, latest_undo, next_command
from holdfast.cli.options import AsJson, ServerUrl, SessionId, StoreUrl, connected
from holdfast.cli.terminal import echo, new_console, print_json, record, time_text
from holdfast.errors import ApprovalNeeded, BadInput, Conflict, TurnFailed
from holdfast.ids import check_choice
from holdfast.priority import PRIORITIES, Priority
from holdfast.types import WHEN_BUSY, WhenBusy, state_text

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from holdfast.api.retention import RetentionStatus
    from holdfast.api.submissions import SubmissionInfo
    from holdfast.approval import ApprovalRequest
    from holdfast.client import Client, SessionHandle, TurnHandle

_EXIT_CODES = {"waiting": ExitCode.WAITING, "queued": ExitCode.TIMEOUT, "claimed": ExitCode.TIMEOUT}

_ADVICE = {"retry": "Continue it with", "undo": "Continue the undo of its effects with"}

Wait = Annotated[
    bool, typer.Option("--wait", help="Wait until a worker has processed it. Exit with 1 if it fails.")
]
WaitForAnswer = Annotated[bool, typer.Option("--wait", help="Wait for the answer and print it.")]
Timeout = Annotated[
    float | None,
    typer.Option(min=0, metavar="SECONDS", help="With --wait: stop waiting after this time."),
]


def send(
    session_id: SessionId,
    text: Annotated[str, typer.Argument(help="The message; - reads it from standard input.")],
    store: StoreUrl = None,
    url: ServerUrl = None,
    agent: Annotated[
        str | None, typer.Option(help="Create the session for this agent if it does not exist.")
    ] = None,
    owner: Annotated[
        str | None, typer.Option(help="Owner of a new session, for administrators. Default: yourself.")
    ] = None,
    when_busy: Annotated[
        str, typer.Option(metavar="MODE", help="If the session is busy: queue, steer, interrupt or reject.")
    ] = "queue",
    key: Annotated[
        str | None, typer.Option(help="Idempotency key: a second message with this key is not sent.")
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Start not before this time, such as 2026-12-24T18:00:00+01:00."),
    ] = None,
    priority: Annotated[
        str, typer.Option(help="low, normal or high: the order among sessions of the same owner that wait.")
    ] = "normal",
    wait: WaitForAnswer = False,
    timeout: Timeout = None,
    as_json: AsJson = False,
) -> None:
    """Send a message to a session.

    Prints the id of the submission. With --wait it prints the answer; the exit code is 1 if the message failed, 5 if it waits
    for a person, and 6 if it has not ended after --timeout.

    Examples:
        holdfast send s1 "Summarize the report." --agent clerk
        cat notes.txt | holdfast send s1 - --wait --timeout 60
        holdfast send s1 "Good morning." --at 2026-12-24T08:00:00Z
    """
    check_choice(when_busy, WHEN_BUSY, "value for --when-busy")
    check_choice(priority, PRIORITIES, "value for --priority")
    message = sys.stdin.read() if text == "-" else text
    deliver_at = None if at is None else _time(at)

    async def work() -> Answer:
        async with connected(store, url) as client:
            session = await client.session(session_id, agent=agent, owner=owner)
            sent = await session.send(
                message,
                when_busy=cast("WhenBusy", when_busy),
                idempotency_key=key,
                deliver_at=deliver_at,
                priority=cast("Priority", priority),
            )
            return await answered(client, sent, timeout, wait=wait)

    print_answer(asyncio.run(work()), wait=wait, as_json=as_json)


def _time(text: str) -> datetime:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise BadInput(
            problem=f"--at {text!r} is not a time. Use a time with a zone, such as 2026-12-24T18:00:00+01:00"
        ) from None
    if time.tzinfo is None:
        raise BadInput(
            problem=f"--at {text!r} has no time zone. Append Z for UTC, or an offset, as in {time.isoformat()}+01:00"
        )
    return time


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A turn, its answer if the command waited for it, and the advice how to continue if it failed."""

    submission: "SubmissionInfo"
    text: str | None = None
    advice: str | None = None
    late: bool = False
    """Whether the command stopped to wait."""


async def answered(client: "Client", turn: "TurnHandle[Any]", seconds: float | None, *, wait: bool) -> Answer:
    """Return a turn as it was accepted, or with `wait` as it ended or waits for a person."""
    if not wait:
        return Answer(submission=turn.accepted)
    submission, text, late = await wait_for_answer(turn, seconds)
    if submission.state not in FAILED:
        return Answer(submission=submission, text=text, late=late)
    undo = await latest_undo(client, submission.session_id)
    command = await next_command(client, submission.session_id, submission, undo)
    advice = command and f"{_ADVICE[command[0]]}: {command[1]}"
    return Answer(submission=submission, text=text, advice=advice)


async def wait_for_answer(
    turn: "TurnHandle[Any]", seconds: float | None
) -> "tuple[SubmissionInfo, str | None, bool]":
    """Wait until a turn has ended or waits for a person. Return it, its answer, and whether the time was over before."""
    try:
        answer: str | None = await turn.result(timeout=seconds)
    except (TurnFailed, ApprovalNeeded):
        return await turn.info(), None, False
    except TimeoutError:
        problem = await turn.problem()
        late = f"The message has not ended after {seconds:g} s. It continues without this command. {problem or ''}"
        return (await turn.info()).model_copy(update={"reason": late.strip()}), None, True
    return await turn.info(), answer or None, False


def print_answer(answer: Answer, *, wait: bool, as_json: bool) -> None:
    """Print the id of a turn, or its answer if the command waited for it. Exit with the code of a turn that is not done."""
    submission = answer.submission
    if as_json:
        print_json({"submission": record(submission), "answer": answer.text})
    elif not wait:
        echo(submission.submission_id)
    elif answer.text is not None:
        echo(answer.text)
    if wait and submission.state != "done":
        echo(f"{state_text(submission.state)}: {submission.reason}", err=True)
        if answer.advice is not None:
            echo(answer.advice, err=True)
        late = ExitCode.TIMEOUT if answer.late else None
        raise typer.Exit(late or _EXIT_CODES.get(submission.state, ExitCode.FAILED))


def tail(
    session_id: SessionId,
    store: StoreUrl = None,
    url: ServerUrl = None,
    after: Annotated[
        int, typer.Option(min=0, metavar="SEQ", help="Start after the event with this number.")
    ] = 0,
    follow: Annotated[bool, typer.Option(help="Keep printing new events until Ctrl-C.")] = True,
    as_json: AsJson = False,
) -> None:
    """Print the events of a session and follow new ones.

    Lines are cut at the width of the terminal. With --json, each event is one complete line.

    Examples:
        holdfast tail s1
        holdfast tail s1 --after 120 --no-follow --json
    """
    console = new_console()

    async def work() -> None:
        async with connected(store, url) as client:
            session = await client.session(session_id)
            if (await session.info()).cleaned_at is not None:
                echo(_cleaned(await session.retention()), err=True)
                return
            async with aclosing(session.journal(after=after, follow=follow)) as events:
                async for event in events:
                    if as_json:
                        print_json({"session_id": session_id, **record(event)})
                    else:
                        print_event(event, console)
                    sys.stdout.flush()

    try:
        asyncio.run(work())
    except KeyboardInterrupt:
        raise typer.Exit(ExitCode.INTERRUPTED) from None


def _cleaned(state: "RetentionStatus") -> str:
    """Return the reason why a session has no events, and the command that restores them."""
    command = f"`holdfast sessions rehydrate {state.session_id}`"
    if state.archive is None:
        command = f"`holdfast sessions rehydrate {state.session_id} --from FILE`, if you exported the session to a file: no archive is stored"
    at = time_text(state.cleaned_at)
    return f"The events of session {state.session_id} were deleted when it was cleaned, at {at}. Restore them with {command}."


def interrupt(
    session_id: SessionId,
    store: StoreUrl = None,
    url: ServerUrl = None,
    wait: Wait = False,
    as_json: AsJson = False,
) -> None:
    """Stop the running turn of a session.

    The next message continues from there. `holdfast cancel` stops or removes one message.

    Examples:
        holdfast interrupt s1
    """
    submit(session_id, lambda session: session.interrupt(), store, url, wait=wait, as_json=as_json)


def cancel(
    session_id: SessionId,
    submission_id: Annotated[
        str,
        typer.Argument(help="Id of the message. `send` printed it, and `holdfast sessions show` lists it."),
    ],
    store: StoreUrl = None,
    url: ServerUrl = None,
    wait: Wait = False,
    as_json: AsJson = False,
) -> None:
    """Cancel one message of a session, even if it has not started.

    A message that is queued, or sent for later, is removed from the queue. A turn that is running or waiting is stopped.

    Examples:
        holdfast cancel s1 019a7d3e-5c1b-7f00-8a2e-3d4f5a6b7c8d
    """

    async def command(session: "SessionHandle[str]") -> "TurnHandle[None]":
        turn = await session.turn(submission_id)
        if turn.accepted.ended_at is not None:
            raise Conflict(
                problem=f"submission {turn.id} has already ended: it is {state_text(turn.accepted.state)}"
            )
        return await turn.cancel()

    submit(session_id, command, store, url, wait=wait, as_json=as_json)


def signal(
    session_id: SessionId,
    name: Annotated[str, typer.Argument(help="Name of the signal.")],
    store: StoreUrl = None,
    url: ServerUrl = None,
    data: Annotated[
        str | None, typer.Option(metavar="JSON", help="Data for the tool or agent that receives it.")
    ] = None,
    key: Annotated[
        str | None, typer.Option(help="Idempotency key: a second signal with this key is not delivered.")
    ] = None,
    wait: Wait = False,
    as_json: AsJson = False,
) -> None:
    """Send a signal to a session.

    A tool or agent that waits for it continues. One that waits later receives it then.

    Examples:
        holdfast signal s1 paid
        holdfast signal s1 paid --data '{"amount": 5}' --key payment-17
    """
    try:
        value = None if data is None else json.loads(data)
    except ValueError as error:
        raise BadInput(problem=f"--data is not JSON: {error}") from error
    submit(
        session_id,
        lambda session: session.signal(name, value, idempotency_key=key),
        store,
        url,
        wait=wait,
        as_json=as_json,
    )


def approve(
    session_id: SessionId,
    call_id: Annotated[
        str | None, typer.Argument(help="Id of the tool call. Required if several calls wait.")
    ] = None,
    store: StoreUrl = None,
    url: ServerUrl = None,
    deny: Annotated[bool, typer.Option("--deny", help="Deny the call.")] = False,
    feedback: Annotated[
        str | None, typer.Option(metavar="TEXT", help="With --deny: the reason, for the model.")
    ] = None,
    arguments: Annotated[
        str | None, typer.Option(metavar="JSON", help="Run the call with these arguments.")
    ] = None,
    wait: Wait = False,
    as_json: AsJson = False,
) -> None:
    """Approve or deny a tool call that waits for a person.

    `holdfast sessions show` lists the calls that wait. The answer applies to the arguments that wait now, which are printed.
    A worker records it, or rejects it if the call no longer waits or its deadline has passed: --wait reports which.

    Examples:
        holdfast approve s1 --wait
        holdfast approve s1 call-7 --deny --feedback "Too expensive."
        holdfast approve s1 call-7 --arguments '{"amount": 5}'
    """
    try:
        edited = None if arguments is None else json.loads(arguments)
    except ValueError as error:
        raise BadInput(problem=f"--arguments is not JSON: {error}") from error

    async def work() -> "tuple[SubmissionInfo, ApprovalRequest]":
        async with connected(store, url) as client:
            session = await client.session(session_id)
            waiting = (await session.info()).approvals
            chosen = [call for call in waiting if call_id is None or call.call_id == call_id]
            if len(chosen) != 1:
                calls = ", ".join(call.call_id for call in waiting)
                problem = (
                    f"pass the id of one of the waiting calls: {calls}"
                    if calls
                    else f"no call of session {session_id} waits for an answer"
                )
                raise Conflict(problem=problem)
            if deny:
                sent = await session.deny(chosen[0], feedback=feedback)
            else:
                sent = await session.approve(chosen[0], arguments=edited, feedback=feedback)
            return await processed(sent, wait=wait), chosen[0]

    sent, call = asyncio.run(work())
    print_sent(sent, as_json=as_json, call=call.model_dump(mode="json"))
    if not as_json and sent.state not in FAILED:
        recorded, submitted = ("denied", "denial of") if deny else ("approved", "approval of")
        answer = recorded if sent.state == "done" else f"sent {submitted}"
        arguments_shown = json.dumps(call.arguments if edited is None else edited)
        echo(f"{answer} {call.call_id}: {call.tool} {arguments_shown}")
    check_processed(sent, wait=wait)


def submit(
    session_id: str,
    command: "Callable[[SessionHandle[str]], Awaitable[TurnHandle[None]]]",
    store: str | None,
    url: str | None,
    *,
    wait: bool,
    as_json: bool,
) -> None:
    """Submit a command to a session and print the submission. With `wait`, exit with 1 if it fails."""

    async def work() -> "SubmissionInfo":
        async with connected(store, url) as client:
            return await processed(await command(await client.session(session_id)), wait=wait)

    sent = asyncio.run(work())
    print_sent(sent, as_json=as_json)
    check_processed(sent, wait=wait)


async def processed(sent: "TurnHandle[None]", *, wait: bool) -> "SubmissionInfo":
    """Return a submission as it was accepted, or with `wait` as it ended."""
    return (await wait_for_answer(sent, None))[0] if wait else sent.accepted


def print_sent(submission: "SubmissionInfo", *, as_json: bool, **more: object) -> None:
    """Print the id of a submission, or all of it as JSON."""
    if as_json:
        print_json({"submission": record(submission), **more})
    else:
        echo(submission.submission_id)


def check_processed(submission: "SubmissionInfo", *, wait: bool) -> None:
    """Print the reason and exit with 1 if the command waited for a submission that failed."""
    if wait and submission.state != "done":
        echo(f"{state_text(submission.state)}: {submission.reason}", err=True)
        raise typer.Exit(ExitCode.FAILED)
