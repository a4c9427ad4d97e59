"""How much the saver for LangGraph keeps in memory."""

import gc
import tracemalloc
from collections.abc import Generator
from pathlib import Path
from typing import Any, cast

import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.base import empty_checkpoint

from holdfast.frameworks.langgraph import HoldfastSaver
from tests.frameworks.test_langgraph import get, put, records, thread, values

MEBIBYTE = 1 << 20


@pytest.fixture
def saver(tmp_path: Path) -> Generator[HoldfastSaver, None, None]:
    saver = HoldfastSaver(tmp_path / "s.db")
    yield saver
    saver.close()


@pytest.fixture
def traced() -> Generator[None, None, None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


def size() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def large(number: int, kind: str) -> str:
    return f"{number}{kind}" + "x" * (2 * MEBIBYTE)


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("kind", ["text", "list", "write", "read"])
def test_many_threads_with_large_values_do_not_fill_the_memory(saver: HoldfastSaver, kind: str):
    """Each is 100 MiB in all, in one of the places where the saver keeps what it has written or read."""
    saver.get_tuple(thread("unknown"))
    before = size()
    for number in range(50):
        value = large(number, kind)
        content: Any = {
            "text": value,
            "list": [HumanMessage(value)],
            "write": None,
            "read": [value.encode()],
        }[kind]
        config = put(saver, {"a": content}, name=f"t{number}")
        if kind == "write":
            saver.put_writes(config, [("a", value.encode())], "task")
        if kind == "read":
            assert len(list(saver.list(thread(f"t{number}")))) == 1
        del content, value
    assert size() - before < 80 * MEBIBYTE


@pytest.mark.usefixtures("traced")
def test_many_threads_and_many_channels_do_not_fill_the_memory(saver: HoldfastSaver):
    saver.get_tuple(thread("unknown"))
    before = size()
    for number in range(90):
        checkpoint = empty_checkpoint()
        checkpoint["channel_values"] = {f"channel {n}": f"{number} {n} " + "x" * 100 for n in range(1500)}
        checkpoint["channel_versions"] = dict.fromkeys(checkpoint["channel_values"], number)
        saver.put(thread(f"t{number}"), checkpoint, {}, {})
    assert size() - before < 32 * MEBIBYTE


@pytest.mark.usefixtures("traced")
def test_many_names_do_not_fill_the_memory(saver: HoldfastSaver):
    saver.get_tuple(thread("unknown"))
    before = size()
    for number in range(300):
        assert saver.get_tuple(thread(f"{number}" + "x" * 60_000)) is None
    assert size() - before < 8 * MEBIBYTE


def test_a_list_that_is_larger_than_the_memory_is_not_read_again_for_each_put(
    saver: HoldfastSaver, monkeypatch: pytest.MonkeyPatch
):
    messages = [HumanMessage(large(n, "m"), id=str(n)) for n in range(40)]
    config = put(saver, {"messages": messages})
    asked: list[str] = []
    store = saver._shared.store
    original = store.records

    async def counted(session_id: str, kind: str, **more: Any) -> Any:
        asked.append(kind)
        return await original(session_id, kind, **more)

    monkeypatch.setattr(store, "records", counted)
    put(saver, {"messages": [*messages, HumanMessage("last", id="last")]}, after=config, version=2)
    assert "text" not in asked
    assert len(records(saver, "element")) == 41
    assert values(saver, thread())["messages"][-1].id == "last"


def test_the_writes_of_a_task_are_merged_after_they_left_the_memory(saver: HoldfastSaver):
    config = put(saver, {"a": 1})
    saver.put_writes(config, [("a", "x" * MEBIBYTE), ("b", 2)], "task")
    saver.put_writes(config, [("a", "ignored"), ("__error__", "one")], "task")
    saver.put_writes(config, [("__error__", "two")], "task")
    expected = [("task", "__error__", "two"), ("task", "a", "x" * MEBIBYTE), ("task", "b", 2)]
    assert sorted(cast("Any", get(saver, config).pending_writes)) == expected
