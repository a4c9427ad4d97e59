"""Runs a plain agent on a worker, kills the process at a chosen point, and continues in another one.

`python -m tests.promises.plain_agents URL FOLDER POLICY MODE [POINT …]` prints one line of JSON per point, as tests/promises/crash.py
does. Each process has a worker and a client that sends the message, answers the question, and steers the turn. The policy is that of all steps.
In the mode `settle`, a person then looks up what became of the steps whose outcome is unknown, and retries the turn that failed.
"""

import asyncio
import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pydantic_ai.messages import ModelMessage, TextPart, UserPromptPart

from holdfast import FunctionAgent, Retry, Turn, agent
from holdfast.questions import pending_approvals
from holdfast.record import Policy
from holdfast.record.ledger import is_cut_off
from holdfast.record.resume_point import find_resume_point
from holdfast.runtime.settling import settle_effect
from holdfast.store import Store, open_store
from holdfast.testing.agents import ledger
from holdfast.types import Submission
from tests.promises.crash import Points, drill, when_free
from tests.promises.step_tools import Effects, recorded_steps
from tests.runtime.agents import kinds, send, working


def make_agent(talk: str, log: Path, points: Points, policy: Policy) -> FunctionAgent:
    """Return an agent for one session only: several drills may share a database, and each has its own workers."""
    effects = Effects(log, points, policy)
    options = effects.options

    @agent(f"clerk of {talk}")
    async def clerk(turn: Turn) -> None:
        if turn.text == "hurry":  # the turn that it was meant for has ended without it
            await turn.answer("late")
            return
        done = [await turn.step("first", effects.act, "first", **options)]
        while not (heard := await turn.incoming()):
            await asyncio.sleep(0.01)
        points.here("heard")
        done += await asyncio.gather(
            turn.step("left", effects.act, "left", **options),
            turn.step("right", effects.act, "right", **options),
        )
        done.append(await turn.step("outer", effects.act_with_inner_step, "outer", **options))
        await turn.add(f"heard {', '.join(heard)}")
        if not await turn.ask("Pay?", done):
            await turn.answer("denied")
            return
        points.here("approved")
        await turn.add("approved")
        rule = Retry(on=OSError, backoff=0)
        done.append(await turn.step("flaky", effects.fail_once, "flaky", **options, retry=rule))
        done.append(await turn.step("last", effects.act, "last", **options))
        await turn.answer(f"{', '.join(heard)}: {', '.join(done)}")

    return clerk


async def talk_to(store: Store, session_id: str, points: Points) -> None:
    """Send the message, steer its turn, answer its question, and wait for the end. A second client continues where one was killed."""
    await store.create_session(agent=f"clerk of {session_id}", owner="you", id=session_id, exist_ok=True)
    await send(store, session_id, "go", idempotency_key="go")
    answered: set[str] = set()
    while {found.ended_at for found in await _submissions(store, session_id)} >= {None}:
        session = await store.session(session_id)
        if session.status == "running":
            await send(store, session_id, "hurry", idempotency_key="hurry", when_busy="steer")
        elif session.status == "waiting" and session.holder is None:
            await _answer(store, session_id, points, answered)
        await asyncio.sleep(0.02)


async def _answer(store: Store, session_id: str, points: Points, answered: set[str]) -> None:
    """Approve each call once: until a worker takes the answer, the session still waits, and the point must not depend on how long."""
    for call in await pending_approvals(store, session_id):
        if call["call_id"] in answered:
            continue
        answered.add(call["call_id"])
        points.here("asked")
        answer = {"call_id": call["call_id"], "digest": call["digest"], "approved": True}
        await store.submit(
            session_id, "approval", json.dumps(answer), lane="control", idempotency_key=call["call_id"]
        )


async def _settle_and_retry(store: Store, session_id: str, log: Path) -> None:
    """Settle the steps whose outcome is unknown by looking into the log, and retry the turn until it is done."""
    failed = next(found for found in await _submissions(store, session_id) if found.kind == "message")
    for _ in range(5):
        if failed.state != "failed":
            break
        keys = {line.split()[1] for line in log.read_text().splitlines()}
        for effect in await ledger(store, session_id):
            if is_cut_off(effect):
                known = (
                    {"result": f"{effect.tool} done"} if effect.idempotency_key in keys else {"error": "no"}
                )
                settling = partial(settle_effect, store, effect.run_id, effect.call_id, actor="you", **known)
                await when_free(store, settling)
        retry = await store.submit(session_id, "retry", json.dumps({"submission_id": failed.id}))
        await talk_to(store, session_id, Points(None))
        failed = await store.submission(retry.id)


async def _submissions(store: Store, session_id: str) -> Sequence[Submission]:
    return (await store.submissions(session_id, payloads=False, limit=100)).items


async def first(url: str, talk: str, log: Path, policy: Policy, point: str | None) -> None:
    points = Points(point)
    async with open_store(url) as store:
        points.watch_writes(store)
        async with working(store, make_agent(talk, log, points, policy)):
            await talk_to(store, talk, points)
        (log.parent / "points.json").write_text(json.dumps({"points": points.passed}))


async def second(url: str, talk: str, log: Path, policy: Policy, mode: str) -> dict[str, Any]:
    async with open_store(url) as store:
        recorded = await recorded_steps(store, talk)
        async with working(store, make_agent(talk, log, Points(None), policy)):
            await talk_to(store, talk, Points(None))
            if mode == "settle":
                await _settle_and_retry(store, talk, log)
        history = _texts((await find_resume_point(store, talk, None)).messages)
        submissions = await _submissions(store, talk)
        return {
            "output": history[-1],
            "history": history,
            "recorded": recorded,
            "steps": await recorded_steps(store, talk),
            "kinds": await kinds(store, talk),
            "submissions": sorted([found.kind, found.state, found.reason] for found in submissions),
            "violations": [str(violation) for violation in await store.check()],
            "status": (await store.session(talk)).status,
        }


def _texts(messages: list[ModelMessage]) -> list[str]:
    parts = [part for message in messages for part in message.parts]
    return [str(part.content) for part in parts if isinstance(part, TextPart | UserPromptPart)]


if __name__ == "__main__":
    drill(first, second, *sys.argv[1:])  # pyright: ignore[reportArgumentType]
