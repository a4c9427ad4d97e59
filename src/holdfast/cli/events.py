"""Events as lines for a terminal. Messages are shown part by part, tool calls and steps with their names."""

import json
from collections.abc import Callable, Mapping
from typing import Any, cast

from rich.console import Console
from rich.text import Text

from holdfast.api.models import EventInfo
from holdfast.cli.terminal import one_line, time_text

_WIDE = 100


def print_event(event: EventInfo, console: Console) -> None:
    """Print an event, one line for each part of its content. The date is left out if the terminal is narrow."""
    at = time_text(event.at).plain
    if console.width < _WIDE:
        at = at.partition(" ")[2]
    step = "" if event.step is None else event.step
    start = f"{event.seq:>6}  {at}  {one_line(event.kind)!s:<24} {step:>3}  "
    for line in event_lines(event) or [""]:
        console.print(Text(start).append_text(one_line(line)), no_wrap=True, overflow="ellipsis")
        start = " " * len(start)


def event_lines(event: EventInfo) -> list[str]:
    """Return the content of an event as text, a line for each part. Content without a known form is returned as it is stored."""
    describe = _parts if event.message is not None else _PAYLOADS.get(event.kind, _as_json)
    try:
        return describe(event.payload if event.message is None else event.message)
    except (AttributeError, KeyError, TypeError, ValueError):  # another program may write events of any form
        return [_text(event.payload if event.message is None else event.message)]


def _parts(message: Mapping[str, Any]) -> list[str]:
    return [_PARTS.get(part["part_kind"], _other)(part) for part in message["parts"]]


def _content(part: Mapping[str, Any]) -> str:
    content: Any = part["content"]
    items = cast("list[Any]", content) if isinstance(content, list) else [content]
    return " ".join(item if isinstance(item, str) else _text(item) for item in items)


def _call(part: Mapping[str, Any]) -> str:
    arguments = part["args"]
    return f"{part['tool_name']} {arguments if isinstance(arguments, str) else _text(arguments or {})}"


def _return(part: Mapping[str, Any]) -> str:
    outcome = part.get("outcome", "success")
    start = f"{part['tool_name']} →" if outcome == "success" else f"{part['tool_name']} → {outcome}:"
    return f"{start} {_text(part['content'])}"


def _retry(part: Mapping[str, Any]) -> str:
    return f"{part.get('tool_name') or 'output'} → retry: {_text(part['content'])}"


def _other(part: Mapping[str, Any]) -> str:
    return f"{part['part_kind']}: {_text({k: v for k, v in part.items() if k != 'part_kind'})}"


_PARTS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "text": _content,
    "user-prompt": _content,
    "system-prompt": lambda part: f"system: {_content(part)}",
    "thinking": lambda part: f"thinking: {_content(part)}",
    "tool-call": _call,
    "tool-return": _return,
    "retry-prompt": _retry,
}


def _partial(facts: Mapping[str, Any]) -> list[str]:
    return [*_parts(facts), *(["(cut: the rest was not recorded)"] if facts.get("truncated") else [])]


def _tool_call(facts: Mapping[str, Any]) -> list[str]:
    notes = [
        *([f"outcome {facts['outcome']}"] if "outcome" in facts else []),
        *([f"settled by {facts.get('actor') or 'a person'}"] if facts.get("manual") else []),
        *([str(facts["error"])] if facts.get("error") else []),
    ]
    return [": ".join([f"{facts['tool']} ({facts['call_id']})", *([", ".join(notes)] if notes else [])])]


def _step_started(facts: Mapping[str, Any]) -> list[str]:
    attempt = facts.get("attempt", 1)
    return [f"{facts['name']} (attempt {attempt})" if attempt > 1 else str(facts["name"])]


def _step_completed(facts: Mapping[str, Any]) -> list[str]:
    return [f"{facts['name']} (found by its probe)" if facts.get("probe") else str(facts["name"])]


def _step_failed(facts: Mapping[str, Any]) -> list[str]:
    retry = f", next attempt at {facts['retry_at']}" if facts.get("retry_at") else ""
    return [f"{facts['name']}: {facts.get('error') or 'no message'}{retry}"]


def _waiting_for_thread(facts: Mapping[str, Any]) -> list[str]:
    return [f"stopped; waits for the thread of {facts['name']} ({facts['call_id']})"]


def _probe_answered(facts: Mapping[str, Any]) -> list[str]:
    error = f" ({facts['error']})" if facts.get("error") else ""
    return [f"{facts['name']}: {str(facts['answer']).replace('_', ' ')}{error}"]


def _approval_requested(facts: Mapping[str, Any]) -> list[str]:
    return [
        " ".join(
            filter(
                None,
                [
                    f"{call['tool']} {_text(call['arguments'])} ({call['call_id']})",
                    call.get("note"),
                    f"{call['default']} at {call['deadline']}" if call.get("deadline") else None,
                ],
            )
        )
        for call in facts["calls"]
    ]


def _undo(facts: Mapping[str, Any]) -> list[str]:
    error = f": {facts['error']}" if facts.get("error") else ""
    return [f"{facts['undoes']} by {facts['name']}{error}"]


def _approval_answered(facts: Mapping[str, Any]) -> list[str]:
    if facts.get("external"):
        return [f"{facts['call_id']} result delivered by {facts.get('by') or 'a person'}"]
    decision = "approved" if facts["approved"] else "denied"
    by = f" by {facts['by']}" if facts.get("by") else ""
    edited = f" with {_text(facts['arguments'])}" if facts.get("arguments") is not None else ""
    feedback = f": {facts['feedback']}" if facts.get("feedback") else ""
    return [f"{facts['call_id']} {decision}{by}{edited}{feedback}"]


def _approval_reminder(facts: Mapping[str, Any]) -> list[str]:
    upcoming = f", next at {facts['next']}" if facts.get("next") else ""
    return [f"{facts['tool']} ({facts['call_id']}) has no answer: reminder {facts['number']}{upcoming}"]


def _wait(facts: Mapping[str, Any]) -> list[str]:
    what = "timer" if facts["wait"] == "sleep" else f"signal {facts['name']}"
    return [what + (f" until {facts['until']}" if facts.get("until") else "")]


def _wait_ended(facts: Mapping[str, Any]) -> list[str]:
    return [
        f"{_wait({**facts, 'until': None})[0]}: {'its time has come' if facts['ended_by'] == 'time' else 'it arrived'}"
    ]


def _run_waiting(facts: Mapping[str, Any]) -> list[str]:
    return [line for wait in facts["waits"] for line in _wait(wait)]


def _signal_arrived(facts: Mapping[str, Any]) -> list[str]:
    return [f"{facts['name']} {_text(facts['data'])}"]


def _as_json(payload: object) -> list[str]:
    return [] if payload == {} else [_text(payload)]


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


_PAYLOADS: Mapping[str, Callable[[Mapping[str, Any]], list[str]]] = {
    "partial_response": _partial,
    "tool_call_started": _tool_call,
    "tool_call_completed": _tool_call,
    "tool_call_failed": _tool_call,
    "step_started": _step_started,
    "step_completed": _step_completed,
    "step_failed": _step_failed,
    "probe_answered": _probe_answered,
    "undo_started": _undo,
    "effect_undone": _undo,
    "undo_failed": _undo,
    "waiting_for_thread": _waiting_for_thread,
    "approval_requested": _approval_requested,
    "approval_answered": _approval_answered,
    "approval_reminder": _approval_reminder,
    "wait_started": _wait,
    "wait_ended": _wait_ended,
    "run_waiting": _run_waiting,
    "signal_arrived": _signal_arrived,
}
