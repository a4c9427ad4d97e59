"""The history of LangGraph's delta channels: the same as LangGraph's own walk returns, with a few reads."""

import operator
from collections.abc import Generator
from functools import reduce
from typing import Annotated, Any, TypedDict, cast

import pytest
from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import StateGraph

from holdfast.frameworks.langgraph import HoldfastSaver
from tests.conftest import Engine
from tests.frameworks.test_langgraph import put, thread

pytestmark = pytest.mark.processes


def extend(state: list[Any], writes: Any) -> list[Any]:
    return reduce(operator.add, writes, state)


class State(TypedDict):
    items: Annotated[list[Any], DeltaChannel(extend)]
    often: Annotated[list[Any], DeltaChannel(extend, snapshot_frequency=4)]
    plain: list[str]


def answer(state: State) -> dict[str, Any]:
    return {"items": [HumanMessage(f"{len(state['items'])} " + "x" * 300, id="1")], "often": [1]}


def second(state: State) -> dict[str, Any]:
    return {"items": ["second"], "plain": ["second"]}


def graph(saver: Any) -> Any:
    made: Any = StateGraph(State)
    made.add_node("answer", answer)
    made.add_node("second", second)
    made.set_entry_point("answer")
    made.add_edge("__start__", "second")
    return made.compile(checkpointer=saver)


@pytest.fixture
def saver(engine: Engine) -> Generator[HoldfastSaver, None, None]:
    with HoldfastSaver(engine.url) as saver:
        yield saver


@pytest.fixture
def reads(saver: HoldfastSaver, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kinds of records that were read, one for each query."""
    saver.setup()
    asked: list[str] = []
    store = saver._shared.store
    original = store.records

    async def counted(session_id: str, kind: str, **more: Any) -> Any:
        asked.append(kind)
        return await original(session_id, kind, **more)

    monkeypatch.setattr(store, "records", counted)
    return asked


def test_the_number_of_reads_does_not_grow_with_the_turns_of_a_thread_with_delta_channels(
    saver: HoldfastSaver, reads: list[str]
):
    counts: list[int] = []
    for _ in range(30):
        reads.clear()
        graph(saver).invoke({"items": ["in"], "often": [0]}, thread())
        counts.append(len(reads))
    assert max(counts[20:]) <= max(counts[3:10]) + 4  # one more page of checkpoints and of writes
    reads.clear()
    assert len(graph(saver).get_state(thread()).values["items"]) == 90
    assert len(reads) <= 10


async def test_the_history_is_that_of_the_walk_of_langgraph(saver: HoldfastSaver):
    graphs = [graph(saver), graph(InMemorySaver())]
    for made in graphs:
        for number in range(12):
            made.invoke({"items": [number], "often": [0]}, thread())
        states = list(made.get_state_history(thread()))
        fork = made.update_state(states[9].config, {"items": ["changed"]}, as_node="answer")
        made.invoke({"items": ["after"], "often": [0]}, fork)
        made.invoke({"items": ["last"], "often": [0]}, thread())
    histories = [[state.values for state in made.get_state_history(thread())] for made in graphs]
    assert histories[0] == histories[1]
    channels = ["items", "often", "plain", "unknown"]
    for found in saver.list(thread()):
        expected = cast("Any", BaseCheckpointSaver).get_delta_channel_history(
            saver, config=found.config, channels=channels
        )
        assert saver.get_delta_channel_history(config=found.config, channels=channels) == expected
        assert await saver.aget_delta_channel_history(config=found.config, channels=channels) == expected


def test_the_history_follows_the_parents_and_ends_where_one_is_missing(saver: HoldfastSaver):
    def history(config: RunnableConfig) -> Any:
        return saver.get_delta_channel_history(config=config, channels=["a", "b"])

    assert saver.get_delta_channel_history(config=thread(), channels=[]) == {}
    assert history(thread()) == {"a": {"writes": []}, "b": {"writes": []}}
    first = put(saver, {"a": ["seed", "x" * 400], "b": "plain"})
    saver.put_writes(first, [("a", 1), ("b", "y" * 500), ("other", 2)], "task", "path")
    config = first
    for number in range(50):
        put(saver, {"a": ["elsewhere"]}, after=config)
        config = put(saver, {}, after=config, version=number)
        saver.put_writes(config, [("a", number)], "task", "path")
    target = put(saver, {"a": "ignored"}, after=config)
    saver.put_writes(target, [("a", "ignored")], "task")
    writes = [("task", "a", number) for number in (1, *range(50))]
    assert history(target) == history(thread()) == history(thread(checkpoint_id="")) == {
        "a": {"writes": writes, "seed": ["seed", "x" * 400]},
        "b": {"writes": [("task", "b", "y" * 500)], "seed": "plain"},
    }  # fmt: skip
    orphan = put(saver, {}, after=thread(checkpoint_id="missing"))
    itself = put(saver, {}, after=orphan)
    saver.put(itself, get_checkpoint(saver, itself), {}, {})
    assert history(orphan) == history(itself) == {"a": {"writes": []}, "b": {"writes": []}}


def get_checkpoint(saver: HoldfastSaver, config: RunnableConfig) -> Any:
    found = saver.get_tuple(config)
    assert found is not None
    return cast("Any", found.checkpoint)
