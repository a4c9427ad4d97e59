"""Messages as text whose large content is in a media store."""

import json
import os
from pathlib import Path

import pytest
from pydantic_ai.messages import (
    BinaryContent,
    BinaryImage,
    ImageUrl,
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolReturnPart,
    UserPromptPart,
)

from holdfast import open_store
from holdfast.errors import BadInput, MediaNotFound
from holdfast.media import MediaStore, collect, externalize, open_media, referenced, restore, to_uri
from holdfast.store import Store
from holdfast.types import Batch
from tests.builders import held_session


@pytest.fixture
async def store(tmp_path: Path):
    async with open_store(f"sqlite:///{tmp_path}/store.db") as store:
        yield store


@pytest.fixture
def media(store: Store, tmp_path: Path) -> MediaStore:
    return open_media(f"disk://{tmp_path}/media", store=store)


def conversation(image: bytes) -> list[ModelMessage]:
    return [
        ModelRequest([UserPromptPart(["What is this?", BinaryImage(image, media_type="image/png")])]),
        ModelResponse([TextPart("é" * 50_000), TextPart("\ud83d alone")]),
        ModelRequest([ToolReturnPart("read", {"text": "x" * 100_000}, tool_call_id="c-1")]),
    ]


async def test_messages_return_exactly(media: MediaStore):
    messages = conversation(os.urandom(200_000))
    text = await externalize(messages, media)
    assert len(text) < 3000
    assert len(referenced(text)) == 3
    result = await restore(text, media)
    assert result == messages
    plain = messages[:1] + messages[2:]
    assert ModelMessagesTypeAdapter.dump_json(result[:1] + result[2:]) == ModelMessagesTypeAdapter.dump_json(
        plain
    )


async def test_small_content_stays_in_the_text(media: MediaStore):
    messages: list[ModelMessage] = [
        ModelRequest([UserPromptPart([BinaryContent(b"tiny", media_type="image/png")])])
    ]
    text = await externalize(messages, media)
    assert text == ModelMessagesTypeAdapter.dump_json(messages).decode()
    assert (referenced(text), (await media.list()).items) == ([], [])
    big = [ModelRequest([UserPromptPart([BinaryContent(b"t" * 200, media_type="image/png")])])]
    assert len(referenced(await externalize(big, media, threshold=128))) == 1
    with pytest.raises(BadInput, match="at least 128"):
        await externalize(messages, media, threshold=1)


async def test_content_that_is_gone(media: MediaStore):
    text = await externalize(conversation(os.urandom(200_000)), media)
    await media.delete(to_uri(referenced(text)[0]))
    with pytest.raises(MediaNotFound, match=referenced(text)[0]):
        await restore(text, media)


async def test_urls_of_others_are_left_alone(media: MediaStore):
    messages: list[ModelMessage] = [
        ModelRequest(
            [
                UserPromptPart(
                    [
                        ImageUrl("https://example.com/cat.png", media_type="image/png"),
                        f"media+sha256://{'0' * 64}#base64",  # text of the user's own
                    ]
                )
            ]
        )
    ]
    text = await externalize(messages, media)
    assert json.loads(text)[0]["parts"][0]["content"][0]["url"] == "https://example.com/cat.png"
    assert referenced(text) == []
    assert await restore(text, media) == messages


async def test_content_that_a_session_refers_to_is_kept(store: Store, media: MediaStore):
    messages = conversation(os.urandom(200_000))
    text = await externalize(messages, media)
    lease, _ = await held_session(store)
    await store.write(lease, Batch(blobs=referenced(text)))
    assert (await collect(media, grace=0)).blobs == 0
    assert await restore(text, media) == messages


async def test_text_that_has_no_messages(media: MediaStore):
    with pytest.raises(BadInput, match="not a list of messages"):
        await restore('{"not": "messages"}', media)
    with pytest.raises(BadInput, match="not a list of messages"):
        await restore("no JSON", media)
