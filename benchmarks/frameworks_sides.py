"""One side of the frameworks benchmark: a LangGraph chat with the saver that is measured. It runs without holdfast, too.

`python -m benchmarks.frameworks_sides SIDE URL` has one thread. For each line on standard input it does one turn, and prints as JSON the
seconds of the turn, of each put in it (the graph waits for it) and, if the line is `get`, of reading the latest checkpoint: again in the same saver, and in a new
one.
"""

import json
import random
import sqlite3
import string
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Annotated, Any, TypedDict

MESSAGE_BYTES = 1024
_CONFIG: Any = {"configurable": {"thread_id": "bench", "checkpoint_ns": ""}}
_chance = random.Random(1)


def text() -> str:
    """Return a message that does not compress well."""
    return "".join(_chance.choices(string.ascii_letters + string.digits + " ", k=MESSAGE_BYTES))


def open_saver(side: str, url: str) -> Any:
    """Return a saver with its default settings."""
    if side == "holdfast":
        return import_module("holdfast.frameworks.langgraph").HoldfastSaver(url)
    if side == "langgraph-checkpoint-sqlite":
        connection = sqlite3.connect(url.removeprefix("sqlite:///"), check_same_thread=False)
        saver = import_module("langgraph.checkpoint.sqlite").SqliteSaver(connection)
    else:
        rows = import_module("psycopg.rows").dict_row
        connection = import_module("psycopg").connect(
            url, autocommit=True, prepare_threshold=0, row_factory=rows
        )
        saver = import_module("langgraph.checkpoint.postgres").PostgresSaver(connection)
    saver.setup()
    return saver


def _seconds(work: Callable[[], Any]) -> float:
    before = time.perf_counter()
    work()
    return time.perf_counter() - before


def new_graph(saver: Any) -> Any:
    """Return a chat in which every question gets an answer."""
    messages: Any = import_module("langchain_core.messages")
    add_messages: Any = import_module("langgraph.graph.message").add_messages

    class State(TypedDict):
        messages: Annotated[list[Any], add_messages]

    def answer(state: State) -> dict[str, Any]:
        del state
        return {"messages": [messages.AIMessage(text())]}

    graph: Any = import_module("langgraph.graph").StateGraph(State)
    graph.add_node("agent", answer)
    graph.set_entry_point("agent")
    graph.set_finish_point("agent")
    return graph.compile(checkpointer=saver), messages.HumanMessage


def main(side: str, url: str) -> None:
    saver = open_saver(side, url)
    puts: list[float] = []
    original = saver.put

    def timed(*arguments: Any) -> Any:
        before = time.perf_counter()
        result = original(*arguments)
        puts.append(time.perf_counter() - before)
        return result

    saver.put = timed
    graph, human = new_graph(saver)
    print("ready", flush=True)
    for line in sys.stdin:
        puts.clear()
        turn = partial(graph.invoke, {"messages": [human(text())]}, _CONFIG, durability="sync")
        times: dict[str, Any] = {"turn": _seconds(turn), "puts": puts}
        if line == "get\n":
            times["get"] = _seconds(partial(saver.get_tuple, _CONFIG))
            other = open_saver(side, url)
            other.get_tuple({"configurable": {"thread_id": "unknown", "checkpoint_ns": ""}})
            times["first_get"] = _seconds(partial(other.get_tuple, _CONFIG))
            if side == "holdfast":
                other.close()
            else:
                other.conn.close()
        print(json.dumps(times), flush=True)
    if side == "holdfast":
        saver.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
