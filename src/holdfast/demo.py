"""The agents of `holdfast demo`. They are scripted, so they need no API key and no network; their tools are real.

The first one prepares a release: it plans, runs shell commands in a scratch folder, appends a line to a log, calls a
second agent, draws a chart, and asks a person for approval before it deploys. In the second act it sleeps, wakes up and asks a
question that expires. Set DEMO_MODEL to run it on a real model.
"""

import asyncio
import json
import os
import re
import struct
import zlib
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from pydantic_ai import Agent, BinaryImage, RunContext
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, DeltaThinkingPart, DeltaToolCall, FunctionModel

from holdfast.ids import new_id
from holdfast.record import Holdfast, annotate_effect
from holdfast.record.wait_requests import sleep
from holdfast.shell import ShellService
from holdfast.store import Store, open_store

FOLDER: Final = "DEMO_FOLDER"
"""The variable that names the demo's folder, with its store, its scratch folder and its release log."""
MODEL: Final = "DEMO_MODEL"
"""The variable that names a Pydantic AI model to use instead of the script."""
RELEASE_LOG: Final = "releases.log"
SCRATCH: Final = "scratch"
_DONE: Final = "added one line to"
_PLAN: Final = """\
Sure, let's prepare a release. Here is my plan:

1. Write the release notes and **check** them. These are real shell commands in a scratch folder.
2. Add **one line** to the release log. This must happen exactly once.
3. Ask a **second agent** to review the notes, and draw a chart.
4. Ask **you** for approval before I deploy anything.

While I work, try closing this tab or killing the worker. When you come back, I will still be on it.
"""
_PLAN_FOR_LATER: Final = """\
I will publish the notes later. First I **sleep** for a few seconds: meanwhile this session has no process, and any worker wakes it up. Then I ask
**you**. If nobody answers in time, I do not publish.
"""
_HELLO: Final = """\
Hi! I am a scripted agent: I need no network and no API key, but my tools are real. Type `prepare a release`, or `publish later`, then try these:

- **Close this tab** and open it again. The turn continues without you.
- **Kill the worker** with the button below. Another worker takes over and repeats nothing.
- **Export, clean and restore** this session in the *Retention* tab.

```python
while True:
        come_back()  # the whole conversation is still here
```
"""
_NOTES: Final = "printf '# Release 1.0\\n\\n- Sessions survive crashes\\n- Tool calls never run twice by accident\\n' > NOTES.md && wc -l NOTES.md && ls"
_CHECK: Final = "for part in notes links spelling licence size; do echo \"checking $part\"; sleep 0.6; done; echo 'all checks passed'"
_STEPS: Final[tuple[tuple[str, dict[str, str]], ...]] = (
    ("shell", {"command": _NOTES}),
    ("shell", {"command": _CHECK}),
    ("note", {"line": "release 1.0"}),
    ("review", {"file": "NOTES.md"}),
    ("draw", {}),
    ("deploy", {"target": "staging", "version": "1.0"}),
)
_STEPS_FOR_LATER: Final[tuple[tuple[str, dict[str, Any]], ...]] = (
    ("rest", {"seconds": 8}),
    ("publish", {"file": "NOTES.md"}),
)
_TASK: Final = """\
You prepare a software release, as a demonstration. Start with a short plan. Use `shell` to write release notes in the scratch
folder, then to check them slowly, with some output at each step. Then call `note` once, `review`, `draw` and `deploy`. A person
must approve `deploy`. Never repeat a tool call whose outcome is unknown. Finish with a table of the results.
If the user asks you to publish later, call `rest` with 8 seconds, then `publish`.
"""


def folder() -> Path:
    """Return the folder of the demo."""
    return Path(os.environ.get(FOLDER, "."))


def open_demo() -> Store:
    """Return the demo's store, to be opened."""
    return open_store(f"sqlite:///{folder() / 'demo.db'}")


async def respond(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
    """Stream the next response, which depends on the calls made so far in this turn."""
    del info
    last = max(n for n, message in enumerate(messages) if _prompt(message) is not None)
    prompt = str(_prompt(messages[last]))
    turn = messages[last:]
    called = [part for message in turn for part in message.parts if isinstance(part, ToolCallPart)]
    later = "later" in prompt.lower()
    if not later and "release" not in prompt.lower():
        async for word in _slowly(_HELLO):
            yield word
        return
    if not called and not later:
        thought = "The user wants a release. Checks are safe to repeat, the log entry is not, and a deployment needs approval."
        async for word in _slowly(thought):
            yield {0: DeltaThinkingPart(content=word)}
    if not called:
        async for word in _slowly(_PLAN_FOR_LATER if later else _PLAN):
            yield word
    steps = _STEPS_FOR_LATER if later else _STEPS
    if len(called) < len(steps):
        tool, arguments = steps[len(called)]
        if tool == "deploy":
            async for word in _slowly(f"{_noted(turn)} Shall I deploy?"):
                yield word
        call_id = f"{tool}-{len(messages)}"
        yield {1: DeltaToolCall(name=tool, json_args=json.dumps(arguments), tool_call_id=call_id)}
        return
    async for word in _slowly(_report(turn, "This turn" if later else "The release")):
        yield word


async def _summarize(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Summarize the conversation for a compaction."""
    del info
    prompts = [str(prompt) for message in messages if (prompt := _prompt(message)) is not None]
    return ModelResponse(
        parts=[TextPart(f"Messages from the user so far: {'; '.join(prompts[:-1]) or 'none'}.")]
    )


def _results(turn: list[ModelMessage]) -> list[ToolReturnPart]:
    return [part for message in turn for part in message.parts if isinstance(part, ToolReturnPart)]


def _noted(turn: list[ModelMessage]) -> str:
    if any(part.tool_name == "note" and _DONE in str(part.content) for part in _results(turn)):
        return "The checks passed, and the release log is up to date."
    return "I was interrupted while I wrote to the release log. I did **not** write to it again; please check the file."


def _report(turn: list[ModelMessage], what: str) -> str:
    rows = "\n".join(f"| {part.tool_name} | {_brief(part)} |" for part in _results(turn))
    return f"Done! Here are the results:\n\n| tool | result |\n|---|---|\n{rows}\n\n{what} is **complete**."


def _brief(part: ToolReturnPart) -> str:
    if part.tool_name == "shell" and (code := re.search(r"'exit_code': (-?\d+)", str(part.content))):
        return f"exit code {code[1]}"
    if part.tool_name == "draw":
        return "a chart"
    return " ".join(str(part.content).split())[:90].replace("|", "/")


def _verdict(messages: list[ModelMessage]) -> str:
    prompt = next((str(result) for message in messages if (result := _prompt(message)) is not None), "")
    return (
        f"I read the notes ({len(prompt.split())} words). They are short and accurate. **Ready to release.**"
    )


async def _review(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Approve the notes after a short delay."""
    del info
    await asyncio.sleep(1)
    return ModelResponse(parts=[TextPart(_verdict(messages))])


async def _review_aloud(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str]:
    """Approve the notes as a stream."""
    del info
    async for word in _slowly(_verdict(messages)):
        yield word


async def _slowly(text: str) -> AsyncIterator[str]:
    for word in text.split(" "):
        await asyncio.sleep(0.03)
        yield f"{word} "


def _prompt(message: ModelMessage) -> Any:
    if not isinstance(message, ModelRequest):
        return None
    prompts = [part.content for part in message.parts if isinstance(part, UserPromptPart)]
    return prompts[-1] if prompts else None  # an interrupted prompt may precede it


_model: Final = os.environ.get(MODEL)
agent: Agent[None, str] = Agent(
    _model or FunctionModel(_summarize, stream_function=respond),
    name="demo",
    instructions=_TASK if _model else None,
)
reviewer: Agent[None, str] = Agent(
    _model or FunctionModel(_review, stream_function=_review_aloud),
    name="reviewer",
    instructions="Review the release notes in two sentences." if _model else None,
)
agents: Final = [agent, reviewer]


@agent.tool
async def shell(ctx: RunContext[Any], command: str) -> dict[str, Any]:
    """Run a shell command in the scratch folder and record it. Its output is visible while it runs."""
    scratch = folder() / SCRATCH
    await asyncio.to_thread(scratch.mkdir, parents=True, exist_ok=True)
    async with open_demo() as store, ShellService(store, cwd=scratch) as service:
        started = await service.start(
            command, timeout=60, session_id=ctx.conversation_id, call_id=ctx.tool_call_id
        )
        result = await service.result(started.id)
    return {"exit_code": result.command.exit_code, "stdout": result.stdout, "stderr": result.stderr}


def _append(path: Path, line: str) -> None:
    with path.open("a", encoding="utf-8") as log:
        log.write(f"{line}\n")


@agent.tool
async def note(ctx: RunContext[Any], line: str) -> str:
    """Append a line to the release log, then wait. If the worker is killed during the wait, the outcome is unknown."""
    path = folder() / RELEASE_LOG
    await asyncio.to_thread(_append, path, line)
    await annotate_effect(ctx, summary=f"appended {line!r} to {path.name}")
    await asyncio.sleep(4)
    return f"{_DONE} {path.name}"


@agent.tool(metadata={"recovery": "retry"})
async def review(ctx: RunContext[Any], file: str) -> str:
    """Have the second agent review a file, in a session of its own. A review is safe to repeat, so it is retried if its outcome is unknown."""
    text = await asyncio.to_thread(_read, folder() / SCRATCH / Path(file).name)
    async with open_demo() as store:
        caller = await store.session(str(ctx.conversation_id))
        session = await store.create_session(
            agent="reviewer", owner=caller.owner, title=f"Review of {file}", id=new_id()
        )
        done = await reviewer.run(
            f"Review this:\n\n{text}",
            conversation_id=session.id,
            capabilities=[Holdfast(store, agent="reviewer", owner=caller.owner)],
        )
    return done.output


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else "(the file is empty)"


@agent.tool_plain(metadata={"recovery": "retry"})
async def draw() -> list[str | BinaryImage]:
    """Draw a chart of the release. The image is large enough to be stored as media."""
    await asyncio.sleep(0.5)
    return [
        "The size of each part of the release.",
        BinaryImage(_picture((3, 5, 8, 6, 9)), media_type="image/png"),
    ]


def _picture(values: tuple[int, ...], width: int = 420, height: int = 180) -> bytes:
    """Return a bar chart as a PNG, without an image library. It is transparent, to suit light and dark pages."""
    paper, ink, line = b"\0\0\0\0", b"\x1a\x9c\x90\xff", b"\x80\x90\x8c\x60"
    each = width // len(values)
    rows: list[bytes] = []
    for y in range(height):
        row = bytearray()
        for x in range(width):
            inside = each // 5 <= x % each < each * 4 // 5 and x // each < len(values)
            tall = inside and height - y <= values[min(x // each, len(values) - 1)] * (height - 20) // max(
                values
            )
            row += ink if tall else line if y % 40 == 0 else paper
        rows.append(b"\0" + bytes(row))

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0)
    body = zlib.compress(b"".join(rows), 0)  # uncompressed on purpose: large content becomes media
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


@agent.tool_plain(requires_approval=True, metadata={"editable": True})
async def deploy(target: str, version: str) -> str:
    """Deploy a version, after a person has approved it."""
    await asyncio.sleep(1)
    return f"Deployed version {version} to {target}."


@agent.tool_plain(metadata={"recovery": "steps"})
async def rest(seconds: float) -> str:
    """Sleep without a process. Any worker continues the turn at the time."""
    await sleep(seconds=seconds)
    return f"slept for {seconds:g} seconds"


@agent.tool_plain(
    requires_approval=True, metadata={"approval": {"deadline": timedelta(seconds=12), "default": "deny"}}
)
async def publish(file: str) -> str:
    """Publish a file, after a person has approved it in time."""
    await asyncio.sleep(1)
    return f"Published {file}."
