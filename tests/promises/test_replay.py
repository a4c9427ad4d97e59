"""Replay: random sessions have no difference from unchanged code, and none of its tools runs again."""

import random
from collections.abc import Sequence
from typing import Any

import pytest
from pydantic_ai import Agent, ModelRetry, Tool, ToolReturn
from pydantic_ai.messages import ModelResponsePart, TextPart, ThinkingPart

from holdfast import Holdfast, Store, connect
from holdfast.errors import ApprovalNeeded, TurnFailed
from holdfast.media import open_media
from holdfast.replay import replay
from holdfast.retention import write_archive
from holdfast.runtime.pydantic_agent import AgentSetup
from tests.record.agents import call as tool_call
from tests.record.agents import scripted
from tests.runtime.agents import working

ran: list[str] = []
SESSIONS = 12
MANY = 200


def echo(value: Any) -> Any:
    """Return the value."""
    ran.append("echo")
    return value


def picky(n: int) -> str:
    """Ask for a larger number."""
    ran.append("picky")
    if n % 2:
        raise ModelRetry(f"{n} is odd")
    return "even"


def rich(n: int) -> ToolReturn[Any]:
    """Return more than a value."""
    ran.append("rich")
    return ToolReturn({"n": n}, content=[f"about {n}"], metadata={"internal": n})


def pay(amount: int) -> str:
    """Pay."""
    ran.append("pay")
    return f"paid {amount}"


def fails(n: int) -> str:
    """Fail, which ends the turn."""
    ran.append("fails")
    raise OSError(n)


VALUES: Sequence[Any] = ("", "text", "\ud83d\ude00", 7, 0.5, None, True, ["a", {"b": [1]}], {"x": "y" * 500})


def response(chance: random.Random, number: int) -> list[ModelResponsePart]:
    parts: list[ModelResponsePart] = []
    if chance.random() < 0.3:
        parts.append(ThinkingPart("hm"))
    if chance.random() < 0.4:
        parts.append(TextPart("let me see"))
    for n in range(chance.randint(1, 3)):
        name = chance.choice(["echo", "echo", "picky", "rich", "pay"])
        arguments: dict[str, dict[str, Any]] = {
            "echo": {"value": chance.choice(VALUES)},
            "picky": {"n": chance.choice([1, 2, "none"])},
            "rich": {"n": n},
            "pay": {"amount": n},
        }
        parts.append(tool_call(name, f"c{number}-{n}", **arguments[name]))
    return parts


def random_agent(chance: random.Random) -> AgentSetup:
    turns: list[list[ModelResponsePart]] = []
    for number in range(chance.randint(1, 8)):
        if chance.random() < 0.25:
            turns.append([TextPart(f"answer {number}")])
        elif chance.random() < 0.08:
            turns.append([tool_call("fails", f"f{number}", n=number)])
        else:
            turns.append(response(chance, number))
    agent: Agent[None, Any] = Agent(
        scripted(*turns),
        tools=[
            echo,
            Tool(picky, max_retries=9),
            rich,
            Tool(pay, requires_approval=chance.random() < 0.5),
            fails,
        ],
        name="agent",
        instructions=chance.choice(["Be brief.", None]),
        system_prompt=chance.choice(["You help.", ()]),
        model_settings=chance.choice([None, {"temperature": 0.5}]),
        retries=9,
    )
    return AgentSetup(agent=agent)


async def talk(store: Store, setup: AgentSetup, chance: random.Random) -> str:
    """Let the agent answer a few messages, on a worker. Answer its questions at random."""
    session_id = (await store.create_session(agent="agent", owner="you")).id
    async with working(store, setup), connect(store) as client:
        session = await client.session(session_id)
        for number in range(chance.randint(1, 3)):
            turn = await session.send(chance.choice(["hello", "and?", f"message {number}"]))
            while True:
                try:
                    await turn.result(timeout=30)
                except ApprovalNeeded as needed:
                    for question in needed.calls:
                        if chance.random() < 0.6:
                            await session.approve(question)
                        else:
                            await session.deny(question, feedback="no")
                    continue
                except TurnFailed:
                    pass
                break
    return session_id


async def archived(store: Store, session_id: str) -> bytes:
    return b"".join([piece async for piece in write_archive(store, open_media(store=store), session_id)])


@pytest.mark.timeout(900)
async def test_unchanged_code_has_no_difference(store: Store, long: bool, request: pytest.FixtureRequest):
    seed = request.config.option.seed
    requests = 0
    for number in range(MANY if long else SESSIONS):
        chance = random.Random(seed + number)
        setup = random_agent(chance)
        session_id = await talk(store, setup, chance)
        before = await archived(store, session_id)
        ran.clear()
        async with connect(store) as client:
            report = await replay(await client.session(session_id), setup)
        assert report.differences == [], f"--seed {seed}, session {number}"
        assert ran == []
        assert report.touched == []
        assert await archived(store, session_id) == before
        requests += report.requests
    assert requests > 2 * SESSIONS


async def test_a_session_of_another_machine(store: Store, tmp_path: Any):
    """Only the file and the code are needed."""
    agent = Agent(scripted([tool_call("echo", "a", value=1)]), tools=[echo], name="agent")
    await agent.run("hello", conversation_id="s1", capabilities=[Holdfast(store)])
    file = tmp_path / "s1.ndjson"
    file.write_bytes(await archived(store, "s1"))
    ran.clear()
    report = await replay(file, agent)
    assert report.requests == 2
    assert ran == []
