"""The body of a webhook: what happened, with ids, and with texts of the session if the subscription includes them."""

import json
from collections.abc import Mapping
from datetime import UTC
from typing import Any, Final

from holdfast.errors import SessionNotFound
from holdfast.jsontext import lenient_json, read_recorded
from holdfast.store import Store
from holdfast.subscriptions import Delivery, Subscription
from holdfast.types import Event, Session

LARGEST: Final = 256 * 1024
"""A larger body is sent without the texts."""
_TYPES: Final[Mapping[str, str]] = {"worker_lost": "worker.lost", "test": "test"}
_IDS: Final = ("submission_id",)
_TEXTS: Final = ("reason", "calls", "waits")
_BEFORE_END: Final = 8
"""How many events before the end of a turn may contain its output."""


async def build_body(store: Store, subscription: Subscription, delivery: Delivery) -> bytes:
    """Return the body of a delivery. A session that was cleaned or erased meanwhile has no texts.

    It is read again for each attempt, so that no text of a session is stored anywhere else.
    """
    data: dict[str, Any] = {}
    texts: dict[str, Any] = {}
    if delivery.kind == "worker_lost":
        data["worker"] = delivery.detail
    elif delivery.kind != "test":
        data |= {"session_id": delivery.session_id, "event": delivery.seq}
        try:
            session = await store.session(delivery.session_id)
        except SessionNotFound:
            pass  # it was erased
        else:
            events = await _events(store, delivery)
            data |= _facts(session, events)
            texts = _texts(session, events) if subscription.content else {}
        if delivery.detail is not None:
            data |= json.loads(delivery.detail)
    body = _encode(delivery, data | texts)
    return body if len(body) <= LARGEST else _encode(delivery, data | {"truncated": True})


def _encode(delivery: Delivery, data: dict[str, Any]) -> bytes:
    about = _TYPES.get(delivery.kind, f"session.{delivery.kind}")
    at = delivery.at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return lenient_json({"type": about, "timestamp": at, "data": data}).encode()


async def _events(store: Store, delivery: Delivery) -> list[Event]:
    """Return the announced event and, for the end of a turn, those before it. Empty if they were deleted."""
    if not delivery.seq:
        return []
    last = delivery.seq - 1
    first = max(0, last - _BEFORE_END) if delivery.kind == "done" else last
    events = await store.events(delivery.session_id, after=first, limit=delivery.seq - first)
    if events and events[-1].seq != delivery.seq:  # the page was full
        events = await store.events(delivery.session_id, after=last, limit=1)
    return events


def _facts(session: Session, events: list[Event]) -> dict[str, Any]:
    facts: dict[str, Any] = {"agent": session.agent, "owner": session.owner}
    if events:
        payload = _payload(events[-1])
        facts |= {name: payload[name] for name in _IDS if name in payload}
        if events[-1].run_id is not None:
            facts["run_id"] = events[-1].run_id
        if events[-1].kind == "approval_reminder":
            facts["reminder"] = payload.get("number")
    return facts


def _texts(session: Session, events: list[Event]) -> dict[str, Any]:
    texts: dict[str, Any] = {"title": session.title}
    if events:
        payload = _payload(events[-1])
        texts |= {name: payload[name] for name in _TEXTS if payload.get(name) is not None}
        if events[-1].kind == "submission_done":
            texts["output"] = _output(events)
    return texts


def _output(events: list[Event]) -> Any:
    """Return the output of a turn: that of its run, or the text of the last response of the model."""
    text: str | None = None
    for event in events:
        if event.kind == "run_completed" and "output" in (payload := _payload(event)):
            return payload["output"]
        if event.kind == "message" and event.message is not None:
            text = _text(read_recorded(event.message)) or text
    return text


def _text(message: Any) -> str | None:
    match message:
        case {"kind": "response", "parts": [*parts]}:
            texts = [part["content"] for part in parts if _is_text(part)]
            return "\n\n".join(texts)
        case _:
            return None


def _is_text(part: Any) -> bool:
    match part:
        case {"part_kind": "text", "content": str()}:
            return True
        case _:
            return False


def _payload(event: Event) -> Mapping[str, Any]:
    """Return the payload of an event if it is an object. Another program may write events of any form."""
    value: Any = json.loads(event.payload)
    return value if isinstance(value, dict) else {}  # pyright: ignore[reportUnknownVariableType]
