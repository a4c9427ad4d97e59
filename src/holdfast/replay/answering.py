"""Answer a run from its record: the model, the tools and the output functions. None of their code runs."""

import json
from collections.abc import Callable, Sequence
from typing import Any

from pydantic_ai import RunContext, ToolReturn
from pydantic_ai.capabilities import AbstractCapability, CapabilityOrdering
from pydantic_ai.exceptions import ToolFailedError, ToolRetryError
from pydantic_ai.messages import ModelMessage, ModelResponse, ToolCallPart
from pydantic_ai.models import Model, ModelRequestContext, ModelRequestParameters
from pydantic_ai.output import OutputContext
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition

from holdfast.record.profiles import profile_of
from holdfast.replay.compare import Found, compare_messages, compare_profiles
from holdfast.replay.recording import RecordedRequest, Recording


class RecordEnds(Exception):
    """The record has no answer: the run ended or was interrupted here."""


class RecordedModel(Model):
    """Has the name and the settings of a model, and is never asked."""

    def __init__(self, name: str, system: str, model: Model | None) -> None:
        super().__init__(
            settings=None if model is None else model.settings,
            profile=None if model is None else model.profile,
        )
        self._name, self._system = name, system
        self.answer: Callable[[], ModelResponse] | None = None

    @property
    def model_name(self) -> str:
        """The name of the model."""
        return self._name

    @property
    def system(self) -> str:
        """Its provider."""
        return self._system

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        """Return the recorded response."""
        del messages, model_settings, model_request_parameters
        if self.answer is None:
            raise RecordEnds
        return self.answer()


class Answering(AbstractCapability[Any]):
    """Compares each request of a run with the record, and answers it. It takes the place of the agent's own recorder."""

    def __init__(
        self, recording: Recording, model: RecordedModel, found: Callable[[int, Found], None]
    ) -> None:
        self.id = "holdfast"
        self._recording = recording
        self._left = list(recording.requests)
        self._found = found
        self._step = 0
        self.compared = 0
        model.answer = self._respond
        self._response: ModelResponse | None = None

    @property
    def left(self) -> Sequence[RecordedRequest]:
        """The recorded requests that were not made."""
        return self._left

    @property
    def step(self) -> int:
        """The recorded step of the last request."""
        return self._step

    def get_ordering(self) -> CapabilityOrdering:
        """Wrap all other capabilities, so that their changes are compared."""
        return CapabilityOrdering(position="outermost")

    async def wrap_model_request(
        self, ctx: RunContext[Any], *, request_context: ModelRequestContext, handler: Any
    ) -> ModelResponse:
        """Answer a request from the record, and compare what would have been sent."""
        if not self._left:
            self._compare_last(ctx)
            raise RecordEnds
        request = self._left.pop(0)
        self._step, self._response = request.step, request.response
        response = await handler(request_context)
        self.compared += 1
        for found in compare_messages(_new(request.messages), _new(ctx.messages)):
            self._found(request.step, found)
        ctx.messages[:] = request.messages
        profile = profile_of(request_context)
        if request.profile is not None and profile is not None:
            for found in compare_profiles(request.profile, json.loads(profile)):
                self._found(request.step, found)
        return response

    def _compare_last(self, ctx: RunContext[Any]) -> None:
        """Compare a request that the record does not have: what was the output would be rejected."""
        if self._recording.run.status != "completed":
            return
        for part in getattr(ctx.messages[-1], "parts", ()):
            if (
                part.part_kind in {"retry-feedback", "retry-prompt"}
                or getattr(part, "outcome", "") == "retried"
            ):
                self._found(self._step, ("output_rejected", "", None, str(part.content)))

    def _respond(self) -> ModelResponse:
        if self._response is None:
            raise RecordEnds
        return self._response

    async def wrap_tool_execute(
        self,
        ctx: RunContext[Any],
        *,
        call: ToolCallPart,
        tool_def: ToolDefinition,
        args: dict[str, Any],
        handler: Any,
    ) -> Any:
        """Answer a call from the record."""
        del ctx, tool_def, args, handler
        part = self._recording.outcomes.get(call.tool_call_id)
        if part is None:
            raise RecordEnds
        if part.outcome == "retried":
            raise ToolRetryError(part)
        if part.outcome != "success":
            raise ToolFailedError(part)
        return ToolReturn(return_value=part.content, metadata=part.metadata)

    async def wrap_output_process(
        self, ctx: RunContext[Any], *, output_context: OutputContext, output: Any, handler: Any
    ) -> Any:
        """Leave out output functions."""
        del ctx
        return output if output_context.has_function else await handler(output)


def _new(messages: Sequence[ModelMessage]) -> list[ModelMessage]:
    """Return the messages since the last response."""
    new: list[ModelMessage] = []
    for message in reversed(messages):
        if isinstance(message, ModelResponse):
            break
        new.append(message)
    return new[::-1]
