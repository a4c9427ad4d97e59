"""`holdfast runs`: show recorded runs, and resume or fork them. Only `resume` and `fork` change the store."""

import asyncio
import json
import sys
from collections import Counter
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.text import Text
from rich.tree import Tree

from holdfast.api.models import CheckpointInfo, EffectInfo, EventInfo, Items, RunInfo
from holdfast.cli.events import print_event
from holdfast.cli.exit_codes import ExitCode
from holdfast.cli.help import Commands
from holdfast.cli.options import (
    AsJson,
    Cursor,
    Limit,
    ServerUrl,
    StoreUrl,
    chosen_store,
    connected,
    unended_calls,
)
from holdfast.cli.terminal import (
    TextTable,
    coloured,
    duration,
    echo,
    error_text,
    new_console,
    one_line,
    plain,
    print_json,
    record,
    time_text,
)
from holdfast.errors import BadInput, HoldfastError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydantic_ai import Agent

    from holdfast.client import Client

app = Commands("Show, resume and fork recorded runs.")
T = TypeVar("T")
RunId = Annotated[str, typer.Argument(help="Id of the run.")]

_DEEPEST = 50


@app.command("list")
def list_(
    session_id: Annotated[str | None, typer.Argument(help="Id of a session. Default: all sessions.")] = None,
    interrupted: Annotated[
        bool, typer.Option("--interrupted", help="Only interrupted runs, which can be resumed.")
    ] = False,
    unresolved: Annotated[
        bool, typer.Option("--unresolved", help="Only runs with a tool call whose outcome is unknown.")
    ] = False,
    parent: Annotated[str | None, typer.Option(metavar="RUN", help="Only delegate runs of this run.")] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
    store: StoreUrl = None,
    url: ServerUrl = None,
    as_json: AsJson = False,
) -> None:
    """List runs, newest first.

    Examples:
        holdfast runs list s1
        holdfast runs list --interrupted --limit 10
    """

    async def work() -> Items[RunInfo]:
        async with connected(store, url) as client:
            given = {"session_id": session_id, "parent_id": parent, "limit": limit, "cursor": cursor}
            params = {**given, "interrupted": interrupted, "unresolved": unresolved}
            page = await client.transport.call(Items[RunInfo], "GET", "/api/runs", params=params)
            if session_id is not None and not page.items:
                await client.session(session_id)  # raises an error if it does not exist
            return await _without_running(client, page) if unresolved else page

    page = asyncio.run(work())
    if as_json:
        print_json({"runs": [record(run) for run in page.items], "next_cursor": page.next_cursor})
        return
    of_all = ["session"] if session_id is None else []
    table = TextTable("id", *of_all, "status", "agent", "error", "started", "duration", "parent")
    for run in page.items:
        table.add_row(
            one_line(run.id),
            *([one_line(run.session_id)] if of_all else []),
            coloured(run.status),
            one_line(run.agent),
            one_line(run.error),
            time_text(run.started_at),
            duration(run.started_at, run.ended_at),
            one_line(run.parent_id),
        )
    console = new_console()
    console.print(table)
    if page.next_cursor is not None:
        console.print(f"More results: --cursor {page.next_cursor}", soft_wrap=True)


@app.command()
def show(run_id: RunId, store: StoreUrl = None, url: ServerUrl = None, as_json: AsJson = False) -> None:
    """Show a run, its checkpoints and the state of its tool calls.

    Examples:
        holdfast runs show run-1
    """

    async def work() -> tuple[RunInfo, list[EffectInfo], list[CheckpointInfo], list[CheckpointInfo]]:
        async with connected(store, url) as client:
            handle = client.run(run_id)
            run = await handle.info()
            effects = [effect async for effect in handle.effects()]
            places = [
                [await anext(checkpoints, None)]
                for checkpoints in (handle.checkpoints(), handle.checkpoints(kind="settled"))
            ]
            latest, settled = ([each for each in found if each] for found in places)
            return run, effects, latest, settled

    run, effects, latest, settled = asyncio.run(work())
    unresolved = [effect for effect in effects if effect.state == "started"]
    states = Counter(effect.state for effect in effects)
    counts = {state: states[state] for state in ("started", "completed", "failed")}
    if as_json:
        print_json(
            {
                "run": record(run),
                "latest": record(latest[0]) if latest else None,
                "settled": record(settled[0]) if settled else None,
                "effects": counts,
                "unresolved": [record(effect) for effect in unresolved],
            }
        )
        return
    lines = [
        ("run", one_line(run.id)),
        ("session", one_line(run.session_id)),
        ("agent", one_line(run.agent)),
        ("status", coloured(run.status)),
        ("error", one_line(run.error)),
        ("parent", one_line(run.parent_id)),
        ("started", time_text(run.started_at)),
        ("duration", duration(run.started_at, run.ended_at)),
        ("latest", _place(latest)),
        ("settled", _place(settled)),
        ("effects", Text(", ".join(f"{count} {state}" for state, count in counts.items()))),
        *(("unresolved", _call(effect)) for effect in unresolved),
    ]
    console = new_console()
    for name, value in lines:
        console.print(Text(f"{name:<12}").append_text(value), soft_wrap=True)


@app.command()
def tree(run_id: RunId, store: StoreUrl = None, url: ServerUrl = None, as_json: AsJson = False) -> None:
    """Show a run and its delegate runs as a tree.

    Examples:
        holdfast runs tree run-1
    """

    async def work() -> _Node:
        async with connected(store, url) as client:
            return await _grow(client, await client.run(run_id).info(), set(), _DEEPEST)

    root = asyncio.run(work())
    if as_json:
        print_json(_nested(root))
    else:
        new_console().print(_branch(root, Tree(_label(root.run))))


@app.command()
def events(run_id: RunId, store: StoreUrl = None, url: ServerUrl = None, as_json: AsJson = False) -> None:
    """Print the events of a run.

    Long lines are cut at the width of the terminal. With --json, events are complete.

    Examples:
        holdfast runs events run-1
        holdfast runs events run-1 --json
    """

    async def work() -> tuple[str, list[EventInfo]]:
        async with connected(store, url) as client:
            handle = client.run(run_id)
            return (await handle.info()).session_id, [event async for event in handle.journal()]

    session_id, results = asyncio.run(work())
    if as_json:
        print_json({"events": [{"session_id": session_id, **record(event)} for event in results]})
        return
    console = new_console()
    for event in results:
        print_event(event, console)


@app.command()
def effects(
    run_id: RunId,
    unresolved: Annotated[
        bool, typer.Option("--unresolved", help="Only calls whose outcome is unknown.")
    ] = False,
    store: StoreUrl = None,
    url: ServerUrl = None,
    as_json: AsJson = False,
) -> None:
    """List the tool calls of a run and their outcomes.

    Examples:
        holdfast runs effects run-1 --unresolved
    """

    async def work() -> list[EffectInfo]:
        async with connected(store, url) as client:
            return [effect async for effect in client.run(run_id).effects(unresolved=unresolved)]

    result = asyncio.run(work())
    if as_json:
        print_json({"effects": [record(effect) for effect in result]})
        return
    table = TextTable("call", "tool", "state", "error", "summary", "step", "attempts", "started", "duration")
    undone = {step for effect in result if effect.state == "completed" and (step := effect.undoes)}
    for effect in result:
        table.add_row(
            one_line(effect.call_id),
            one_line(effect.tool),
            coloured("undone" if effect.call_id in undone else effect.state),
            one_line(effect.error),
            one_line(effect.summary),
            "" if effect.step is None else str(effect.step),
            str(effect.attempts),
            time_text(effect.started_at),
            duration(effect.started_at, effect.ended_at if effect.attempts else None),
        )
    new_console().print(table)


@app.command()
def resume(
    app: Annotated[str, typer.Argument(help="The agent, as module:attribute.")],
    run_id: RunId,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Resume a failed or interrupted run and print its output.

    Exits with 1 if the run fails again.

    Examples:
        holdfast runs resume bot:agent run-1
    """
    from holdfast.record import resume as resume_run

    async def work(agent: "Agent[Any, Any]") -> tuple[str, Any] | str:
        async with chosen_store(store) as opened:
            session_id = (await opened.run(run_id)).session_id
            try:
                result = await resume_run(agent, opened, run_id)
            except HoldfastError:
                raise
            except Exception as error:  # noqa: BLE001 - a boundary: any error of the agent's code ends the run
                return f"The run failed: {error_text(error)}. See `holdfast runs list {session_id}`."
            return result.run_id, result.output

    with redirect_stdout(sys.stderr):  # prints of the agent's code are not the output
        ended = asyncio.run(work(_load_agent(app)))
    if isinstance(ended, str):
        if as_json:
            print_json({"error": {"code": "run_failed", "message": ended}})
        echo(f"error: {ended}", err=True)
        raise typer.Exit(ExitCode.FAILED)
    new_run, output = ended
    if as_json:
        print_json({"run_id": new_run, "output": output})
    else:
        text = output if isinstance(output, str) else json.dumps(plain(output), indent=2)
        echo(text)


@app.command()
def fork(
    checkpoint_id: Annotated[
        str, typer.Argument(help="Id of the checkpoint. `holdfast runs show` prints it.")
    ],
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Copy the history of a checkpoint into a new session.

    Prints the id of the new session. Needs no worker.

    Examples:
        holdfast runs fork 019a8f4c-77aa-7c1e-9d3f-2b6f0a1c5e77
    """
    from holdfast.record import fork as fork_session

    async def work() -> str:
        async with chosen_store(store) as opened:
            return await fork_session(opened, await opened.checkpoint(checkpoint_id))

    session_id = asyncio.run(work())
    if as_json:
        print_json({"session_id": session_id})
    else:
        echo(session_id)


async def _without_running(client: "Client", page: Items[RunInfo]) -> Items[RunInfo]:
    """Leave out the runs whose open calls are all running again."""
    running = {session.id: session async for session in client.sessions(status="running")}
    listed: list[RunInfo] = []
    for run in page.items:
        if run.session_id in running:
            _, cut_off = await unended_calls(client, running[run.session_id])
            if not any(effect.run_id == run.id for effect in cut_off):
                continue
        listed.append(run)
    return Items(items=listed, next_cursor=page.next_cursor)


@dataclass(slots=True)
class _Node:
    run: RunInfo
    delegates: "list[_Node]" = field(default_factory=list["_Node"])
    truncated: bool = False  # some delegates below it are left out


async def _grow(client: "Client", run: RunInfo, seen: set[tuple[str, str]], depth: int) -> _Node:
    """Return a run with its delegate runs, each run once, even if the parents form a cycle."""
    node = _Node(run)
    seen.add((run.session_id, run.id))
    async for delegate in client.run(run.id).delegates():
        if depth == 0 or (delegate.session_id, delegate.id) in seen:
            node.truncated = True
        else:
            node.delegates.append(await _grow(client, delegate, seen, depth - 1))
    return node


def _nested(node: _Node) -> dict[str, object]:
    delegates = [_nested(delegate) for delegate in node.delegates]
    return {**record(node.run), "delegates": delegates, "truncated": node.truncated}


def _branch(node: _Node, tree: Tree) -> Tree:
    for delegate in node.delegates:
        _branch(delegate, tree.add(_label(delegate.run)))
    if node.truncated:
        tree.add("…")
    return tree


def _label(run: RunInfo) -> Text:
    parts = [
        one_line(run.id),
        one_line(run.agent),
        coloured(run.status),
        duration(run.started_at, run.ended_at),
    ]
    return Text(" ").join([part for part in [*parts, one_line(run.error)] if part])


def _load_agent(app: str) -> "Agent[Any, Any]":
    """Import the agent that `module:attribute` names."""
    from pydantic_ai import Agent

    from holdfast.runtime.agents import load_object

    agent = load_object(app)
    if not isinstance(agent, Agent):
        kind = type(agent).__name__
        raise BadInput(problem=f"{app} is of type {kind}, not a pydantic_ai.Agent")
    return agent  # pyright: ignore[reportUnknownVariableType]


def _place(found: "Sequence[CheckpointInfo]") -> Text:
    if not found:
        return Text("none")
    checkpoint = found[0]
    return Text(f"{checkpoint.id} {checkpoint.kind}, {checkpoint.length} messages, seq {checkpoint.seq}")


def _call(effect: EffectInfo) -> Text:
    parts: Sequence[str | None] = (
        f"{effect.tool} {effect.call_id}",
        None if effect.step is None else f"step {effect.step}",
        f"started {time_text(effect.started_at)}",
        effect.summary,
    )
    return one_line(", ".join(part for part in parts if part))
