"""Processes that use a `HoldfastSessionService` in real runs: `python -m tests.frameworks.adk_children drill|stale STORE SEED`."""

import asyncio
import json
import sys
import warnings
from collections.abc import AsyncGenerator, Callable
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.apps import App, ResumabilityConfig
from google.adk.events import Event, EventActions
from google.adk.models import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner
from google.adk.sessions import BaseSessionService, InMemorySessionService, Session
from google.adk.tools.tool_context import ToolContext
from google.genai import types

from holdfast.frameworks.adk import HoldfastSessionService
from holdfast.store import Store
from tests.frameworks.drill import kill_and_continue

KILLS = 20
APP, USER, ID = "clerks", "ada", "drill"
WHERE: dict[str, Any] = {"app_name": APP, "user_id": USER, "session_id": ID}
warnings.filterwarnings("ignore", message=".*EXPERIMENTAL.*")


class Clerk(BaseLlm):
    """A model that notes each question with a tool, and then answers it."""

    model: str = "clerk"

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        last = llm_request.contents[-1]
        assert last.parts
        part = last.parts[0]
        if part.function_response is not None:
            response: Any = part.function_response.response
            text = response["result"].replace("noted", "answer")
            if stream:
                yield LlmResponse(content=types.ModelContent(text[:3]), partial=True)
            yield LlmResponse(content=types.ModelContent(text))
        else:
            number = int((part.text or "").removeprefix("question "))
            call = types.FunctionCall(id=f"call-{number}", name="note", args={"number": number})
            yield LlmResponse(content=types.ModelContent(types.Part(function_call=call)))


def note(number: int, tool_context: ToolContext) -> str:
    """Note a number, and count the notes in each state."""
    for key in ("notes", "user:notes", "app:notes", "temp:notes"):
        tool_context.state[key] = (tool_context.state.get(key) or 0) + 1  # a rewind sets it to None
    return f"noted {number}"


def runner(service: BaseSessionService) -> Runner:
    agent = LlmAgent(name="clerk", model=Clerk(), tools=[note])
    app = App(name=APP, root_agent=agent, resumability_config=ResumabilityConfig(is_resumable=True))
    return Runner(app=app, session_service=service, auto_create_session=True)


def brief(event: Event) -> str:
    """Return the content of an event of a run; empty for one that only marks the end of an agent."""
    parts = event.content.parts if event.content else None
    if not parts:
        return ""
    if parts[0].function_call is not None:
        return f"call {parts[0].function_call.args}"
    response = parts[0].function_response
    return parts[0].text or "" if response is None else f"result {response.response}"


def expected(number: int) -> list[str]:
    """Return the four events of a turn, as `brief` shows them."""
    return [
        f"question {number}",
        f"call {{'number': {number}}}",
        f"result {{'result': 'noted {number}'}}",
        f"answer {number}",
    ]


def event(text: str = "", **delta: Any) -> Event:
    """Return an event. The first `_` in the name of a part of the state stands for a colon."""
    changes = {key.replace("_", ":", 1): value for key, value in delta.items()}
    content = types.UserContent(text) if text else None
    return Event(author="user", invocation_id="i", content=content, actions=EventActions(state_delta=changes))


async def add(service: BaseSessionService, session: Session, text: str = "", **delta: Any) -> Event:
    return await service.append_event(session, event(text, **delta))


def texts(session: Session) -> list[str]:
    return [text for text in map(brief, session.events) if text]


async def turn(service: BaseSessionService, number: int, **where: Any) -> list[Event]:
    """Ask a question, or continue the invocation that is given as `invocation_id`."""
    where = {"user_id": USER, "session_id": ID, **where}
    if "invocation_id" not in where:
        where["new_message"] = types.UserContent(f"question {number}")
    return [event async for event in runner(service).run_async(**where)]


async def loaded(service: BaseSessionService, **where: Any) -> Session:
    session = await service.get_session(**{**WHERE, **where})
    assert session is not None
    return session


async def released(store: Store) -> dict[str, str]:
    """Return the ids of the stored sessions by their scope, once nobody holds them."""
    ids = {
        json.loads(stored.metadata)["scope"]: stored.id
        for stored in (await store.sessions(agent="adk")).items
    }
    async with asyncio.timeout(20):
        while any([(await store.session(id_)).holder for id_ in ids.values()]):
            await asyncio.sleep(0.02)
    return ids


async def talk(store: str, acknowledge: Callable[[str], None], *, is_last: bool) -> None:
    """Continue a run that was cut off, and do turns: one if this is the last process, else until it is killed."""
    service = HoldfastSessionService(store)
    session = await service.get_session(**WHERE)
    events = session.events if session else []
    texts = [text for text in map(brief, events) if text]
    number = -(-len(texts) // 4)
    acknowledge(f"found {number}")
    if texts and not texts[-1].startswith("answer"):
        await turn(service, number, invocation_id=events[-1].invocation_id)
    acknowledge(f"continued {number}")
    while True:
        number += 1
        await turn(service, number)
        acknowledge(f"did {number}")
        if is_last:
            await service.close()
            return


async def stale(store: str) -> None:
    """Load a session, wait for a line, and append to it."""
    service = HoldfastSessionService(store)
    session = await loaded(service)
    print("loaded", flush=True)
    sys.stdin.readline()
    try:
        await service.append_event(session, Event(author="user", invocation_id="child"))
        print("appended", flush=True)
    except ValueError as error:
        print(type(error).__name__, flush=True)
    await service.close()


def main() -> None:
    how, store, *seed = sys.argv[1:]
    if how == "stale":
        asyncio.run(stale(store))
        return

    asyncio.run(turn(InMemorySessionService(), 1))  # imports what the children need

    def work(acknowledge: Callable[[str], None], *, is_last: bool) -> None:
        asyncio.run(talk(store, acknowledge, is_last=is_last))

    print(json.dumps(kill_and_continue(work, kills=KILLS, seed=int(seed[0]), most_seconds=1.0)))


if __name__ == "__main__":
    main()
