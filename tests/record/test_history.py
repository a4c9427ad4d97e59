"""Equality with Pydantic AI: what was recorded loads equal to what the run had, and its bytes stay the same."""

from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic_ai import ModelRetry
from pydantic_ai.messages import (
    BinaryContent,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    ModelResponsePart,
    TextPart,
    ThinkingPart,
    ToolReturnPart,
    UserPromptPart,
)

from holdfast import load_history, open_store
from holdfast.media.walker import digests
from holdfast.record import is_provider_valid
from holdfast.record.history import RecordedHistory, dump, load, read_history
from holdfast.record.offloader import MediaOffloader
from tests.builders import referred
from tests.record.agents import call, recorded

text = st.text(max_size=40) | st.text(min_size=128, max_size=200) | st.just("media+sha256://x#text")
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | text,
    lambda children: st.lists(children, max_size=3) | st.dictionaries(text, children, max_size=3),
    max_leaves=8,
)
binary = st.builds(
    BinaryContent,
    st.binary(max_size=64) | st.binary(min_size=128, max_size=300),
    media_type=st.sampled_from(["image/png", "audio/wav"]),
)
prompts = st.lists(text | binary.map(BinaryContent.narrow_type), min_size=1, max_size=3)
spoken = st.builds(TextPart, text.filter(str.strip)) | st.builds(ThinkingPart, text)


@st.composite
def turns(draw: st.DrawFn) -> list[list[ModelResponsePart]]:
    found: list[list[ModelResponsePart]] = []
    for turn in range(draw(st.integers(0, 4))):
        calls = [
            call(draw(st.sampled_from(["echo", "echo", "picky"])), f"call-{turn}-{n}", value=draw(values))
            for n in range(draw(st.integers(1, 3)))
        ]
        found.append([*draw(st.lists(spoken, max_size=2)), *calls])
    return found


def echo(value: Any) -> Any:
    return value


def picky(value: Any) -> Any:
    raise ModelRetry(f"not {value!r}")


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(script=turns(), prompt=prompts, threshold=st.sampled_from([128, 65536]))
async def test_a_recorded_history_loads_equal(
    script: list[list[ModelResponsePart]], prompt: list[Any], threshold: int
):
    async with open_store("sqlite://:memory:") as store:
        agent = recorded(store, *script, tools=[echo, picky], retries=50, media_threshold=threshold)
        result = await agent.run(prompt, conversation_id="talk")
        (latest,) = (await store.checkpoints(session_id="talk", limit=1)).items
        short = await read_history(store, "talk", latest)
        bodies = await MediaOffloader(store).back(short)
        assert set(digests(short)) == await referred(store, "talk")
        loaded = load(bodies)
        assert loaded == result.all_messages() == await load_history(store, latest)
        assert [dump(message) for message in loaded] == bodies
        assert is_provider_valid(loaded)
        assert latest.kind == "settled"
        assert await store.check() == []


def test_lone_surrogates_survive():
    message = ModelRequest(parts=[UserPromptPart("a\ud800b\x00")])
    assert load([dump(message)]) == [message]


def test_only_what_is_new_is_written():
    messages: list[ModelMessage] = []
    history = RecordedHistory()
    for n in range(5):
        messages += [
            ModelRequest(parts=[UserPromptPart(f"{n}")]),
            ModelResponse(parts=[TextPart(f"answer {n}")]),
        ]
        growth = history.grow(messages)
        assert [row.position for row in growth.messages] == [2 * n, 2 * n + 1]
        assert len(growth.segments) == (1 if n == 0 else 0)
    assert history.grow([*messages]).messages == []


def test_an_equal_copy_is_not_new_and_a_change_opens_a_segment():
    messages: list[ModelMessage] = [ModelRequest(parts=[UserPromptPart(str(n))]) for n in range(6)]
    history = RecordedHistory()
    history.grow(messages)
    copies = load([dump(message) for message in messages])
    assert history.grow(copies).messages == []
    copies[3] = ModelRequest(parts=[UserPromptPart("changed")])
    growth = history.grow(copies)
    assert [(s.number, s.parent, s.start) for s in growth.segments] == [(2, 1, 3)]
    assert [row.position for row in growth.messages] == [3, 4, 5]
    # Shorter and same length, rewritten from the start.
    fresh: list[ModelMessage] = [ModelRequest(parts=[UserPromptPart(f"new {n}")]) for n in range(6)]
    assert [(s.number, s.parent, s.start) for s in history.grow(fresh).segments] == [(3, None, 0)]


def test_a_change_in_place_is_seen_at_the_end_at_once_and_elsewhere_when_thorough():
    messages: list[ModelMessage] = [ModelRequest(parts=[UserPromptPart(str(n))]) for n in range(6)]
    history = RecordedHistory()
    history.grow(messages)
    messages[5].parts[0].content = "last"  # pyright: ignore[reportAttributeAccessIssue]
    assert [row.position for row in history.grow(messages).messages] == [5]
    messages[1].parts[0].content = "early"  # pyright: ignore[reportAttributeAccessIssue]
    assert [row.position for row in history.grow(messages, thorough=True).messages] == [1, 2, 3, 4, 5]


def test_a_message_replaced_far_up_is_seen_at_once():
    """As compaction does that summarizes the beginning and leaves the rest, and the number of messages, alone."""
    messages: list[ModelMessage] = [ModelRequest(parts=[UserPromptPart(str(n))]) for n in range(40)]
    history = RecordedHistory()
    history.grow(messages)
    rewritten = [ModelRequest(parts=[UserPromptPart("summary")]), *messages[1:]]
    assert [(s.number, s.start) for s in history.grow(rewritten).segments] == [(2, 0)]
    assert history.grow(rewritten).messages == []
    moved = [*rewritten[:10], rewritten[11], rewritten[10], *rewritten[12:]]
    assert [row.position for row in history.grow(moved).messages] == list(range(10, 40))


def test_values_that_refuse_to_be_compared():
    class Stubborn:
        def __eq__(self, other: object) -> bool:
            raise TypeError("not me")

        __hash__ = None  # pyright: ignore[reportAssignmentType]

    def made() -> list[ModelMessage]:
        far: list[ModelMessage] = [ModelRequest(parts=[ToolReturnPart("t", Stubborn(), "a")])]
        return [*far, *(ModelRequest(parts=[UserPromptPart(str(n))]) for n in range(20))]

    history, messages = RecordedHistory(), made()
    history.grow(messages)
    messages[0] = replace(messages[0], parts=[ToolReturnPart("t", Stubborn(), "b")])
    assert [(s.number, s.start) for s in history.grow(messages).segments] == [(2, 0)]
