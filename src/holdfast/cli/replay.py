"""`holdfast replay`: check a recorded session against today's code of its agent."""

import asyncio
import difflib
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from holdfast.cli.exit_codes import ExitCode
from holdfast.cli.options import AsJson, MediaUrl, ServerUrl, StoreUrl, connected
from holdfast.cli.terminal import new_console, one_line, print_json
from holdfast.errors import BadInput

if TYPE_CHECKING:
    from holdfast.replay import Difference, ReplayReport

_LINES = 40
"""How many lines of a diff are printed; --json has all."""
_SENTENCES = {
    "model": "another model",
    "settings": "a setting of the model",
    "instructions": "the instructions",
    "message": "a message",
    "tool_added": "a new tool",
    "tool_removed": "a tool that is gone",
    "tool_changed": "a tool",
    "output": "the output type",
    "call_rejected": "a recorded call would be rejected",
    "call_waits": "a recorded call would wait for an answer",
    "output_rejected": "the recorded output would be rejected",
    "ends_early": "the run would end earlier",
    "fails": "the run would fail",
}


def replay(
    session_id: Annotated[str | None, typer.Argument(help="Id of the session.")] = None,
    app: Annotated[
        str, typer.Option("--agent", metavar="MODULE:ATTRIBUTE", help="The agent, or a list of agents.")
    ] = "",
    file: Annotated[
        Path | None, typer.Option("--file", metavar="FILE", help="An archive file, instead of a session.")
    ] = None,
    run: Annotated[str | None, typer.Option(metavar="RUN", help="Check only this run.")] = None,
    store: StoreUrl = None,
    url: ServerUrl = None,
    media: MediaUrl = None,
    as_json: AsJson = False,
) -> None:
    """Check a session against today's code of its agent.

    Compares each model request that the code would make with the recorded one, and prints the differences. The model and the tools are
    answered from the record: no model is asked, no tool runs, and nothing is written to the session. Instructions, validators and other
    code of the agent do run. Exits with 1 if there is a difference.

    Examples:
        holdfast replay s1 --agent app:agent
        holdfast replay --file talk.ndjson --agent app:agent --json
    """
    if not app:
        raise BadInput(problem="name the agent with --agent module:attribute")
    if (session_id is None) == (file is None):
        raise BadInput(problem="pass the id of a session, or --file")

    from holdfast.replay import replay as check
    from holdfast.runtime.agents import load_agents

    agents = [*load_agents(app).values()]

    async def work() -> "ReplayReport":
        if file is not None:
            return await check(file, agents, run_id=run)
        async with connected(store, url, media) as client:
            return await check(await client.session(str(session_id)), agents, run_id=run)

    report = asyncio.run(work())
    if as_json:
        print_json({**asdict(report), "same": report.is_same})
    else:
        _print(report)
    if not report.is_same:
        raise typer.Exit(ExitCode.FAILED)


def _print(report: "ReplayReport") -> None:
    console = new_console()
    for difference in report.differences:
        console.print(_title(difference), soft_wrap=True)
        for line in _diff(difference):
            console.print(one_line(line), soft_wrap=True, style=_style(line))
    for text in report.unchecked:
        console.print(one_line(f"not checked: {text}"), soft_wrap=True)
    for text in report.touched:
        console.print(one_line(f"the code opened: {text}"), soft_wrap=True)
    found = len(report.differences)
    result = "no difference" if report.is_same else f"{found} difference{'s' if found > 1 else ''}"
    console.print(f"{report.requests} model requests in {report.runs} runs: {result}")


def _title(difference: "Difference") -> Text:
    name = f" ({difference.name})" if difference.name else ""
    return one_line(f"{_SENTENCES[difference.kind]}{name}, run {difference.run_id}, step {difference.step}")


def _diff(difference: "Difference") -> list[str]:
    """Return the changed lines."""
    before, after = _lines(difference.before), _lines(difference.after)
    changed = [f"  {line}" for line in difflib.ndiff(before, after) if line.startswith(("- ", "+ "))]
    left_out = len(changed) - _LINES
    return changed if left_out <= 0 else [*changed[:_LINES], f"… {left_out} more lines"]


def _lines(value: Any) -> list[str]:
    if value is None:
        return []
    text = value if isinstance(value, str) else json.dumps(value, indent=1, ensure_ascii=False)
    return text.splitlines()


def _style(line: str) -> str:
    return {"-": "red", "+": "green"}.get(line[:1], "")
