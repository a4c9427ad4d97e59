"""Cursors, filters, numbers and ids that lists are asked with: an error of ours, or a page."""

import base64
import json
from datetime import datetime, timedelta, timezone
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.errors import HoldfastError
from holdfast.store import Store
from holdfast.types import Page
from tests.fuzz.conftest import Opened
from tests.fuzz.values import FUZZ, JSON, NUMBERS, SCALARS, TEXTS


def cursor(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


_COMMAND = {"command_id": "0" * 32}
LISTS: list[tuple[str, dict[str, str]]] = [
    ("sessions", {}),
    ("submissions", {"session_id": "s1"}),
    ("checkpoints", {"session_id": "s1"}),
    ("runs", {"session_id": "s1"}),
    ("effects", {"session_id": "s1"}),
    ("audit_log", {}),
    ("shell_events", {}),
    ("shell_events", _COMMAND),
    ("commands", {}),
    ("blobs", {}),
]
"""Every list of the store, and what it is to be a list of."""


async def prepared(store: Store) -> None:
    await store.create_session(agent="a", owner="o", id="s1", exist_ok=True)


@FUZZ
@given(
    st.sampled_from(LISTS),
    TEXTS | JSON.map(cursor) | st.lists(SCALARS, max_size=3).map(cursor),
    NUMBERS | st.just(5),
)
@example(LISTS[0], base64.urlsafe_b64encode(b"[" * 100_000).decode(), 5)
@example(LISTS[0], cursor([10**25, "x"]), 5)
@example(LISTS[0], cursor([1, "\ud800"]), 5)
@example(LISTS[0], cursor([1, "\x00"]), 5)
def test_any_cursor(opened: Opened, ask: tuple[str, dict[str, str]], at: str, limit: int):
    opened.run(prepared(opened.store))
    name, of = ask
    try:
        page = opened.run(getattr(opened.store, name)(**of, cursor=at, limit=limit))
    except HoldfastError:
        return
    assert isinstance(page, Page)


ZONES = st.integers(-1439, 1439).map(lambda minutes: timezone(timedelta(minutes=minutes)))
TIMES = st.none() | st.datetimes() | st.datetimes(timezones=ZONES)


@FUZZ
@given(
    kind=st.none() | st.sampled_from(["command", "output"]) | TEXTS,
    command_id=st.none() | TEXTS | st.uuids().map(str) | st.uuids().map(lambda uuid: uuid.hex),
    since=TIMES,
    until=TIMES,
    after_order=st.none() | NUMBERS,
    newest_first=st.booleans(),
)
@example(
    kind=None,
    command_id=None,
    since=datetime.min.replace(tzinfo=timezone(timedelta(hours=14))),
    until=datetime.max.replace(tzinfo=timezone(timedelta(hours=-14))),
    after_order=None,
    newest_first=False,
)
def test_any_shell_filter(opened: Opened, **filters: Any):
    try:
        page = opened.run(opened.store.shell_events(**filters))
    except HoldfastError:
        return
    assert page.items == []


@FUZZ
@given(TEXTS, NUMBERS, NUMBERS)
def test_any_place_in_the_journal(opened: Opened, session_id: str, after: int, limit: int):
    opened.run(prepared(opened.store))
    for known in (session_id, "s1"):
        try:
            opened.run(opened.store.events(known, after=after, limit=limit))
            opened.run(opened.store.set_cursor(known, "reader", after))
        except HoldfastError:
            continue


@FUZZ
@given(TEXTS, TEXTS, TEXTS, TEXTS)
def test_any_text(opened: Opened, agent: str, owner: str, title: str, payload: str):
    """What is accepted comes back to the letter."""

    async def there_and_back() -> None:
        session = await opened.store.create_session(agent=agent, owner=owner, title=title)
        assert (session.agent, session.owner, session.title) == (agent, owner, title)
        sent = await opened.store.submit(session.id, "message", payload)
        assert (await opened.store.submissions(session.id)).items[0].payload == sent.payload == payload

    try:
        opened.run(there_and_back())
    except HoldfastError:
        return
