"""`holdfast send | tail | interrupt | approve`: talking to a session from a terminal."""

import asyncio
import json
import sys
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from holdfast.cli.options import AsJson, ServerUrl, StoreUrl, asked, chosen_sessions, why_waiting, with_media
from holdfast.cli.sessions import SessionId
from holdfast.cli.terminal import all_pages, echo, new_console, one_line, print_json, time_text
from holdfast.errors import BadInput, Conflict, SessionExists
from holdfast.ids import check_choice
from holdfast.types import WHEN_BUSY, Event, Submission

if TYPE_CHECKING:
    from holdfast.cli.options import Sessions

_SOON = 2.0
"""After so many seconds without an answer it is worth saying that there is no worker."""
_EXIT_CODES = {"waiting": 5, "queued": 6, "claimed": 6}
_TURNS = ("submission_started", "submission_done", "submission_failed")


def send(
    session_id: SessionId,
    text: Annotated[str, typer.Argument(help="What to say; - reads it from standard input.")],
    store: StoreUrl = None,
    url: ServerUrl = None,
    agent: Annotated[str | None, typer.Option(help="Make the session, for this agent, if it is new.")] = None,
    owner: Annotated[
        str, typer.Option(help="Who owns a new session; on a server, the token says.")
    ] = "local",
    when_busy: Annotated[str, typer.Option(help="queue, steer, interrupt or reject.")] = "queue",
    key: Annotated[str | None, typer.Option(help="The same key sends the same message once.")] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the end and print the answer.")] = False,
    timeout: Annotated[
        float | None, typer.Option(min=0, help="With --wait: stop waiting after so many seconds.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Send a message to a session.

    With --wait the exit code is 1 if it failed, 5 if it waits for a person, and 6 if it has not ended within --timeout.
    """
    check_choice(when_busy, WHEN_BUSY, "way to be busy")
    said = sys.stdin.read() if text == "-" else text

    async def work() -> tuple[Submission, str | None]:
        async with chosen_sessions(store, url) as opened:
            if agent is not None:
                await _open_session(opened, session_id, agent, owner)
            sent = await opened.submit(
                session_id,
                "message",
                json.dumps({"text": said}),
                when_busy=when_busy,  # pyright: ignore[reportArgumentType]
                idempotency_key=key,
            )
            if not wait:
                return sent, None
            warning = asyncio.create_task(_warn(opened, session_id))
            try:
                async with asyncio.timeout(timeout):
                    return await _answer(opened, sent)
            except TimeoutError:
                problem = await why_waiting(opened, session_id)
                late = f"It has not ended within {timeout:g} s, and stays queued or running. {problem or ''}"
                return replace(await _reread(opened, sent), reason=late.strip()), None
            finally:
                warning.cancel()

    submission, answer = asyncio.run(work())
    if as_json:
        print_json({"submission": asdict(submission), "answer": answer})
    elif not wait:
        echo(submission.id)
    elif answer is not None:
        echo(answer)
    if wait and submission.state != "done":
        echo(f"{submission.state}: {submission.reason}", err=True)
        raise typer.Exit(_EXIT_CODES.get(submission.state, 1))


async def _open_session(store: "Sessions", session_id: str, agent: str, owner: str) -> None:
    """Create a session if there is none with this id. Raises `Conflict` if there is one of another agent."""
    try:
        await store.create_session(agent=agent, owner=owner, id=session_id)
    except SessionExists:
        existing = (await store.session(session_id)).agent
        if existing != agent:
            problem = f"session {session_id} belongs to agent {existing!r}, not {agent!r}"
            raise Conflict(problem=f"{problem}; leave out --agent, or choose another session") from None


async def _warn(store: "Sessions", session_id: str) -> None:
    """Print why no worker takes the message, if that is so for a while."""
    await asyncio.sleep(_SOON)
    problem = await why_waiting(store, session_id)
    if problem is not None:
        echo(f"The message is queued. {problem}", err=True)


async def _answer(store: "Sessions", sent: Submission) -> tuple[Submission, str | None]:
    """Wait until a submission has ended or waits for a person; return it and what the model said last."""
    said: Event | None = None
    async for event in store.watch(sent.session_id, after=sent.position):
        said = event if _text(event) else said
        if event.kind == "approval_requested":
            result = await _reread(store, sent)
            if result.state == "waiting":  # else the question is of another message, before this one
                return result, await _whole_text(store, said)
        elif event.kind in _TURNS and json.loads(event.payload)["submission_id"] == sent.id:
            if event.kind != "submission_started":
                break
            said = None  # what was said so far was said to others
    return await _reread(store, sent), await _whole_text(store, said)


async def outcome(store: "Sessions", sent: Submission) -> Submission:
    """Wait until a submission has ended or waits for a person, and return it."""
    return (await _answer(store, sent))[0]


async def _whole_text(store: "Sessions", event: Event | None) -> str | None:
    """Return what a response says, with what was too large for the message."""
    if event is None or event.message is None:
        return None
    return _text(replace(event, message=await with_media(store, event.message)))


async def _reread(store: "Sessions", sent: Submission) -> Submission:
    result = await all_pages(lambda cursor: store.submissions(sent.session_id, cursor=cursor, limit=1000))
    return next(item for item in result if item.id == sent.id)


def _text(event: Event) -> str | None:
    """Return what a response of the model says; None for all else."""
    message: dict[str, Any] = {} if event.message is None else json.loads(event.message)
    if message.get("kind") != "response":
        return None
    return "".join(part["content"] for part in message["parts"] if part.get("part_kind") == "text") or None


def _asked(event: Event) -> str | None:
    """Return what a person says in a request; None for all else, and if there is more to it than text."""
    message: dict[str, Any] = {} if event.message is None else json.loads(event.message)
    parts = message.get("parts", ())
    said = [part["content"] for part in parts if part.get("part_kind") == "user-prompt"]
    return said[0] if len(parts) == len(said) == 1 and isinstance(said[0], str) else None


def tail(
    session_id: SessionId,
    store: StoreUrl = None,
    url: ServerUrl = None,
    after: Annotated[int, typer.Option(min=0, help="Begin after the event with this number.")] = 0,
    follow: Annotated[bool, typer.Option(help="Go on with what comes, until Ctrl-C.")] = True,
    as_json: AsJson = False,
) -> None:
    """Print the events of a session, and those that come; with --json one object per line."""
    console = new_console()

    def show(event: Event) -> None:
        if as_json:
            print_json(asdict(event))
            return
        step = "" if event.step is None else event.step
        start = f"{event.seq:>6}  {time_text(event.at)}  {event.kind:<24} {step:>3}  "
        content = _text(event) or _asked(event) or event.message or event.payload
        console.print(Text(start).append_text(one_line(content)), no_wrap=True, overflow="ellipsis")

    async def work() -> None:
        async with chosen_sessions(store, url) as opened:
            session = await opened.session(session_id)
            if session.cleaned_at is not None:
                cleaned = f"The events of session {session_id} were deleted when it was cleaned, at {time_text(session.cleaned_at)}."
                echo(f"{cleaned} Bring them back with `holdfast sessions rehydrate {session_id}`.", err=True)
                return
            if follow:
                async for event in opened.watch(session_id, after=after):
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
        raise typer.Exit(130) from None


def interrupt(
    session_id: SessionId, store: StoreUrl = None, url: ServerUrl = None, as_json: AsJson = False
) -> None:
    """Stop what a session is doing. The next message goes on from there."""

    async def work() -> Submission:
        async with chosen_sessions(store, url) as opened:
            return await opened.submit(session_id, "interrupt", lane="control")

    print_sent(asyncio.run(work()), as_json=as_json)


def approve(
    session_id: SessionId,
    call_id: Annotated[
        str | None, typer.Argument(help="Which call; needed if several are asked for.")
    ] = None,
    store: StoreUrl = None,
    url: ServerUrl = None,
    deny: Annotated[bool, typer.Option("--deny", help="Say no instead.")] = False,
    feedback: Annotated[str | None, typer.Option(help="Tell the model why not.")] = None,
    arguments: Annotated[str | None, typer.Option(help="Run it with these instead, as JSON.")] = None,
    as_json: AsJson = False,
) -> None:
    """Answer what a session asks. The answer is bound to the exact arguments that are shown by `sessions show`."""
    try:
        edited = None if arguments is None else json.loads(arguments)
    except ValueError as error:
        raise BadInput(problem=f"--arguments is not JSON: {error}") from error

    async def work() -> tuple[Submission, dict[str, Any]]:
        async with chosen_sessions(store, url) as opened:
            questions = await asked(opened, session_id)
            chosen = [q for q in questions if call_id is None or q["call_id"] == call_id]
            if len(chosen) != 1:
                calls = ", ".join(str(q["call_id"]) for q in questions)
                problem = f"name one call; asked for are: {calls}" if calls else f"{session_id} asks nothing"
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
    """Print the id of what was submitted, or all of it as JSON."""
    if as_json:
        print_json({"submission": asdict(submission), **more})
    else:
        echo(submission.id)
