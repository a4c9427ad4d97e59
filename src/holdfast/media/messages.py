"""Pydantic AI messages as JSON text with their large content in a media store."""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import TYPE_CHECKING

from holdfast.errors import BadInput
from holdfast.jsontext import lenient_json, read_recorded
from holdfast.media import walker
from holdfast.media.media_store import MediaStore, add_to, to_uri
from holdfast.types import Json

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage

_IN_THREAD = 1024 * 1024
"""Texts of this size are processed on a thread instead of the event loop."""
_AT_ONCE = 4
_LEAST = 128
"""References are almost as long as this."""


async def externalize(
    messages: "Sequence[ModelMessage]", media: MediaStore, *, threshold: int | None = None
) -> Json:
    """Return messages as JSON text, with large content moved to the media store and replaced by references.

    Strings and binary content are large if their JSON has at least `threshold` bytes, by default as in the settings. URLs and all other
    content are unchanged. Pass the text to `restore` to get the messages back. The media store cannot see where you keep the text:
    write `referenced(text)` as the `blobs` of a batch, or `collect` deletes the content after its grace period.
    """
    from pydantic_ai.messages import ModelMessagesTypeAdapter
    from pydantic_core import PydanticSerializationError

    threshold = check_threshold(
        media.store.settings.media_threshold_bytes if threshold is None else threshold
    )
    messages = list(messages)
    try:
        text = ModelMessagesTypeAdapter.dump_json(messages).decode()
    except PydanticSerializationError:  # lone surrogates cannot be UTF-8, but survive as JSON escapes
        text = lenient_json(
            ModelMessagesTypeAdapter.dump_python(messages, mode="json"), separators=(",", ":")
        )
    return await move_out(text, lambda: media, threshold, {})


async def restore(text: Json, media: MediaStore) -> "list[ModelMessage]":
    """Return the messages of a text that `externalize` returned, with all their content.

    Raises `MediaNotFound`, `MediaDamaged`, and `BadInput` if the text does not contain messages.
    """
    from pydantic import ValidationError
    from pydantic_ai.messages import ModelMessagesTypeAdapter

    (whole,) = await move_back([text], lambda: media)
    try:
        return ModelMessagesTypeAdapter.validate_json(whole)
    except ValidationError:
        pass
    try:
        return ModelMessagesTypeAdapter.validate_python(read_recorded(whole))
    except ValueError as error:
        raise BadInput(problem=f"the text is not a list of messages: {error}") from error


def referenced(text: Json) -> list[str]:
    """Return the SHA-256 digests of the content that a text of `externalize` refers to, each once."""
    return walker.digests([text])


def check_threshold(threshold: int) -> int:
    """Return the threshold. Raise `BadInput` if references would be larger than the content."""
    if threshold < _LEAST:
        raise BadInput(problem=f"the media threshold must be at least {_LEAST} bytes, not {threshold}")
    return threshold


async def move_out(
    text: Json,
    media: Callable[[], MediaStore],
    threshold: int,
    digests: dict[str, None],
    *,
    known: Collection[str] = (),
) -> Json:
    """Return the text with references to its large content, which is uploaded and added to `digests` unless it is `known`."""
    if not walker.is_touched(text, threshold):
        return text
    work = walker.take_out
    pieces = (
        work(text, threshold) if len(text) < _IN_THREAD else await asyncio.to_thread(work, text, threshold)
    )
    written: list[str] = []
    for piece in pieces:
        if isinstance(piece, str):
            written.append(piece)
            continue
        digest = hashlib.sha256()
        await add_to(digest, piece.data)
        uri = to_uri(digest.hexdigest())
        if digest.hexdigest() not in known:
            uri = await media().put(piece.data, piece.context)
            digests[digest.hexdigest()] = None
        written.append(walker.reference(uri, piece.form))
    return "".join(written)


async def move_back(
    texts: Sequence[Json],
    media: Callable[[], MediaStore],
    admit: Callable[[int], Awaitable[None]] | None = None,
) -> list[Json]:
    """Return the texts with all moved content restored. `admit` is called with the total size before anything is fetched."""
    if not any(map(walker.is_changed, texts)):
        return list(texts)
    wanted = walker.references(texts)
    places = asyncio.Semaphore(_AT_ONCE)

    async def measure(digest: str) -> int:
        async with places:
            return (await media().metadata(to_uri(digest))).size

    async def fetch(digest: str) -> bytes:
        async with places:
            return await media().get(to_uri(digest))

    if admit is not None:
        sizes = await asyncio.gather(*map(measure, wanted))
        moved = sum(size * count for size, count in zip(sizes, wanted.values(), strict=True))
        await admit(sum(map(len, texts)) + moved)
    contents = dict(zip(wanted, await asyncio.gather(*map(fetch, wanted)), strict=True))
    if sum(map(len, contents.values())) < _IN_THREAD:
        return [walker.put_back(text, contents) for text in texts]
    return await asyncio.to_thread(lambda: [walker.put_back(text, contents) for text in texts])
