"""A LangGraph graph whose nodes are steps: Holdfast keeps its session, and a node that has ended does not run again.

holdfast serve examples.langgraph_graph:writer
"""

import asyncio
from typing import Any, TypedDict

from langgraph.graph import END, START, StateGraph

import holdfast
from holdfast import Turn, step


class Draft(TypedDict, total=False):
    """The state of the graph."""

    topic: str
    outline: list[str]
    text: str


async def make_outline(topic: str) -> list[str]:
    """Return the sections of a text. Ask a model here."""
    return [f"Why {topic} matters", f"How {topic} works"]


async def write_section(title: str) -> str:
    """Return one section of the text. Ask a model here."""
    return f"# {title}\n"


async def outline(state: Draft) -> dict[str, Any]:
    """Plan the text."""
    return {"outline": await step("outline", make_outline, state.get("topic", ""), recovery="retry")}


async def write(state: Draft) -> dict[str, Any]:
    """Write all sections at the same time."""
    sections = [step("section", write_section, title, recovery="retry") for title in state.get("outline", [])]
    return {"text": "\n".join(await asyncio.gather(*sections))}


_graph: Any = StateGraph(Draft)
_graph.add_node("plan", outline)
_graph.add_node("write", write)
_graph.add_edge(START, "plan")
_graph.add_edge("plan", "write")
_graph.add_edge("write", END)
graph = _graph.compile()


@holdfast.agent("writer")
async def writer(turn: Turn) -> str:
    """Run the graph on the topic in the message."""
    state: Draft = await graph.ainvoke({"topic": turn.text})
    if not await turn.ask("Keep this text?", state.get("text")):
        return "The text was thrown away."
    return state.get("text", "")
