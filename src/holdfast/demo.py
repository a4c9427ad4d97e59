"""The agent of `holdfast demo`: scripted, so it needs no key and no network; its tools are real.

It prepares a release: it thinks, plans, measures slowly, appends a line to a file, and asks a person before it deploys.
"""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelRequest, ToolCallPart, ToolReturnPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, DeltaThinkingPart, DeltaToolCall, FunctionModel

LEDGER: Final = "DEMO_LEDGER"
"""The variable that names the file which the tool `note` appends to."""
_PARTS: Final = ("tests", "types", "docs")
_DONE: Final = "one line is in"
_PLAN: Final = """\
I will prepare a release:

1. measure three parts, slowly;
2. write **one line** into a file, which must happen exactly once;
3. ask you before anything is deployed.

Close this tab or kill the worker while I do so, and come back.
"""
_HELLO: Final = """\
I am a scripted agent: no network, no key, real tools. Say `prepare a release`, then try one of these:

- **close this tab** and open it again: the turn has gone on without you;
- **kill the worker** with the command that `holdfast demo` printed: another one goes on, and nothing is done twice;
- **interrupt** me, steer me, or fork the session at a step of its timeline.

```python
while True:
    come_back()  # whatever was said is still here
```
"""


async def respond(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
    """Say the next thing; what was done so far in this turn decides which."""
    del info
    last = max(n for n, message in enumerate(messages) if _prompt(message) is not None)
    said = str(_prompt(messages[last]))
    turn = messages[last:]
    called = [part.tool_name for message in turn for part in message.parts if isinstance(part, ToolCallPart)]
    if "release" not in said.lower():
        async for word in _slowly(_HELLO):
            yield word
        return
    measured = called.count("measure")
    if measured < len(_PARTS):
        if not called:
            thought = "The person wants a release. Measuring is harmless, writing is not, and deploying needs a yes."
            async for word in _slowly(thought):
                yield {0: DeltaThinkingPart(content=word)}
            async for word in _slowly(_PLAN):
                yield word
        yield _call(messages, "measure", {"part": _PARTS[measured]})
    elif "note" not in called:
        yield _call(messages, "note", {"line": "released with care"})
    elif "deploy" not in called:
        async for word in _slowly(f"{_noted(turn)} May I deploy?"):
            yield word
        yield _call(messages, "deploy", {"target": "staging", "version": "1.0"})
    else:
        async for word in _slowly(_report(turn)):
            yield word


def _noted(turn: list[ModelMessage]) -> str:
    results = [part for message in turn for part in message.parts if isinstance(part, ToolReturnPart)]
    if any(part.tool_name == "note" and _DONE in str(part.content) for part in results):
        return "All is measured and written down."
    return "I was cut off while I wrote my line, and did **not** write it again: look into the file."


def _report(turn: list[ModelMessage]) -> str:
    results = [part for message in turn for part in message.parts if isinstance(part, ToolReturnPart)]
    rows = "\n".join(f"| {part.tool_name} | {part.model_response_str()} |" for part in results)
    return f"Here is what came of it:\n\n| tool | result |\n|---|---|\n{rows}\n\nThat is **all**."


async def _slowly(text: str) -> AsyncIterator[str]:
    for word in text.split(" "):
        await asyncio.sleep(0.03)
        yield f"{word} "


def _call(messages: list[ModelMessage], tool: str, arguments: dict[str, str]) -> dict[int, DeltaToolCall]:
    call_id = f"{tool}-{len(messages)}"
    return {1: DeltaToolCall(name=tool, json_args=json.dumps(arguments), tool_call_id=call_id)}


def _prompt(message: ModelMessage) -> Any:
    if not isinstance(message, ModelRequest):
        return None
    said = [part.content for part in message.parts if isinstance(part, UserPromptPart)]
    return said[-1] if said else None  # one that was interrupted may stand before it


agent: Agent[None, str] = Agent(FunctionModel(stream_function=respond), name="demo")


@agent.tool_plain(metadata={"recovery": "retry"})
async def measure(part: str) -> str:
    """Measure a part of the release. Harmless, so it is run again if its outcome is unknown."""
    await asyncio.sleep(2)
    return f"{part}: fine"


def _append(path: Path, line: str) -> None:
    with path.open("a", encoding="utf-8") as ledger:
        ledger.write(f"{line}\n")


@agent.tool_plain
async def note(line: str) -> str:
    """Append a line to the ledger file, then take a while: if we are killed now, nobody knows whether it is there."""
    path = Path(os.environ.get(LEDGER, "holdfast-demo.txt"))
    await asyncio.to_thread(_append, path, line)
    await asyncio.sleep(4)
    return f"{_DONE} {path.name}"


@agent.tool_plain(requires_approval=True, metadata={"editable": True})
async def deploy(target: str, version: str) -> str:
    """Deploy, once a person has said yes."""
    await asyncio.sleep(1)
    return f"{version} is on {target}"
