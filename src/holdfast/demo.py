"""The agents of `holdfast demo`. They are scripted, so they need no API key and no network; their tools are real.

The first one prepares a release: it plans, runs shell commands in a scratch folder, appends a line to a file, calls a
second agent, draws a picture, and asks a person before it deploys. Set DEMO_MODEL to run it on a real model.
"""

import asyncio
import json
import os
import re
import struct
import zlib
from collections.abc import AsyncIterator
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
from holdfast.shell import ShellService
from holdfast.store import Store, open_store

FOLDER: Final = "DEMO_FOLDER"
"""The variable that names the demo's folder, with its store, its scratch folder and its ledger file."""
MODEL: Final = "DEMO_MODEL"
"""The variable that names a Pydantic AI model to use instead of the script."""
LEDGER: Final = "ledger.txt"
SCRATCH: Final = "scratch"
_DONE: Final = "one line is in"
_PLAN: Final = """\
I will prepare a release:

1. write its notes and **check** them, with real shell commands in a scratch folder;
2. write **one line** into a file, which must happen exactly once;
3. ask a **second agent** for a review, and draw a picture;
4. ask **you** before anything is deployed.

Close this tab or kill the worker while I work, then come back.
"""
_HELLO: Final = """\
I am a scripted agent: no network, no API key, real tools. Type `prepare a release`, then try one of these:

- **close this tab** and open it again: the turn has continued without you;
- **kill the worker** with the button below: another one continues, and nothing is done twice;
- **export, clean, restore**: in the view *Retention*.

```python
while True:
        come_back()  # the whole conversation is still here
```
"""
_NOTES: Final = "printf '# Release 1.0\\n\\n- sessions that hold\\n- nothing is done twice\\n' > NOTES.md && wc -l NOTES.md && ls"
_CHECK: Final = "for part in notes links spelling licence size; do echo \"checking $part\"; sleep 0.6; done; echo 'all is fine'"
_STEPS: Final[tuple[tuple[str, dict[str, str]], ...]] = (
    ("shell", {"command": _NOTES}),
    ("shell", {"command": _CHECK}),
    ("note", {"line": "released with care"}),
    ("review", {"what": "NOTES.md"}),
    ("draw", {}),
    ("deploy", {"target": "staging", "version": "1.0"}),
)
_TASK: Final = """\
You prepare software releases, for show. Make a short plan. Write notes with `shell` in the scratch folder and check them
slowly, with output in between. Then call `note` once, `review`, `draw`, and `deploy`, which asks a person. Never call a
tool again whose outcome is unknown. End with a table of the results.
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
    if "release" not in prompt.lower():
        async for word in _slowly(_HELLO):
            yield word
        return
    if not called:
        thought = (
            "The person wants a release. Checking is harmless, writing is not, and deploying needs a yes."
        )
        async for word in _slowly(thought):
            yield {0: DeltaThinkingPart(content=word)}
        async for word in _slowly(_PLAN):
            yield word
    if len(called) < len(_STEPS):
        tool, arguments = _STEPS[len(called)]
        if tool == "deploy":
            async for word in _slowly(f"{_noted(turn)} May I deploy?"):
                yield word
        call_id = f"{tool}-{len(messages)}"
        yield {1: DeltaToolCall(name=tool, json_args=json.dumps(arguments), tool_call_id=call_id)}
        return
    async for word in _slowly(_report(turn)):
        yield word


async def _summarize(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Summarize the conversation for a compaction."""
    del info
    prompts = [str(prompt) for message in messages if (prompt := _prompt(message)) is not None]
    return ModelResponse(parts=[TextPart(f"The person asked: {'; '.join(prompts[:-1]) or 'nothing yet'}.")])


def _results(turn: list[ModelMessage]) -> list[ToolReturnPart]:
    return [part for message in turn for part in message.parts if isinstance(part, ToolReturnPart)]


def _noted(turn: list[ModelMessage]) -> str:
    if any(part.tool_name == "note" and _DONE in str(part.content) for part in _results(turn)):
        return "Everything is checked and written."
    return "I was interrupted while I wrote my line, and did **not** write it again: check the file."


def _report(turn: list[ModelMessage]) -> str:
    rows = "\n".join(f"| {part.tool_name} | {_brief(part)} |" for part in _results(turn))
    return f"Here are the results:\n\n| tool | result |\n|---|---|\n{rows}\n\nThat is **all**."


def _brief(part: ToolReturnPart) -> str:
    if part.tool_name == "shell" and (code := re.search(r"'exit_code': (-?\d+)", str(part.content))):
        return f"ended with {code[1]}"
    if part.tool_name == "draw":
        return "a picture"
    return " ".join(str(part.content).split())[:90].replace("|", "/")


def _verdict(messages: list[ModelMessage]) -> str:
    prompt = next((str(result) for message in messages if (result := _prompt(message)) is not None), "")
    return f"I have read {len(prompt.split())} words. They are short and true. **Release it.**"


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
    instructions="You review release notes in two sentences." if _model else None,
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
    with path.open("a", encoding="utf-8") as ledger:
        ledger.write(f"{line}\n")


@agent.tool
async def note(ctx: RunContext[Any], line: str) -> str:
    """Append a line to the ledger file, then wait. If the worker is killed during the wait, the outcome is unknown."""
    path = folder() / LEDGER
    await asyncio.to_thread(_append, path, line)
    await annotate_effect(ctx, summary=f"appended {line!r} to {path.name}")
    await asyncio.sleep(4)
    return f"{_DONE} {path.name}"


@agent.tool(metadata={"recovery": "retry"})
async def review(ctx: RunContext[Any], what: str) -> str:
    """Have the second agent review a file, in a session of its own. It is harmless, so it is retried if its outcome is unknown."""
    text = await asyncio.to_thread(_read, folder() / SCRATCH / Path(what).name)
    async with open_demo() as store:
        caller = await store.session(str(ctx.conversation_id))
        session = await store.create_session(
            agent="reviewer", owner=caller.owner, title=f"Review of {what}", id=new_id()
        )
        done = await reviewer.run(
            f"Review this:\n\n{text}",
            conversation_id=session.id,
            capabilities=[Holdfast(store, agent="reviewer", owner=caller.owner)],
        )
    return done.output


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else "(nothing)"


@agent.tool_plain(metadata={"recovery": "retry"})
async def draw() -> list[str | BinaryImage]:
    """Draw a picture of the release. It is large enough to be stored as media."""
    await asyncio.sleep(0.5)
    return [
        "The parts of the release, by size.",
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
    """Deploy, once a person has approved."""
    await asyncio.sleep(1)
    return f"{version} is on {target}"
