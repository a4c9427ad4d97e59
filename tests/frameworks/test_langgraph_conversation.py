"""Long conversations of LangGraph threads, read in pages that are bounded in bytes."""

import threading
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import httpx2
import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langgraph.checkpoint.base import empty_checkpoint

from holdfast import Store
from holdfast.frameworks.conversations import Entry, conversation
from holdfast.frameworks.langgraph import HoldfastSaver
from holdfast.types import Record, Session
from tests.frameworks.test_langgraph import thread
from tests.server.test_chat import TOKEN, http

__all__ = ["TOKEN", "http"]
pytestmark = pytest.mark.processes
MEBIBYTE = 1 << 20


async def stored(store: Store, *versions: Sequence[BaseMessage]) -> Session:
    """Return a thread with one checkpoint for each list of messages."""
    async with HoldfastSaver(store, owner="ada") as saver:
        config = thread()
        for version, messages in enumerate(versions):
            checkpoint = empty_checkpoint()
            checkpoint["channel_values"] = {"messages": list(messages)}
            checkpoint["channel_versions"] = {"messages": version}
            config = await saver.aput(config, checkpoint, {}, {"messages": version})
    (session,) = (await store.sessions(agent="langgraph")).items
    return session


async def pages(store: Store, session: Session, **more: Any) -> AsyncGenerator[list[Entry], None]:
    after: str | None = None
    while page := await conversation(store, session, after=after, **more):
        yield page
        after = page[-1].key


async def test_a_page_of_a_long_conversation_is_bounded_in_bytes_and_reads_no_more(
    store: Store, monkeypatch: pytest.MonkeyPatch
):
    messages = [HumanMessage(f"{n} " + "x" * MEBIBYTE, id=str(n)) for n in range(24)]
    session = await stored(store, messages[:12], messages)
    read: list[Record] = []
    original = store.records

    async def counted(*given: Any, **more: Any) -> list[Record]:
        found = await original(*given, **more)
        read.extend(found)
        return found

    monkeypatch.setattr(store, "records", counted)
    entries: list[Entry] = []
    async for page in pages(store, session):
        assert sum(len(entry.body["content"]) for entry in page) <= 6 * MEBIBYTE
        assert sum(len(record.body) for record in read) <= 14 * MEBIBYTE
        entries += page
        read.clear()
    assert [entry.body["id"] for entry in entries] == [str(n) for n in range(24)]
    assert [entry.body["content"] for entry in entries] == [message.content for message in messages]


async def test_a_response_has_the_content_of_a_long_message_once(http: httpx2.AsyncClient, store: Store):
    session = await stored(store, [HumanMessage("y" * 3 * MEBIBYTE), AIMessage("z" * 3 * MEBIBYTE)] * 4)
    path, texts = f"/api/sessions/{session.id}/conversation", list[str]()
    cursor: str | None = None
    while True:
        answer = await http.get(path, params={} if cursor is None else {"cursor": cursor})
        assert len(answer.content) < 8 * MEBIBYTE
        page = answer.json()
        texts += [item["text"] for item in page["items"]]
        assert {len(item["body"]["content"]) for item in page["items"]} <= {3 * MEBIBYTE}
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert len(texts) == 8
    assert {text[:2] for text in texts} == {"yy", "zz"}
    assert all(text.endswith("more characters are in `body`.") for text in texts)


async def test_pages_follow_a_list_whose_beginning_is_shared(store: Store):
    messages: list[BaseMessage] = [HumanMessage(f"{n}" * 300, id=str(n)) for n in range(7)]
    versions = [[*messages[:n], AIMessage(f"edited {n}", id=f"e{n}")] for n in range(7)]
    session = await stored(store, *versions, [*messages[:5], AIMessage("last", id="last")])
    for limit in (1, 2, 3, 100):
        found = [entry.body["id"] async for page in pages(store, session, limit=limit) for entry in page]
        assert found == ["0", "1", "2", "3", "4", "last"]
    assert await conversation(store, session, after="0000000005") == []
    assert await conversation(store, session, after="9999999999") == []


async def test_messages_are_loaded_outside_the_event_loop(store: Store, monkeypatch: pytest.MonkeyPatch):
    session = await stored(store, [HumanMessage("a"), AIMessage("b")])
    threads: set[int] = set()
    dump = BaseMessage.model_dump

    def noted(self: BaseMessage, **more: Any) -> dict[str, Any]:
        threads.add(threading.get_ident())
        return dump(self, **more)

    monkeypatch.setattr(BaseMessage, "model_dump", noted)
    assert [entry.text for entry in await conversation(store, session)] == ["a", "b"]
    assert threads
    assert threading.get_ident() not in threads
