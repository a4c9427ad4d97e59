"""Our ids on the spans of an application."""

from typing import Any

from opentelemetry import trace
from pydantic_ai import Agent

from holdfast import Holdfast, open_store
from tests.runtime.agents import echo


class Seen(trace.NonRecordingSpan):
    """A span that remembers its attributes."""

    def __init__(self) -> None:
        super().__init__(trace.INVALID_SPAN_CONTEXT)
        self.attributes: dict[str, Any] = {}

    def set_attributes(self, attributes: Any) -> None:
        self.attributes |= attributes


async def test_the_active_span_of_a_recorded_run_has_our_ids():
    span = Seen()
    async with open_store("sqlite://:memory:") as store:
        agent = Agent(echo(), capabilities=[Holdfast(store)])
        with trace.use_span(span):
            result = await agent.run("one", conversation_id="talk")
    assert span.attributes == {"holdfast.session_id": "talk", "holdfast.run_id": result.run_id}
