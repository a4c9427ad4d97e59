"""The conversation in a session of Google ADK, as people read it."""

import pytest
from google.adk.events import Event
from google.genai import types

from holdfast import Store
from holdfast.frameworks.adk import HoldfastSessionService
from holdfast.frameworks.conversations import conversation

pytestmark = pytest.mark.processes


async def test_events_of_adk(store: Store):
    parts = [
        ("user", "user", types.Part(text="Look.")),
        ("model", "agent", types.Part(function_call=types.FunctionCall(name="look", args={"at": "a"}))),
        (
            "user",
            "agent",
            types.Part(function_response=types.FunctionResponse(name="look", response={"result": "found"})),
        ),
        ("model", "agent", types.Part(text="Found it.")),
    ]
    service = HoldfastSessionService(store, owner="ada")
    try:
        talk = await service.create_session(app_name="app", user_id="ada", session_id="talk")
        for role, author, part in parts:
            await service.append_event(
                talk, Event(author=author, content=types.Content(role=role, parts=[part]))
            )
    finally:
        await service.close()
    (session,) = [one for one in (await store.sessions(agent="adk")).items if "talk" in one.metadata]
    assert [(entry.role, entry.text) for entry in await conversation(store, session)] == [
        ("user", "Look."),
        ("assistant", 'look({"at": "a"})'),
        ("tool", '{"result": "found"}'),
        ("assistant", "Found it."),
    ]
