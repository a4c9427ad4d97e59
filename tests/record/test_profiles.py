"""What is recorded of a model request besides the history: its profile, and the messages that only the model saw."""

import dataclasses
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic_ai import Agent, RunContext, Tool
from pydantic_ai.capabilities import AbstractCapability, NativeTool, ProcessHistory
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, UserPromptPart
from pydantic_ai.models import ModelRequestContext
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.native_tools import MCPServerTool, WebSearchTool
from pydantic_ai.profiles import ModelProfile
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition

from holdfast import Holdfast, Store, open_store
from holdfast.api.models import event_json
from holdfast.events import ModelRequestCompleted, parse_event
from holdfast.media import collect, open_media, to_uri
from holdfast.retention import erase
from tests.record.agents import Turn, call, recorded, scripted

WHEN = datetime(2026, 1, 1, tzinfo=UTC)


def counting(*turns: Turn) -> FunctionModel:
    """Return a scripted model that counts its own requests, since it does not see the whole history."""
    left = iter(turns)

    def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        return ModelResponse(parts=next(left, [TextPart("done")]))

    return FunctionModel(respond)


def look(name: str) -> str:
    """Look at something."""
    return f"{name}?"


async def responses(store: Store, session_id: str) -> list[ModelRequestCompleted]:
    events = [parse_event(json.loads(event_json(event))) for event in await store.events(session_id)]
    return [event for event in events if isinstance(event, ModelRequestCompleted)]


async def profile(store: Store, event: ModelRequestCompleted) -> dict[str, Any]:
    assert event.profile is not None
    return json.loads(await open_media(store=store).get(to_uri(event.profile)))


async def only_session(store: Store) -> str:
    (session,) = (await store.sessions()).items
    return session.id


class Inner(AbstractCapability[Any]):
    """Changes requests after the recorder has seen them."""

    def __init__(self, change: Callable[[ModelRequestContext], None]) -> None:
        self._change = change

    async def prepare_model_request(
        self, ctx: RunContext[Any], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        changed = dataclasses.replace(request_context)
        self._change(changed)
        return changed


async def test_a_profile_is_named_by_the_first_request_and_stored_once_for_all_sessions(store: Store):
    agent = recorded(store, [call("look", name="a")], tools=[look], model_settings={"max_tokens": 5})
    for conversation in ("s1", "s1", "s2"):
        await agent.run("hello", conversation_id=conversation, message_history=[])
    first, second = (await responses(store, "s1"))[:2]
    assert second.profile is None
    found = await profile(store, first)
    assert found["model"] == "function:respond:stream"
    assert found["provider"] == "function"
    assert found["settings"] == {"max_tokens": 5}
    (tool,) = found["tools"]
    assert (tool["name"], tool["description"]) == ("look", "Look at something.")
    assert tool["parameters"]["properties"] == {"name": {"type": "string"}}
    assert found["output"]["mode"] == "text"
    named = [each.profile for session in ("s1", "s2") for each in await responses(store, session)]
    assert [each for each in named if each] == [first.profile] * 3  # one for each run
    blobs = (await store.blobs()).items
    assert [(blob.sha256, blob.references) for blob in blobs] == [(first.profile, 2)]


async def test_what_inner_hooks_change_is_what_is_recorded(memory: Store):
    def change(request: ModelRequestContext) -> None:
        settings = ModelSettings(
            temperature=0.3, extra_headers={"key": "secret"}, extra_body={"also": "secret"}
        )
        request.model_settings = settings

    agent = Agent(scripted(), capabilities=[Inner(change), Holdfast(memory)], model_settings={"seed": 1})
    await agent.run("hello")
    (event,) = await responses(memory, await only_session(memory))
    assert (await profile(memory, event))["settings"] == {"temperature": 0.3}


async def test_a_streamed_request_is_recorded_too(memory: Store):
    agent = recorded(memory, model_settings={"seed": 7})
    async with agent.run_stream("hello") as run:
        assert await run.get_output() == "done"
    (event,) = await responses(memory, await only_session(memory))
    assert (await profile(memory, event))["settings"] == {"seed": 7}


async def test_a_changed_profile_is_named_again(memory: Store):
    """The definition of a tool is changed in place, as preparing functions do."""

    async def prepare(ctx: RunContext[Any], definition: ToolDefinition) -> ToolDefinition:
        definition.parameters_json_schema["title"] = "first" if ctx.run_step < 3 else "later"
        return definition

    turns = [[call("look", f"c{n}", name="a")] for n in range(3)]
    agent = Agent(scripted(*turns), tools=[Tool(look, prepare=prepare)], capabilities=[Holdfast(memory)])
    await agent.run("hello")
    found = await responses(memory, await only_session(memory))
    assert [each.profile is None for each in found] == [False, True, False, True]
    titles = [(await profile(memory, each))["tools"][0]["parameters"]["title"] for each in found[::2]]
    assert titles == ["first", "later"]


async def test_the_output_is_part_of_the_profile(memory: Store):
    class Answer(BaseModel):
        number: int

    agent = Agent(
        scripted([call("final_result", number=1)]), output_type=Answer, capabilities=[Holdfast(memory)]
    )
    await agent.run("hello")
    (event,) = await responses(memory, await only_session(memory))
    output = (await profile(memory, event))["output"]
    assert output["tools"][0]["parameters"]["properties"] == {"number": {"type": "integer"}}


async def test_secrets_of_provider_tools_are_not_recorded(memory: Store):
    class Own(WebSearchTool):
        """Of another package; its fields are unknown."""

    server = MCPServerTool(
        id="mcp",
        url="https://user:secret@example.com",
        authorization_token="secret",
        headers={"key": "secret"},
    )
    model = scripted()
    model._profile = ModelProfile(supported_native_tools=frozenset({MCPServerTool, WebSearchTool, Own}))  # pyright: ignore[reportPrivateUsage]
    agent = Agent(
        model,
        capabilities=[NativeTool(server), NativeTool(Own(search_context_size="low")), Holdfast(memory)],
    )
    await agent.run("hello")
    (event,) = await responses(memory, await only_session(memory))
    found = await profile(memory, event)
    assert found["native_tools"] == [
        {"kind": "mcp_server", "id": "mcp", "description": None, "allowed_tools": None},
        {"kind": "web_search"},
    ]
    assert "secret" not in json.dumps(found)


async def test_what_cannot_be_json_is_noted_or_left_out(memory: Store):
    values = [object(), float("nan"), "\ud800"]
    for number, value in enumerate(values):
        agent = recorded(memory, model_settings={"value": value})
        await agent.run("hello", conversation_id=f"s{number}")
    noted, odd, missing = [(await responses(memory, f"s{number}"))[0] for number in range(len(values))]
    assert (await profile(memory, noted))["settings"] == {"value": "<not serializable: builtins.object>"}
    assert (await profile(memory, odd))["settings"] == {"value": "NaN"}
    assert missing.profile is None


async def test_messages_that_a_hook_leaves_out(memory: Store):
    def shorten(request: ModelRequestContext) -> None:
        if len(request.messages) > 3:
            request.messages = [request.messages[0], *request.messages[-2:]]

    turns = [[call("look", f"c{n}", name="a")] for n in range(2)]
    agent = Agent(counting(*turns), tools=[look], capabilities=[Inner(shorten), Holdfast(memory)])
    await agent.run("hello")
    found = await responses(memory, await only_session(memory))
    assert [each.sent for each in found] == [None, None, ((0, 1), (3, 5))]
    assert found[2].added == ()


async def test_messages_that_only_the_model_saw_are_recorded_once(memory: Store):
    def hide(request: ModelRequestContext) -> None:
        hidden = UserPromptPart("hidden", timestamp=WHEN)
        request.messages = [ModelRequest(parts=[hidden]), *request.messages[1:]]

    turns = [[call("look", f"c{n}", name="a")] for n in range(2)]
    agent = Agent(scripted(*turns), tools=[look], capabilities=[Inner(hide), Holdfast(memory)])
    await agent.run("my card is 4111")
    found = await responses(memory, await only_session(memory))
    assert [each.sent for each in found] == [(0,), (0, (1, 3)), (0, (1, 5))]
    assert [len(each.added) for each in found] == [1, 0, 0]
    assert found[0].added[0]["parts"][0]["content"] == "hidden"


async def test_a_history_that_a_processor_changed_is_the_history(memory: Store):
    """It replaces the history of the run, so the request is the same as the history."""
    agent = Agent(scripted(), capabilities=[ProcessHistory(lambda messages: messages[-1:]), Holdfast(memory)])
    await agent.run("hello", conversation_id="s1")
    await agent.run("again", conversation_id="s1")
    assert [each.sent for each in await responses(memory, "s1")] == [None, None]


async def test_a_large_message_that_only_the_model_saw_is_stored_as_media(memory: Store):
    def enlarge(request: ModelRequestContext) -> None:
        request.messages = [*request.messages, ModelRequest(parts=[UserPromptPart("x" * 100_000)])]

    agent = Agent(scripted(), capabilities=[Inner(enlarge), Holdfast(memory)])
    await agent.run("hello")
    (event,) = await responses(memory, await only_session(memory))
    assert len(json.dumps(event.added)) < 1000
    assert len((await memory.blobs()).items) == 2


async def test_a_profile_is_in_the_database_whatever_the_media_store_is(tmp_path: Path):
    async with open_store(f"sqlite:///{tmp_path}/store.db") as store:
        media = open_media(f"disk://{tmp_path}/media", store=store)
        await recorded(store, media=media).run("hello")
        assert [blob.location for blob in (await store.blobs()).items] == ["database"]
        (event,) = await responses(store, await only_session(store))
        assert event.profile is not None
        assert json.loads(await media.get(to_uri(event.profile)))["provider"] == "function"


async def test_a_profile_that_was_collected_is_stored_again(memory: Store):
    agent = recorded(memory)
    await agent.run("hello", conversation_id="s1")
    (event,) = await responses(memory, "s1")
    await erase(memory, open_media(store=memory), "s1", actor="test")
    await collect(open_media(store=memory), grace=0)
    assert (await memory.blobs()).items == []
    await agent.run("hello", conversation_id="s2")
    assert (await responses(memory, "s2"))[0].profile == event.profile
