"""Processes that mirror transcripts as the Claude Agent SDK does: `python -m tests.frameworks.claude_children PATH SEED`.

The command line program of the SDK needs a network. So frames like those that it prints go into the SDK's own batcher, which passes
them to the store.
"""

import asyncio
import json
import sys
from collections.abc import Callable
from typing import Any

from claude_agent_sdk import SessionKey
from claude_agent_sdk._internal.transcript_mirror_batcher import TranscriptMirrorBatcher

from holdfast.frameworks.claude import HoldfastSessionStore
from tests.frameworks.drill import kill_and_continue

KILLS = 20
MAIN: SessionKey = {"project_key": "project", "session_id": "session"}
SUBAGENT: SessionKey = {**MAIN, "subpath": "subagents/agent-1"}
PROJECTS = "/projects"


def main_entries(number: int) -> list[Any]:
    """Return what a turn adds to the main transcript. Titles have no uuid."""
    return [
        {"type": "user", "uuid": f"user-{number}", "message": {"content": f"question {number}"}},
        {"type": "ai-title", "aiTitle": f"title {number}"},
        {"type": "assistant", "uuid": f"assistant-{number}", "message": {"content": f"answer {number}"}},
    ]


def subagent_entries(number: int) -> list[Any]:
    return [{"type": "assistant", "uuid": f"subagent-{number}", "text": f"done {number}"}]


async def mirror(path: str, acknowledge: Callable[[str], None], *, is_last: bool) -> None:
    """Send what the last process may not have sent completely once more, and continue: one turn if this is the last process."""
    store = HoldfastSessionStore(path)
    failures: list[str] = []

    async def on_error(key: SessionKey | None, problem: str) -> None:
        failures.append(f"{key}: {problem}")

    batcher = TranscriptMirrorBatcher(store, PROJECTS, on_error)

    async def send(number: int, *, again: bool = False) -> None:
        for entry in main_entries(number):
            if not again or "uuid" in entry:
                batcher.enqueue(f"{PROJECTS}/project/session.jsonl", [entry])
        batcher.enqueue(f"{PROJECTS}/project/session/subagents/agent-1.jsonl", subagent_entries(number))
        await batcher.flush()
        assert not failures, failures

    number = len(await store.load(MAIN) or []) // 3
    acknowledge(f"found {number}")
    if number:
        await send(number, again=True)
    while True:
        number += 1
        await send(number)
        acknowledge(f"did {number}")
        if is_last:
            store.close()
            return


def main() -> None:
    path, seed = sys.argv[1:]

    def work(acknowledge: Callable[[str], None], *, is_last: bool) -> None:
        asyncio.run(mirror(path, acknowledge, is_last=is_last))

    print(json.dumps(kill_and_continue(work, kills=KILLS, seed=int(seed))))


if __name__ == "__main__":
    main()
