"""Conversations of other frameworks, as people read them. No framework is needed for those that are stored as JSON."""

from typing import Any

import pytest
from langchain_core import messages

from holdfast import Store
from holdfast.frameworks.bodies import to_body
from holdfast.frameworks.conversations import Entry, conversation
from holdfast.frameworks.framework_store import FrameworkStore
from holdfast.frameworks.langgraph import HoldfastSaver
from holdfast.types import Record

pytestmark = pytest.mark.processes  # a store in memory cannot be used from another thread
OPENAI: list[Any] = [
    {"role": "user", "content": "Deploy it."},
    {"type": "function_call", "name": "deploy", "arguments": '{"place": "moon"}', "call_id": "1"},
    {"type": "function_call_output", "call_id": "1", "output": "deployed"},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Done."}]},
    {"type": "reasoning", "encrypted_content": "x"},
    ["not an object"],
    {"role": "user", "content": "a lone \ud800 surrogate"},
]
CLAUDE: list[Any] = [
    {"type": "user", "message": {"role": "user", "content": "Look."}},
    {
        "type": "assistant",
        "message": {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "name": "Read", "input": {"path": "a"}},
            ],
        },
    },
    {"type": "user", "message": {"role": "user", "content": [{"type": "tool_result", "content": "found"}]}},
    {"type": "summary", "summary": "short"},
]


async def spoken(store: Store, framework: str, kind: str, prefix: str, bodies: list[Any]) -> list[Entry]:
    shared = FrameworkStore.on_this_loop(store, framework=framework, owner="ada")
    session = await shared.ensure("a talk")
    async with shared.writing(session.id) as writer:
        await writer.write(
            [
                Record(kind=kind, key=f"{prefix}{number:012}", body=to_body(body))
                for number, body in enumerate(bodies)
            ]
        )
    entries: list[Entry] = []
    while page := await conversation(store, session, after=entries[-1].key if entries else None, limit=2):
        assert len(page) <= 2
        entries += page
    return entries


async def test_items_of_the_openai_sdk(store: Store):
    entries = await spoken(store, "openai-agents", "item", "", OPENAI)
    assert [(entry.role, entry.text) for entry in entries] == [
        ("user", "Deploy it."),
        ("assistant", 'deploy({"place": "moon"})'),
        ("tool", "deployed"),
        ("assistant", "Done."),
        ("other", ""),
        ("other", ""),
        ("user", "a lone \ud800 surrogate"),
    ]
    assert [entry.body for entry in entries] == OPENAI


async def test_entries_of_the_claude_sdk(store: Store):
    entries = await spoken(store, "claude-agent-sdk", "entry", "main/", CLAUDE)
    assert [(entry.role, entry.text) for entry in entries] == [
        ("user", "Look."),
        ("assistant", 'I look.\nRead({"path": "a"})'),
        ("tool", "found"),
        ("other", ""),
    ]


async def test_a_session_of_no_framework_has_none(store: Store):
    session = await store.create_session(agent="bot", owner="ada")
    assert await conversation(store, session) == []


async def test_messages_of_langgraph(store: Store):
    said = [
        messages.HumanMessage("Hello."),
        messages.AIMessage("Hi." * 200),
        messages.ToolMessage("ok", tool_call_id="1"),
    ]
    checkpoint: Any = {
        "v": 4,
        "id": "1",
        "ts": "",
        "channel_values": {"messages": said},
        "channel_versions": {"messages": 1},
        "versions_seen": {},
    }
    saver = HoldfastSaver(store, owner="ada")
    try:
        config: Any = {"configurable": {"thread_id": "a/b", "checkpoint_ns": ""}}
        await saver.aput(config, checkpoint, {"source": "input", "step": 1}, {"messages": 1})
    finally:
        saver.close()
    (session,) = (await store.sessions(agent="langgraph")).items
    entries = await conversation(store, session, limit=2)
    assert [(entry.role, entry.text) for entry in entries] == [("user", "Hello."), ("assistant", "Hi." * 200)]
    (last,) = await conversation(store, session, after=entries[-1].key)
    assert (last.role, last.text, last.body["tool_call_id"]) == ("tool", "ok", "1")
