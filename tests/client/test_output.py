from typing import Any

import pytest
from pydantic_ai import Agent, DeferredToolRequests, NativeOutput, TextOutput, ToolOutput

from holdfast.client.output import output_type_of
from holdfast.client.turn import TurnOutput
from holdfast.errors import BadInput


def _count(text: str) -> int:
    return len(text)


def _output(value: Any) -> TurnOutput:
    output = TurnOutput("turn")
    output.read("run_completed", {"payload": {"output": value}})
    return output


@pytest.mark.parametrize(
    ("output_type", "value"),
    [(int, 5), ([int, list[str]], ["a"]), ([int, DeferredToolRequests], 5), (dict[str, int], {"a": 1})],
)
def test_an_output_is_read_as_the_types_of_the_agent(output_type: Any, value: Any):
    assert output_type_of(Agent("test", output_type=output_type)).parse(_output(value)) == value


@pytest.mark.parametrize(
    "output_type", [_count, [int, _count], ToolOutput(int), TextOutput(_count), NativeOutput(int)]
)
def test_functions_and_markers_need_an_explicit_type(output_type: Any):
    with pytest.raises(BadInput, match="pass output_type"):
        output_type_of(Agent("test", name="clerk", output_type=output_type))
