"""An agent whose worker traces into the file that SPANS names, and whose tools and model tell secrets when they fail."""

import json
import os
from collections.abc import Sequence
from pathlib import Path

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from pydantic_ai import Agent
from pydantic_ai.capabilities import Instrumentation
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

SECRET = "swordfish-7291"


class ToFile(SpanExporter):
    def __init__(self, path: str) -> None:
        self._path = Path(path)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        with self._path.open("a") as file:
            file.writelines(span.to_json(indent=None) + "\n" for span in spans)
        return SpanExportResult.SUCCESS


if "SPANS" in os.environ:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(ToFile(os.environ["SPANS"])))
    trace.set_tracer_provider(provider)


def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    del info
    said = json.dumps([str(message) for message in messages])
    if "broken model" in said:
        raise ValueError(f"cannot go on with {SECRET}")
    if "broken tool" in said:
        return ModelResponse(parts=[ToolCallPart("break_down", {"word": SECRET})])
    return ModelResponse(parts=[TextPart(f"never tell {SECRET}")])


agent = Agent(
    FunctionModel(respond), name="agent", capabilities=[Instrumentation()] if "SPANS" in os.environ else []
)


@agent.tool_plain
async def break_down(word: str) -> str:
    raise RuntimeError(f"the word was {word}")
