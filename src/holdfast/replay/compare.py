"""Compare what today's code would send to a model with what was sent."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic_ai.messages import ModelMessage, ModelRequest

from holdfast.record.history import dump
from holdfast.replay.report import DifferenceKind

Found = tuple[DifferenceKind, str, Any, Any]
"""A kind of difference, the name of what differs, the record, and what today's code would send."""
_NOT_SENT = frozenset(
    {"timestamp", "run_id", "conversation_id", "metadata", "state", "retry", "content_file_digests"}
)
"""What parts contain besides what the model receives."""


def compare_profiles(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Found]:
    """Yield the differences of two profiles."""
    for name in ("model", "provider"):
        if before.get(name) != after.get(name):
            yield "model", name, before.get(name), after.get(name)
    old, new = before["settings"], after["settings"]
    for name in sorted(old.keys() | new.keys()):
        if old.get(name) != new.get(name):
            yield "settings", name, old.get(name), new.get(name)
    yield from _compare_tools(before["tools"], after["tools"])
    if before["native_tools"] != after["native_tools"]:
        yield "tool_changed", "native tools", before["native_tools"], after["native_tools"]
    if before["output"] != after["output"]:
        yield "output", "", before["output"], after["output"]


def _compare_tools(
    before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]
) -> Iterator[Found]:
    old = {tool["name"]: tool for tool in before}
    new = {tool["name"]: tool for tool in after}
    for name in old.keys() - new.keys():
        yield "tool_removed", name, old[name], None
    for name in new.keys() - old.keys():
        yield "tool_added", name, None, new[name]
    for name in old.keys() & new.keys():
        changed = [key for key in old[name] if old[name][key] != new[name].get(key)]
        if changed:
            values = [{key: tool[name].get(key) for key in changed} for tool in (old, new)]
            yield "tool_changed", name, values[0], values[1]


def compare_messages(before: Sequence[ModelMessage], after: Sequence[ModelMessage]) -> Iterator[Found]:
    """Yield the differences of the messages of a request since the last response.

    What was added from outside, such as a message that steered the turn, is part of the record only.
    """
    old, new = _parts(before), _parts(after)
    if (was := _instructions(before)) != (now := _instructions(after)):
        yield "instructions", "", was, now
    for part in new:
        if part in old:
            old.remove(part)
            continue
        counterpart = next((each for each in old if _place(each) == _place(part)), None)
        if counterpart is not None:
            old.remove(counterpart)
        yield _kind(counterpart, part), _name(part), counterpart, part
    for part in old:
        if part["part_kind"] != "user-prompt":
            yield "message", _name(part), part, None


def _kind(before: Mapping[str, Any] | None, after: Mapping[str, Any]) -> DifferenceKind:
    rejected = after["part_kind"] == "tool-return" and after.get("outcome") == "retried"
    if rejected and (before is None or before.get("outcome") != "retried"):
        return "call_rejected"
    return "message"


def _place(part: Mapping[str, Any]) -> tuple[Any, ...]:
    return part["part_kind"], part.get("tool_call_id")


def _name(part: Mapping[str, Any]) -> str:
    return str(part.get("tool_name") or part["part_kind"])


def _parts(messages: Sequence[ModelMessage]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for message in messages:
        for part in json.loads(dump(message))["parts"]:
            found.append({key: value for key, value in part.items() if key not in _NOT_SENT})
    return found


def _instructions(messages: Sequence[ModelMessage]) -> str | None:
    """Return the instructions of a request: those of its last message that has some. A message that steered the turn has none."""
    found = (message.instructions for message in reversed(messages) if isinstance(message, ModelRequest))
    return next((instructions for instructions in found if instructions is not None), None)
