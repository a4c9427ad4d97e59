"""`holdfast send | tail | interrupt | approve`: use a session from a terminal."""

import asyncio
import json
import sys
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.events import print_event
from holdfast.cli.exit_codes import ExitCode
from holdfast.cli.options import (
    AsJson,
    ServerUrl,
    SessionId,
    StoreUrl,
    chosen_sessions,
    pending_approvals,
    why_waiting,
    with_media,
)
from holdfast.cli.terminal import all_pages, echo, new_console, print_json, record, retry_command, time_text
from holdfast.errors import BadInput, Conflict, SessionExists
from holdfast.ids import check_choice
from holdfast.store import Store
from holdfast.types import WHEN_BUSY, Event, Session, Submission

if TYPE_CHECKING:
    from holdfast.cli.options import Sessions

_WARN_SECONDS = 2.0
"""When `send --wait` looks for a reason why the message has not started."""
FAILED = ("failed", "dead")
"""The states of a turn that can be retried."""
_EXIT_CODES = {"waiting": ExitCode.WAITING, "queued": ExitCode.TIMEOUT, "claimed": ExitCode.TIMEOUT}
_TURNS = ("submission_started", "submission_done", "submission_failed")

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
        str, typer.Option(help="Owner of a new session. With --url: the owner of the token.")
    ] = "local",
    when_busy: Annotated[
        str, typer.Option(metavar="MODE", help="If the session is busy: queue, steer, interrupt or reject.")
    ] = "queue",
    key: Annotated[
        str | None, typer.Option(help="Idempotency key: the same key sends the message once.")
    ] = None,
    wait: WaitForAnswer = False,
    timeout: Timeout = None,
    as_json: AsJson = False,
) -> None:
    """Send a message to a session.

    Prints the id of the submission. With --wait it prints the answer; the exit code is 1 if the message failed, 5 if it waits
    for a person, and 6 if it has not ended after --timeout.

    Examples:
        holdfast send s1 "Summarize the report." --agent clerk
        holdfast send s1 "And in French?" --wait --timeout 60
        cat notes.txt | holdfast send s1 -
    """
    check_choice(when_busy, WHEN_BUSY, "value for --when-busy")
    message = sys.stdin.read() if text == "-" else text

    async def work() -> tuple[Submission, str | None]:
        async with chosen_sessions(store, url) as opened:
            if agent is not None:
                await _open_session(opened, session_id, agent, owner)
            sent = await opened.submit(
                session_id,
                "message",
                json.dumps({"text": message}),
                when_busy=when_busy,  # pyright: ignore[reportArgumentType]
                idempotency_key=key,
            )
            return await wait_for_answer(opened, sent, timeout) if wait else (sent, None)

    submission, answer = asyncio.run(work())
    print_answer(submission, answer, wait=wait, as_json=as_json)


async def wait_for_answer(
    store: "Sessions", sent: Submission, seconds: float | None
) -> tuple[Submission, str | None]:
    """Wait until a turn has ended or waits for a person. Return it and the last text of the model."""
    warning = asyncio.create_task(_warn(store, sent.session_id))
    try:
        async with asyncio.timeout(seconds):
            return await _answer(store, sent)
    except TimeoutError:
        problem = await why_waiting(store, sent.session_id)
        late = f"The message has not ended after {seconds:g} s. It stays queued or running. {problem or ''}"
        return replace(await _reread(store, sent), reason=late.strip()), None
    finally:
        warning.cancel()


def print_answer(submission: Submission, answer: str | None, *, wait: bool, as_json: bool) -> None:
    """Print the id of a turn, or the answer that it was waited for. Exit with the code of a turn that is not done."""
    if as_json:
        print_json({"submission": record(submission), "answer": answer})
    elif not wait:
        echo(submission.id)
    elif answer is not None:
        echo(answer)
    if wait and submission.state != "done":
        echo(f"{submission.state}: {submission.reason}", err=True)
        if is_retriable(submission):
            echo(f"Continue it with: {retry_command(submission.session_id)}", err=True)
        raise typer.Exit(_EXIT_CODES.get(submission.state, ExitCode.FAILED))


def is_retriable(turn: Submission) -> bool:
    """Return whether a turn failed and a retry may continue it. A retry was refused if the session had continued before."""
    return turn.state in FAILED and "cannot be retried" not in (turn.reason or "")


async def _open_session(store: "Sessions", session_id: str, agent: str, owner: str) -> None:
    """Create a session if the id is new. Raises `Conflict` if the session belongs to another agent."""
    try:
        await store.create_session(agent=agent, owner=owner, id=session_id)
    except SessionExists:
        existing = (await store.session(session_id)).agent
        if existing != agent:
            problem = f"session {session_id} belongs to agent {existing!r}, not {agent!r}"
            raise Conflict(problem=f"{problem}; leave out --agent, or choose another session") from None


async def _warn(store: "Sessions", session_id: str) -> None:
    """Print why no worker runs the message, if it has not started after a while."""
    await asyncio.sleep(_WARN_SECONDS)
    problem = await why_waiting(store, session_id)
    if problem is not None:
        echo(f"The message is queued. {problem}", err=True)


async def _answer(store: "Sessions", sent: Submission) -> tuple[Submission, str | None]:
    """Wait until a submission has ended or waits for a person. Return it and the last text of the model."""
    last: Event | None = None
    async with aclosing(store.watch(sent.session_id, after=sent.position)) as events:
        async for event in events:
            last = event if _text(event) else last
            if event.kind == "approval_requested":
                result = await _reread(store, sent)
                if result.state == "waiting":  # otherwise the call belongs to an earlier message
                    return result, await _whole_text(store, last)
            elif event.kind in _TURNS and json.loads(event.payload)["submission_id"] == sent.id:
                if event.kind != "submission_started":
                    break
                last = None  # earlier text answers earlier messages
    return await _reread(store, sent), await _whole_text(store, last)


async def outcome(store: "Sessions", sent: Submission) -> Submission:
    """Wait until a submission has ended or waits for a person, and return it."""
    return (await _answer(store, sent))[0]


async def _whole_text(store: "Sessions", event: Event | None) -> str | None:
    """Return the text of a response, including text in the media store."""
    if event is None or event.message is None:
        return None
    return _text(replace(event, message=await with_media(store, event.message)))


async def _reread(store: "Sessions", sent: Submission) -> Submission:
    result = await all_pages(lambda cursor: store.submissions(sent.session_id, cursor=cursor, limit=1000))
    return next(item for item in result if item.id == sent.id)


def _text(event: Event) -> str | None:
    """Return the text of a model response; None for other events and responses without text."""
    message: dict[str, Any] = {} if event.message is None else json.loads(event.message)
    if message.get("kind") != "response":
        return None
    return "".join(part["content"] for part in message["parts"] if part.get("part_kind") == "text") or None


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

    def show(event: Event) -> None:
        if as_json:
            print_json(record(event))
            return
        print_event(event, console)

    async def work() -> None:
        async with chosen_sessions(store, url) as opened:
            session = await opened.session(session_id)
            if session.cleaned_at is not None:
                archive = (
                    session.archive if isinstance(opened, Store) else await opened.archive_of(session_id)
                )
                echo(_cleaned(session, archive), err=True)
                return
            if follow:
                async with aclosing(opened.watch(session_id, after=after)) as events:
                    async for event in events:
                        show(event)
                        sys.stdout.flush()
            number = after
            while page := await opened.events(session_id, after=number):
                number = page[-1].seq
                for event in page:
                    show(event)

    try:
        asyncio.run(work())
    except KeyboardInterrupt:
        raise typer.Exit(ExitCode.INTERRUPTED) from None


def _cleaned(session: Session, archive: str | None) -> str:
    """Return why a session has no events, and the command that brings them back."""
    command = f"`holdfast sessions rehydrate {session.id}`"
    if archive is None:
        command = f"`holdfast sessions rehydrate {session.id} --from FILE`, if you exported the session to a file: no archive is stored"
    at = time_text(session.cleaned_at)
    return f"The events of session {session.id} were deleted when it was cleaned, at {at}. Bring them back with {command}."


def interrupt(
    session_id: SessionId, store: StoreUrl = None, url: ServerUrl = None, as_json: AsJson = False
) -> None:
    """Stop the running turn of a session.

    The next message continues from there.

    Examples:
        holdfast interrupt s1
    """

    async def work() -> Submission:
        async with chosen_sessions(store, url) as opened:
            return await opened.submit(session_id, "interrupt", lane="control")

    print_sent(asyncio.run(work()), as_json=as_json)


def approve(
    session_id: SessionId,
    call_id: Annotated[
        str | None, typer.Argument(help="Id of the tool call. Needed if several calls wait.")
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
    as_json: AsJson = False,
) -> None:
    """Approve or deny a tool call that waits for a person.

    `holdfast sessions show` lists the calls that wait. The answer applies to the arguments that wait now, which are printed.

    Examples:
        holdfast approve s1
        holdfast approve s1 call-7 --deny --feedback "Too expensive."
        holdfast approve s1 call-7 --arguments '{"amount": 5}'
    """
    try:
        edited = None if arguments is None else json.loads(arguments)
    except ValueError as error:
        raise BadInput(problem=f"--arguments is not JSON: {error}") from error

    async def work() -> tuple[Submission, dict[str, Any]]:
        async with chosen_sessions(store, url) as opened:
            questions = await pending_approvals(opened, session_id)
            chosen = [q for q in questions if call_id is None or q["call_id"] == call_id]
            if len(chosen) != 1:
                calls = ", ".join(str(q["call_id"]) for q in questions)
                problem = (
                    f"name one of the calls that wait: {calls}"
                    if calls
                    else f"no call of session {session_id} waits for an answer"
                )
                raise Conflict(problem=problem)
            given = {"feedback": feedback, "arguments": edited}
            answer = {
                "call_id": chosen[0]["call_id"],
                "digest": chosen[0]["digest"],
                "approved": not deny,
                **{name: value for name, value in given.items() if value is not None},
            }
            sent = await opened.submit(session_id, "approval", json.dumps(answer), lane="control")
            return sent, chosen[0]

    sent, call = asyncio.run(work())
    print_sent(sent, as_json=as_json, call=call)
    if not as_json:
        arguments_shown = json.dumps(call["arguments"] if edited is None else edited)
        echo(f"{'denied' if deny else 'approved'} {call['call_id']}: {call['tool']} {arguments_shown}")


def print_sent(submission: Submission, *, as_json: bool, **more: object) -> None:
    """Print the id of a submission, or all of it as JSON."""
    if as_json:
        print_json({"submission": record(submission), **more})
    else:
        echo(submission.id)
