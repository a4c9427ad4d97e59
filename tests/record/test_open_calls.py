from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    RetryFeedbackPart,
    RetryInfo,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from holdfast.record import is_provider_valid

PROMPT = ModelRequest(parts=[UserPromptPart("hi")])
CALLS = ModelResponse(parts=[ToolCallPart("t", {}, "a"), ToolCallPart("t", {}, "b")])


def answer(*ids: str) -> ModelRequest:
    return ModelRequest(parts=[ToolReturnPart("t", "ok", i) for i in ids])


def test_every_call_is_answered_exactly_once():
    assert is_provider_valid([])
    assert is_provider_valid([PROMPT, ModelResponse(parts=[TextPart("hello")])])
    assert is_provider_valid([PROMPT, CALLS, answer("a", "b")])
    assert is_provider_valid([PROMPT, CALLS, answer("a"), answer("b")])  # sent as one
    invalid: list[list[ModelMessage]] = [
        [PROMPT, CALLS],
        [PROMPT, CALLS, answer("a")],
        [PROMPT, CALLS, answer("a"), PROMPT, answer("b")],
        [PROMPT, CALLS, answer("a", "b", "b")],
        [PROMPT, answer("a")],
        [PROMPT, CALLS, answer("a", "b"), answer("a")],
        [PROMPT, CALLS, ModelResponse(parts=[TextPart("?")]), answer("a", "b")],
        [
            PROMPT,
            ModelResponse(parts=[ToolCallPart("t", {}, "a"), ToolCallPart("t", {}, "a")]),
            answer("a", "a"),
        ],
    ]
    for messages in invalid:
        assert not is_provider_valid(messages)


def test_a_retry_without_a_tool_is_a_plain_user_turn():
    feedback = RetryFeedbackPart("say it differently", retry=RetryInfo(cause="validation_error"))
    assert is_provider_valid([PROMPT, ModelResponse(parts=[TextPart("?")]), ModelRequest(parts=[feedback])])


def test_a_retry_with_a_tool_answers_its_call():
    retry = ToolReturnPart("t", "again", "b", outcome="retried")
    assert is_provider_valid([PROMPT, CALLS, ModelRequest(parts=[ToolReturnPart("t", "ok", "a"), retry])])
