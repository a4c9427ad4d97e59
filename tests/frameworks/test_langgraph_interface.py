"""The saver where programs use it as they use LangGraph's own: open, set up, close, and name the latest checkpoint."""

from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.memory import InMemorySaver

from holdfast.errors import BadInput
from holdfast.frameworks.langgraph import HoldfastSaver
from tests.conftest import Engine
from tests.frameworks.test_langgraph import chat, get, put, thread

pytestmark = pytest.mark.processes


def test_an_empty_checkpoint_id_is_the_latest_checkpoint(engine: Engine):
    def used(saver: HoldfastSaver | InMemorySaver) -> list[Any]:
        graph, config = chat(saver), thread(checkpoint_id="")
        for text in ("one", "two"):
            graph.invoke({"messages": [HumanMessage(text)]}, config)
        listed = list(saver.list(config))
        before = list(saver.list(thread(), before=thread(checkpoint_id="")))
        latest = saver.get_tuple(thread())
        assert latest is not None
        return [
            [message.content[:8] for message in graph.get_state(config).values["messages"]],
            [(one.parent_config is None, one.metadata.get("step")) for one in listed],
            len(before),
            saver.get_tuple(config) == latest,
        ]

    with HoldfastSaver(engine.url) as saver:
        assert used(saver) == used(InMemorySaver())


def test_a_saver_is_opened_set_up_and_closed_as_those_of_langgraph(engine: Engine):
    with HoldfastSaver.from_conn_string(engine.url) as saver:
        saver.setup()
        saver.setup()
        config = put(saver, {"a": 1})
        assert get(saver, config).checkpoint["channel_values"] == {"a": 1}
    with pytest.raises(BadInput, match="is closed"):
        saver.get_tuple(config)
    with pytest.raises(BadInput, match="is closed"):
        saver.setup()


async def test_a_saver_is_opened_set_up_and_closed_with_asyncio(engine: Engine):
    async with HoldfastSaver.from_conn_string(engine.url) as saver:
        await saver.setup()
        state = await chat(saver).ainvoke({"messages": [HumanMessage("one")]}, thread())
        assert len(state["messages"]) == 2
    with pytest.raises(BadInput, match="is closed"):
        await saver.aget_tuple(thread())


def test_a_saver_works_without_with_and_opens_the_store_when_it_is_used(tmp_path: Path):
    for saver in (HoldfastSaver(tmp_path / "s.db"), HoldfastSaver.from_conn_string(str(tmp_path / "s.db"))):
        chat(saver).invoke({"messages": [HumanMessage("one")]}, thread())
        saver.close()
        saver.close()


def test_setup_creates_the_tables_and_reports_what_is_wrong(tmp_path: Path):
    with HoldfastSaver(tmp_path / "s.db") as saver:
        assert not (tmp_path / "s.db").exists()
        saver.setup()
        assert (tmp_path / "s.db").stat().st_size
    with HoldfastSaver(tmp_path / "missing" / "s.db") as saver, pytest.raises(Exception, match="missing"):
        saver.setup()
