"""The saver for LangGraph: its conformance suite, lists stored by element, real graphs, deletion, two savers, and retention."""

import asyncio
import base64
import copy
import io
import json
import multiprocessing
import random
import re
import signal
import time
from collections.abc import AsyncGenerator, Callable, Generator
from importlib import metadata, reload
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypedDict, cast

import ormsgpack
import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, RemoveMessage
from langchain_core.runnables import RunnableConfig
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import CheckpointTuple, empty_checkpoint
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.conformance.capabilities import ALL_CAPABILITIES
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, interrupt

from holdfast.errors import BadInput, MissingExtra, SessionCleaned
from holdfast.frameworks import langgraph as module
from holdfast.frameworks.langgraph import HoldfastSaver
from holdfast.media import open_media
from holdfast.retention import clean, rehydrate
from holdfast.store import open_store
from holdfast.types import Record
from tests.conftest import Engine
from tests.promises.test_exact_return import export
from tests.promises.test_gone_is_gone import everything

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

pytestmark = pytest.mark.processes
MARKER = "xyzzy-the-secret"


class State(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


@pytest.fixture
def saver(engine: Engine) -> Generator[HoldfastSaver, None, None]:
    saver = HoldfastSaver(engine.url)
    yield saver
    saver.close()


@pytest.fixture
def other(engine: Engine) -> Generator[HoldfastSaver, None, None]:
    """Another process with the same store."""
    saver = HoldfastSaver(engine.url)
    yield saver
    saver.close()


def thread(name: str = "t", **more: Any) -> RunnableConfig:
    return {"configurable": {"thread_id": name, "checkpoint_ns": "", **more}}


def answer(state: State) -> dict[str, Any]:
    return {"messages": [AIMessage(f"answer {len(state['messages'])} " + "x" * 300)]}


def chat(saver: HoldfastSaver | InMemorySaver, node: Any = answer) -> Any:
    graph: Any = StateGraph(State)
    graph.add_node("agent", node)
    graph.set_entry_point("agent")
    graph.set_finish_point("agent")
    return graph.compile(checkpointer=saver)


def put(
    saver: HoldfastSaver,
    values: dict[str, Any],
    *,
    after: RunnableConfig | None = None,
    name: str = "t",
    version: int = 1,
    **about: Any,
) -> RunnableConfig:
    checkpoint = empty_checkpoint()
    checkpoint["channel_values"] = values
    checkpoint["channel_versions"] = dict.fromkeys(values, version)
    given = cast("Any", {"source": "loop", "step": version, "parents": {}, **about})
    return saver.put(after or thread(name), checkpoint, given, dict.fromkeys(values, version))


def get(saver: HoldfastSaver, config: RunnableConfig) -> CheckpointTuple:
    found = saver.get_tuple(config)
    assert found is not None
    return found


def values(saver: HoldfastSaver, config: RunnableConfig) -> dict[str, Any]:
    return get(saver, config).checkpoint["channel_values"]


def records(saver: HoldfastSaver, kind: str, name: str = "t") -> list[Any]:
    shared = saver._shared

    async def read() -> list[Any]:
        session = await shared.find(name)
        return [] if session is None else await shared.records(session.id, kind)

    return shared.run(read())


async def test_the_conformance_suite_of_langgraph_passes_with_every_capability(engine: Engine):
    async def new_saver() -> AsyncGenerator[HoldfastSaver, None]:
        saver = HoldfastSaver(engine.url)
        yield saver
        saver.close()

    report = await validate(checkpointer_test(name="HoldfastSaver")(new_saver))
    results: dict[str, Any] = report.to_dict()["results"]
    assert results.keys() == {capability.value for capability in ALL_CAPABILITIES}
    for result in results.values():
        assert result["failures"] == []
        assert (result["detected"], result["passed"], result["tests_skipped"]) == (True, True, 0)
    assert sum(result["tests_passed"] for result in results.values()) == 81


# Real graphs


async def test_a_graph_continues_in_another_process_with_and_without_asyncio(
    saver: HoldfastSaver, other: HoldfastSaver
):
    chat(saver).invoke({"messages": [HumanMessage("one")]}, thread())
    state = await chat(other).ainvoke({"messages": [HumanMessage("two")]}, thread())
    assert [message.type for message in state["messages"]] == ["human", "ai", "human", "ai"]
    assert chat(saver).get_state(thread()).values == state
    assert len([one async for one in chat(other).aget_state_history(thread())]) == 6


def test_the_history_is_the_same_as_with_the_saver_in_memory(saver: HoldfastSaver):
    def history(graph: Any) -> list[Any]:
        for text in ("one", "two"):
            graph.invoke({"messages": [HumanMessage(text, id=text)]}, thread())
        first = list(graph.get_state_history(thread()))[3]
        fork = graph.update_state(first.config, {"messages": [HumanMessage("changed", id="one")]})
        graph.invoke(None, fork)
        return [
            ([m.content for m in one.values.get("messages", [])], one.next, one.metadata, len(one.tasks))
            for one in graph.get_state_history(thread())
        ]

    assert history(chat(saver)) == history(chat(InMemorySaver()))


def test_an_interrupt_is_resumed_in_another_process(saver: HoldfastSaver, other: HoldfastSaver):
    def ask(state: State) -> dict[str, Any]:
        return {"messages": [AIMessage(interrupt("how many?"))]}

    chat(saver, ask).invoke({"messages": [HumanMessage("go")]}, thread())
    assert chat(other, ask).get_state(thread()).tasks[0].interrupts[0].value == "how many?"
    state = chat(other, ask).invoke(Command(resume="three"), thread())
    assert state["messages"][-1].content == "three"
    assert chat(saver, ask).get_state(thread()).next == ()


def test_a_subgraph_has_its_own_checkpoints(saver: HoldfastSaver, other: HoldfastSaver):
    def ask(state: State) -> dict[str, Any]:
        return {"messages": [AIMessage(interrupt("inside?"))]}

    inner: Any = StateGraph(State)
    inner.add_node("ask", ask)
    inner.set_entry_point("ask")
    chat(saver, inner.compile()).invoke({"messages": [HumanMessage("go")]}, thread())
    state = chat(other, inner.compile()).get_state(thread(), subgraphs=True)
    inside = state.tasks[0].state
    assert inside.config["configurable"]["checkpoint_ns"].startswith("agent:")
    assert inside.next == ("ask",)
    ended = chat(other, inner.compile()).invoke(Command(resume="yes"), thread())
    assert [message.content for message in ended["messages"]] == ["go", "yes"]


def test_removed_messages_are_removed_and_earlier_checkpoints_still_have_them(saver: HoldfastSaver):
    def shorten(state: State) -> dict[str, Any]:
        return {"messages": [RemoveMessage(id=str(state["messages"][0].id)), AIMessage("short")]}

    chat(saver).invoke({"messages": [HumanMessage("one"), HumanMessage("two")]}, thread())
    before = get(saver, thread()).config
    state = chat(saver, shorten).invoke({"messages": [HumanMessage("three")]}, thread())
    assert [message.content[:6] for message in state["messages"]] == ["two", "answer", "three", "short"]
    assert chat(saver).get_state(thread()).values == state
    assert [m.content[:6] for m in values(saver, before)["messages"]] == ["one", "two", "answer"]


# Lists


def test_an_element_is_stored_once_and_a_put_writes_only_what_is_new(saver: HoldfastSaver):
    graph = chat(saver)
    written: list[int] = []
    for number in range(12):
        before = {
            kind: len(records(saver, kind)) for kind in ("element", "text", "write", "checkpoint", "value")
        }
        graph.invoke({"messages": [HumanMessage(f"question {number} " + "y" * 300)]}, thread())
        written.append(sum(len(records(saver, kind)) - count for kind, count in before.items()))
    assert len(records(saver, "element")) == len(records(saver, "text")) == 24
    assert set(written) == {9}
    assert max(len(record.body) for record in records(saver, "checkpoint")) < 500


EDITS: list[Callable[[list[Any]], object]] = [
    lambda m: setattr(m[1], "content", "edited"),
    lambda m: m[1].additional_kwargs.update(note=2),
    lambda m: m[1].additional_kwargs["list"].append(None),
    lambda m: m[1].additional_kwargs.update(number=1.0),
    lambda m: m[1].additional_kwargs.update(number=True),
    lambda m: setattr(m[1], "unknown_field", "extra"),
    lambda m: m.__setitem__(1, AIMessage("other", id="1")),
    lambda m: m.pop(),
    lambda m: m.clear(),
    lambda m: m.insert(0, HumanMessage("first", id="0")),
]


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_in_place_is_seen_and_the_earlier_checkpoint_keeps_what_it_had(
    saver: HoldfastSaver, edit: Any
):
    messages: list[Any] = [
        HumanMessage("a", id="a"),
        AIMessage("b", id="b", additional_kwargs={"list": [1], "number": 1}),
        HumanMessage("c", id="c"),
    ]
    first = put(saver, {"messages": messages})
    before = copy.deepcopy(messages)
    edit(messages)
    second = put(saver, {"messages": messages}, after=first, version=2)
    for config, expected in ((first, before), (second, messages)):
        found = values(saver, config)["messages"]
        assert repr(found) == repr(expected)
        assert found == expected


def test_any_sequence_of_edits_forks_and_savers_reads_back_exactly(engine: Engine):
    """Against copies: lists of all kinds of values are extended, edited, cut, forked and pruned, by two savers in turns."""
    chance = random.Random(7)
    savers = [HoldfastSaver(engine.url) for _ in range(2)]
    expected: dict[str, tuple[RunnableConfig, list[Any]]] = {}

    def new_element() -> Any:
        number = chance.randrange(1000)
        return chance.choice(
            [
                number,
                f"{number}",
                {"n": [number, None]},
                HumanMessage("z" * number, id=str(number)),
                (1.5, b"\0"),
            ]
        )

    for step in range(100):
        saver = chance.choice(savers)
        after, current = chance.choice(list(expected.values())[-3:]) if expected else (None, [])
        items = saver_values(saver, after) if after and chance.random() < 0.5 else copy.deepcopy(current)
        for _ in range(chance.randrange(3)):
            match chance.randrange(6):
                case 0 if items:
                    items[chance.randrange(len(items))] = new_element()
                case 1 if items:
                    del items[chance.randrange(len(items)) :]
                case 2 if items and isinstance(items[-1], dict):
                    cast("dict[str, Any]", items[-1])["n"].append(step)
                case _:
                    items += [new_element() for _ in range(chance.randrange(4))]
        config = put(saver, {"list": items}, after=after, version=step)
        expected[config["configurable"]["checkpoint_id"]] = (config, copy.deepcopy(items))  # pyright: ignore[reportTypedDictNotRequiredAccess]
        if step % 30 == 29:
            saver.prune(["t"])
            expected = dict(list(expected.items())[-1:])
        for config, content in list(expected.values())[-40 if step % 10 == 9 else -1 :]:
            for reader in savers:
                assert repr(saver_values(reader, config)) == repr(_as_stored(content))
    for one in savers:
        one.close()


def saver_values(saver: HoldfastSaver, config: RunnableConfig) -> list[Any]:
    return values(saver, config)["list"]


def _as_stored(items: list[Any]) -> Any:
    return JsonPlusSerializer().loads_typed(JsonPlusSerializer().dumps_typed(items))


def test_a_thousand_elements_are_read_with_a_few_queries(
    saver: HoldfastSaver, other: HoldfastSaver, monkeypatch: pytest.MonkeyPatch
):
    config: RunnableConfig | None = None
    messages: list[Any] = []
    for number in range(100):
        messages += [HumanMessage(f"{number} {n} " + "x" * 300, id=f"{number}-{n}") for n in range(10)]
        config = put(saver, {"messages": messages}, after=config, version=number)
    asked: list[str] = []
    other.get_tuple(thread("unknown"))
    store = other._shared.store
    original = store.records

    async def counted(session_id: str, kind: str, **more: Any) -> Any:
        asked.append(kind)
        return await original(session_id, kind, **more)

    monkeypatch.setattr(store, "records", counted)
    assert values(other, thread())["messages"] == messages
    assert len(asked) <= 6
    asked.clear()
    put(other, {"messages": [*messages, AIMessage("new " * 100)]}, after=config, version=1000)
    assert asked == [
        "checkpoint",
        "element",
        "element",
        "text",
    ]  # where the segment begins and ends, and the last text


def test_a_list_that_is_edited_at_every_step_is_not_stored_anew_each_time(saver: HoldfastSaver):
    items: list[Any] = []
    config: RunnableConfig | None = None
    for step in range(100):
        items = [*items[:-1], f"edited {step}", f"new {step}"] if items else ["new"]
        config = put(saver, {"list": items}, after=config, version=step)
    assert values(saver, thread())["list"] == items
    assert len(records(saver, "element")) < 500


def test_values_without_a_version_are_stored(saver: HoldfastSaver, other: HoldfastSaver):
    checkpoint = empty_checkpoint()
    checkpoint["channel_values"] = {"a": "kept", "b": [1, 2], "c": "d" * 5000}
    saver.put(thread(), checkpoint, {}, {})
    assert values(other, thread()) == {"a": "kept", "b": [1, 2], "c": "d" * 5000}


def test_every_kind_of_value_is_returned_as_it_was(saver: HoldfastSaver, other: HoldfastSaver):
    given: dict[str, Any] = {
        "none": None, "bytes": b"\0" * 400, "large": "\0ä漢" * 500, "set": {1, 2}, "float": [0.1, -0.0],
        "number": 1 << 62, "keys": {1: "a", "b": {"c": "x" * 1000}}, "empty": [], "deep": [[[["y" * 600]]]], "json": {"a": [None, True]},
    }  # fmt: skip
    put(saver, given)
    assert repr(values(other, thread())) == repr(given)


def test_writes_are_kept_once_and_special_ones_are_replaced(saver: HoldfastSaver, other: HoldfastSaver):
    config = put(saver, {"a": 1})
    saver.put_writes(config, [("a", "first"), ("b", "x" * 900)], "task", "path")
    other.put_writes(config, [("a", "second"), ("__error__", "one")], "task", "path")
    saver.put_writes(config, [("__error__", "two")], "task", "path")
    saver.put_writes(config, [("a", 1)], "a/strange task\n" * 20, "a")
    found = get(other, config).pending_writes
    assert found == [
        ("a/strange task\n" * 20, "a", 1),
        ("task", "__error__", "two"),
        ("task", "a", "first"),
        ("task", "b", "x" * 900),
    ]


def test_ids_and_names_may_have_any_characters(saver: HoldfastSaver, other: HoldfastSaver):
    for strange in ("a/b", "ä\n", "x" * 1000, "%2F", "~", " "):
        checkpoint = empty_checkpoint()
        checkpoint["id"] = strange
        checkpoint["channel_values"] = {strange: [strange]}
        config = saver.put(thread(strange, checkpoint_ns=strange), checkpoint, {}, {})
        saver.put_writes(config, [(strange, strange)], strange)
        found = get(other, thread(strange, checkpoint_ns=strange, checkpoint_id=strange))
        assert found.checkpoint["channel_values"] == {strange: [strange]}
        assert found.pending_writes == [(strange, strange, strange)]
        assert [one.config for one in other.list(thread(strange, checkpoint_ns=strange))] == [config]


# Deletion


class Deltas(TypedDict):
    items: Annotated[list[str], DeltaChannel(lambda state, writes: state + [x for w in writes for x in w])]


def _add_one(state: Deltas) -> dict[str, list[str]]:
    return {"items": [str(len(state["items"]))]}


def deltas(saver: HoldfastSaver) -> Any:
    graph: Any = StateGraph(Deltas)
    graph.add_node("agent", _add_one)
    graph.set_entry_point("agent")
    return graph.compile(checkpointer=saver)


def test_pruning_keeps_the_checkpoints_that_delta_channels_are_computed_from(
    saver: HoldfastSaver, other: HoldfastSaver
):
    for _ in range(4):
        deltas(saver).invoke({"items": ["in"]}, thread())
    before = deltas(saver).get_state(thread()).values
    assert before["items"] == ["in", "1", "in", "3", "in", "5", "in", "7"]
    saver.prune(["t"])
    assert deltas(other).get_state(thread()).values == before
    assert deltas(other).invoke({"items": ["in"]}, thread())["items"] == [*before["items"], "in", "9"]


def test_pruning_deletes_what_only_earlier_checkpoints_had(saver: HoldfastSaver, other: HoldfastSaver):
    secret = HumanMessage(MARKER * 50, id="a")
    first = put(saver, {"messages": [secret, HumanMessage("b", id="b")], "single": MARKER * 99})
    saver.put_writes(first, [("x", MARKER * 70)], "task")
    second = put(
        saver, {"messages": [HumanMessage("b", id="b")], "single": "s" * 999}, after=first, version=2
    )
    saver.put_writes(second, [("x", "kept")], "task")
    saver.prune(["t"])
    assert [one.config for one in other.list(thread())] == [second]
    assert values(other, thread()) == {"messages": [HumanMessage("b", id="b")], "single": "s" * 999}
    assert get(other, thread()).pending_writes == [("task", "x", "kept")]
    for kind in ("text", "element", "value", "write", "checkpoint"):
        assert not [one for one in records(saver, kind) if MARKER in one.body]
    assert len(records(saver, "element")) == len(records(saver, "text")) == 1
    with pytest.raises(BadInput, match="keep_latest or delete"):
        saver.prune(["t"], strategy="all")


def test_a_segment_whose_end_was_deleted_is_not_continued(saver: HoldfastSaver, other: HoldfastSaver):
    first = put(saver, {"list": ["a"]}, run_id="keep")
    second = put(saver, {"list": ["a", "b"]}, after=first, version=2, run_id="drop")
    assert values(other, second) == {"list": ["a", "b"]}
    saver.delete_for_runs(["drop"])
    assert saver.get_tuple(second) is None
    third = put(saver, {"list": ["a", "c"]}, after=first, version=3)
    assert values(other, third) == values(saver, third) == {"list": ["a", "c"]}


def test_the_checkpoints_of_a_run_are_deleted_in_every_thread(saver: HoldfastSaver, other: HoldfastSaver):
    for name in ("t", "u"):
        kept = put(saver, {"a": "x"}, name=name, run_id="other")
        put(saver, {"a": MARKER * 40}, after=kept, version=2, run_id="run")
    other.copy_thread("t", "copied")
    other.delete_for_runs(["run", "unknown"])
    for name in ("t", "u", "copied"):
        assert [one.metadata.get("run_id") for one in saver.list(thread(name))] == ["other"]
        assert not [one for one in records(saver, "text", name) if MARKER in one.body]


def test_a_copied_thread_continues_on_its_own(saver: HoldfastSaver, other: HoldfastSaver):
    chat(saver).invoke({"messages": [HumanMessage("one " * 100)]}, thread())
    saver.copy_thread("t", "u")
    chat(other).invoke({"messages": [HumanMessage("two " * 100)]}, thread("u"))
    chat(saver).invoke({"messages": [HumanMessage("three " * 100)]}, thread("u"))
    assert len(values(other, thread("u"))["messages"]) == 6
    assert len(values(other, thread())["messages"]) == 2
    with pytest.raises(BadInput, match="has checkpoints"):
        saver.copy_thread("t", "u")


def test_a_deleted_thread_begins_anew(saver: HoldfastSaver, other: HoldfastSaver):
    chat(saver).invoke({"messages": [HumanMessage("one")]}, thread())
    other.delete_thread("t")
    assert saver.get_tuple(thread()) is None
    assert len(chat(saver).invoke({"messages": [HumanMessage("two")]}, thread())["messages"]) == 2
    assert [one.config["configurable"]["thread_id"] for one in other.list(None)] == ["t"] * 3  # pyright: ignore[reportTypedDictNotRequiredAccess]


# Kills

STEPS = 120


class Counted(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]
    steps: int


def run_to_the_end(url: str, pipe: "Connection") -> None:
    """Begin or continue a run of many steps, each with a fake model's answer, and send the number of each step that begins."""
    saver = HoldfastSaver(url)

    def step(state: Counted) -> dict[str, Any]:
        number = state["steps"]
        pipe.send(number)
        return {"messages": [AIMessage(f"{number} " + "x" * 300, id=str(number))], "steps": number + 1}

    def target(state: Counted) -> str:
        return "step" if state["steps"] < STEPS else "__end__"

    graph: Any = StateGraph(Counted)
    graph.add_node("step", step)
    graph.set_entry_point("step")
    graph.add_conditional_edges("step", target, ["step", "__end__"])
    config = thread() | {"recursion_limit": STEPS + 5}
    chat = graph.compile(checkpointer=saver)
    begun = saver.get_tuple(thread()) is not None
    chat.invoke(None if begun else {"messages": [HumanMessage("go", id="go")], "steps": 0}, config)
    saver.close()


def test_a_run_that_is_killed_twenty_times_loses_and_repeats_nothing(tmp_path: Path):
    chance = random.Random(3)
    url = f"sqlite:///{tmp_path}/s.db"
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    kills = 0
    for attempt in range(21):
        reader, writer = context.Pipe(duplex=False)
        child = context.Process(target=run_to_the_end, args=(url, writer))
        child.start()
        writer.close()
        if attempt < 20:
            for _ in range(chance.randrange(1, 4)):
                reader.recv()
            time.sleep(chance.random() * 0.01)
            child.kill()
        child.join(60)
        kills += child.exitcode == -signal.SIGKILL
        saver = HoldfastSaver(url)
        for one in saver.list(thread()):
            found = [message.id for message in one.checkpoint["channel_values"].get("messages", [])]
            assert found == ["go", *map(str, range(STEPS))][: len(found)]
        saver.close()
    assert (kills, child.exitcode) == (20, 0)  # pyright: ignore[reportPossiblyUnboundVariable]
    saver = HoldfastSaver(url)
    state = values(saver, thread())
    assert [message.id for message in state["messages"]] == ["go", *map(str, range(STEPS))]
    assert len(records(saver, "element")) == STEPS + 1
    saver.close()


# Two savers, retention, safety


async def test_a_checkpoint_can_be_read_while_the_next_ones_are_written(saver: HoldfastSaver):
    first = put(saver, {"list": [f"{n} " + "x" * 300 for n in range(50)]})
    expected = values(saver, first)

    async def write() -> None:
        config, items = first, list(expected["list"])
        for number in range(20):
            items = [*items[: 30 + number], f"new {number} " + "y" * 300]
            checkpoint = empty_checkpoint()
            checkpoint["channel_values"] = {"list": items}
            config = await saver.aput(config, checkpoint, {}, {})

    writing = asyncio.create_task(write())
    while not writing.done():
        found = await saver.aget_tuple(first)
        assert found is not None
        assert found.checkpoint["channel_values"] == expected
    await writing


def test_two_savers_write_to_one_thread_in_turns(saver: HoldfastSaver, other: HoldfastSaver):
    async def both() -> None:
        async def write(one: HoldfastSaver, name: str) -> None:
            config = thread()
            for number in range(10):
                checkpoint = empty_checkpoint()
                checkpoint["channel_values"] = {"list": [f"{name}{n} " + "x" * 300 for n in range(number)]}
                config = await one.aput(config, checkpoint, {}, {})

        await asyncio.gather(write(saver, "a"), write(other, "b"))

    asyncio.run(both())
    found = list(saver.list(thread()))
    assert len(found) == 20
    for one in found:
        items = one.checkpoint["channel_values"]["list"]
        assert {item[0] for item in items} in (set(), {"a"}, {"b"})
        assert [item[1] for item in items] == [str(n) for n in range(len(items))]


async def test_a_thread_is_archived_cleaned_and_restored_exactly_and_erased_without_a_trace(
    engine: Engine, saver: HoldfastSaver, tmp_path: Path
):
    graph = chat(saver)
    await graph.ainvoke({"messages": [HumanMessage(MARKER * 30)]}, thread())
    state = await graph.aget_state(thread())
    session = await saver._shared.call(saver._shared.ensure("t"))
    saver.close()
    async with open_store(engine.url) as store:
        media = open_media(store=store)
        archive = await export(store, session.id)
        assert MARKER.encode() in archive
        assert MARKER.encode() in await everything(engine, store, tmp_path)
        await clean(store, media, session.id, idle_days=0, force=True, actor="you")
        cleaned = HoldfastSaver(engine.url)
        with pytest.raises(SessionCleaned):
            await cleaned.aget_tuple(thread())
        with pytest.raises(SessionCleaned):
            await chat(cleaned).ainvoke({"messages": [HumanMessage("more")]}, thread())
        await rehydrate(store, media, session.id, io.BytesIO(archive), actor="you")
        assert await export(store, session.id) == archive
        assert (await chat(cleaned).aget_state(thread())).values == state.values
        await cleaned.adelete_thread("t")
        cleaned.close()
        assert await store.check() == []
        assert MARKER.encode() not in await everything(engine, store, tmp_path)


class Unlisted:
    """A class that no allowlist names."""

    def __init__(self, text: str = "") -> None:
        self.text = text
        LOADED.append(text)


LOADED: list[str] = []


def test_a_class_that_is_not_allowed_is_not_loaded(saver: HoldfastSaver):
    named = ormsgpack.packb(ormsgpack.Ext(0, ormsgpack.packb((Unlisted.__module__, "Unlisted", "evil"))))
    put(saver, {"list": ["harmless"]})
    shared = saver._shared

    async def forge() -> None:
        session = await shared.ensure("t")
        (element,) = await shared.records(session.id, "element")
        body = json.loads(element.body) | {"e": ["msgpack", base64.b64encode(named).decode()]}
        async with shared.writing(session.id) as writer:
            await writer.write([Record(kind="element", key=element.key, body=json.dumps(body))])

    shared.run(forge())
    for serde, loaded in ((None, []), (JsonPlusSerializer(allowed_msgpack_modules=[Unlisted]), ["evil"])):
        LOADED.clear()
        reader = HoldfastSaver(shared.store.url, serde=serde)
        (found,) = values(reader, thread())["list"]
        reader.close()
        assert loaded == LOADED
        assert isinstance(found, Unlisted) is bool(loaded)


class Reverse:
    """A cipher for a test."""

    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        return "reverse", plaintext[::-1]

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        return ciphertext[::-1]


def test_an_encrypting_serializer_leaves_nothing_readable(engine: Engine):
    saver = HoldfastSaver(engine.url, serde=EncryptedSerializer(Reverse()))
    chat(saver).invoke({"messages": [HumanMessage(MARKER * 30), HumanMessage(MARKER)]}, thread())
    assert values(saver, thread())["messages"][0].content == MARKER * 30
    everything = [
        one.body
        for kind in ("text", "element", "value", "write", "checkpoint")
        for one in records(saver, kind)
    ]
    saver.close()
    assert everything
    assert not [body for body in everything if MARKER in body]
    assert not [body for body in everything if '["",' in body and "null" not in body]


def test_a_missing_or_unsupported_version_is_named(monkeypatch: pytest.MonkeyPatch):
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    def old(name: str) -> str:
        return "4.2.9"

    def new(name: str) -> str:
        return "5.0.0"

    for installed, error in (
        (missing, pytest.raises(MissingExtra, match=re.escape("holdfast[langgraph]"))),
        (old, pytest.raises(BadInput, match=re.escape("4.2.9"))),
        (new, pytest.raises(BadInput, match=re.escape("5.0.0"))),
    ):  # fmt: skip
        with monkeypatch.context() as patched, error:
            patched.setattr(metadata, "version", installed)
            reload(module)
    reload(module)


def test_the_example_of_the_docs_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    page = Path(__file__).parents[2] / "docs" / "how-to" / "langgraph.md"
    (block,) = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    exec(compile(block, str(page), "exec"), {"__name__": "example"})
    assert capsys.readouterr().out == "2\n"
    assert (tmp_path / "threads.db").exists()
