"""What requests name: places in a stream, ranges of media, ids in paths. An answer of ours, never a 500."""

import hashlib
import json
from collections.abc import AsyncGenerator, Generator
from typing import Any
from urllib.parse import quote

import httpx2
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.config import load_settings
from holdfast.media import MediaContext, open_media
from holdfast.operations.channel import block
from holdfast.server import create_app
from holdfast.store import Store
from holdfast.types import Batch, Message, NewEvent, Segment
from tests.fuzz.conftest import Opened
from tests.fuzz.values import FUZZ, NUMBERS, TEXTS
from tests.raw_client import _blocks

CONTENT = bytes(range(256)) * 4
SHA256 = hashlib.sha256(CONTENT).hexdigest()
# What a header can carry: no more gets through to a server.
HEADERS = (TEXTS | st.text(st.characters(min_codepoint=32, max_codepoint=255), max_size=30)).filter(
    lambda text: text.isascii() and text.isprintable()
)


async def filled(store: Store) -> None:
    """Make a session with events and media."""
    session = await store.create_session(agent="a", owner="local", id="s1")
    lease = await store.acquire(session.id, await store.join("test", ttl=3600))
    await open_media(store=store).put(CONTENT, MediaContext(media_type="image/png"))
    await store.write(
        lease,
        Batch(
            events=[NewEvent(kind="tick")] * 3,
            segments=[Segment(number=1)],
            messages=[Message(segment=1, position=0, body="{}")],
            blobs=[SHA256],
        ),
    )


@pytest.fixture(scope="module")
def http(opened: Opened) -> Generator[httpx2.AsyncClient, None, None]:
    opened.run(filled(opened.store))
    app: Any = create_app(load_settings(token="hf_test"), opened.store)
    client = httpx2.AsyncClient(
        transport=httpx2.ASGITransport(app, raise_app_exceptions=False),
        base_url="http://test",
        headers={"authorization": "Bearer hf_test"},
    )
    yield client
    opened.run(client.aclose())


def answered(answer: httpx2.Response) -> httpx2.Response:
    assert answer.status_code < 500, answer.text
    if answer.status_code >= 400:
        assert answer.json()["error"]["code"], answer.text
    return answer


@FUZZ
@given(after=NUMBERS.map(str) | TEXTS, last=st.none() | NUMBERS.map(str) | HEADERS, limit=NUMBERS.map(str))
@example(after="0", last="2", limit="2")
@example(after="3", last="", limit="1")
@example(after="0", last="9" * 19, limit="1")
def test_any_place_in_a_stream(
    opened: Opened, http: httpx2.AsyncClient, after: str, last: str | None, limit: str
):
    """As pages, which have an end; a stream reads its place in the same way."""
    headers = {} if last is None else {"last-event-id": last}
    params = {"after": after.encode("utf-8", "replace"), "limit": limit}
    answer = answered(opened.run(http.get("/api/sessions/s1/events", params=params, headers=headers)))
    if answer.status_code == 200:
        place = int(last or after)
        numbers = [event["seq"] for event in answer.json()["items"]]
        assert numbers == list(range(place + 1, 4))[: int(limit)]


@FUZZ
@given(NUMBERS.map(str) | HEADERS)
def test_a_wrong_place_in_a_stream_is_no_stream(opened: Opened, http: httpx2.AsyncClient, last: str):
    if last.isdigit() and len(last) < 19 and int(last) <= 3:
        return  # that is a place, and its stream goes on
    headers = {"last-event-id": last, "accept": "text/event-stream"}
    if not last:
        headers |= {"last-event-id": "x"}
    answer = answered(opened.run(http.get("/api/sessions/s1/events", headers=headers)))
    assert answer.status_code in {409, 422}


RANGES = st.tuples(
    st.sampled_from(["bytes=", "bytes =", "BYTES=", "bytes", "items=", ""]),
    st.none() | NUMBERS | st.integers(0, 2000),
    st.sampled_from(["-", "--", "", ",", "-0-"]),
    st.none() | NUMBERS | st.integers(0, 2000),
).map(lambda parts: "".join("" if part is None else str(part) for part in parts))


@FUZZ
@given(RANGES | HEADERS, st.none() | HEADERS)
@example("bytes=0-0", None)
@example("bytes=-1", f'"{SHA256}"')
@example("bytes=1023-", None)
@example("bytes=1024-", None)
@example("bytes=-0", None)
def test_any_range(opened: Opened, http: httpx2.AsyncClient, wanted: str, condition: str | None):
    headers = {"range": wanted} | ({} if condition is None else {"if-range": condition})
    answer = answered(opened.run(http.get(f"/api/media/{SHA256}", headers=headers)))
    if answer.status_code == 206:
        place, _, size = answer.headers["content-range"].removeprefix("bytes ").partition("/")
        first, _, last = place.partition("-")
        assert answer.content == CONTENT[int(first) : int(last) + 1]
        assert int(size) == len(CONTENT)
    elif answer.status_code == 200:
        assert answer.content == CONTENT


@FUZZ
@given(st.sampled_from(["sessions", "runs", "media", "sessions/s1/cursors"]), TEXTS)
def test_any_id_in_a_path(opened: Opened, http: httpx2.AsyncClient, what: str, name: str):
    path = f"/api/{what}/{quote(name.encode('utf-8', 'replace'), safe='')}"[:8000]
    answered(opened.run(http.get(path)))


@FUZZ
@given(
    st.lists(
        st.tuples(st.sampled_from(["tick", "message", "draft", "end"]), st.text(max_size=30)), max_size=6
    ),
    st.data(),
)
def test_the_client_reads_any_stream_however_it_is_cut(
    opened: Opened, events: list[tuple[str, str]], data: st.DataObject
):
    """Whatever characters a text has, and wherever the network cuts it: each event once, as it was sent."""
    facts = [(kind, {"text": text.encode("utf-8", "replace").decode()}) for kind, text in events]
    raw = b"".join(
        block(json.dumps(fact, ensure_ascii=False), kind, n) for n, (kind, fact) in enumerate(facts)
    )
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=5)))
    pieces = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]

    async def sent() -> AsyncGenerator[bytes, None]:
        for piece in pieces:
            yield piece

    async def read() -> list[tuple[str, dict[str, Any]]]:
        headers = {"content-type": "text/event-stream; charset=utf-8"}
        response = httpx2.Response(200, headers=headers, content=sent())
        return [found async for found in _blocks(response)]

    assert opened.run(read()) == facts
