"""The Pydantic AI capability that sends large content to the model as URLs. The recorded history keeps the original."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic_ai import RunContext
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import (
    AudioUrl,
    BinaryContent,
    DocumentUrl,
    FileUrl,
    ImageUrl,
    ModelMessage,
    ModelRequest,
    ToolReturnPart,
    UserPromptPart,
    VideoUrl,
)
from pydantic_ai.models import ModelRequestContext

from holdfast.media import MediaContext, MediaStore

_KINDS: dict[str, type[FileUrl]] = {"image": ImageUrl, "audio": AudioUrl, "video": VideoUrl}


class ExternalMedia(AbstractCapability[Any]):
    """Replaces binary content of at least `threshold` bytes with a URL before each model request, if the media store has public URLs.

    Only the outgoing request is changed. The content is uploaded if it is not in the store yet. A new URL is created for each
    request, so that presigned URLs have not expired. Content without a public URL is sent unchanged.
    """

    def __init__(self, media: MediaStore, *, threshold: int | None = None) -> None:
        self.id = "holdfast-external-media"
        self.media = media
        self.threshold = media.store.settings.media_threshold_bytes if threshold is None else threshold

    async def for_run(self, ctx: RunContext[Any]) -> AbstractCapability[Any]:
        """Return the capability for one run."""
        del ctx
        return _ForRun(self.media, threshold=self.threshold)


class _ForRun(ExternalMedia):
    """Remembers the content uploaded in this run, so that it is hashed only once."""

    def __init__(self, media: MediaStore, *, threshold: int) -> None:
        super().__init__(media, threshold=threshold)
        self._put: dict[
            int, tuple[BinaryContent, str]
        ] = {}  # by identity; keeping the content prevents its id from being reused

    async def before_model_request(
        self, ctx: RunContext[Any], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        del ctx
        request_context.messages[:] = [await self._message(message) for message in request_context.messages]
        return request_context

    async def _message(self, message: ModelMessage) -> ModelMessage:
        if not isinstance(message, ModelRequest):
            return message
        parts: list[Any] = []
        for part in message.parts:
            sent = part
            if isinstance(part, UserPromptPart | ToolReturnPart):
                content: Any = await self._content(part.content)
                if content is not part.content:
                    sent = replace(part, content=content)
            parts.append(sent)
        if all(sent is part for sent, part in zip(parts, message.parts, strict=True)):
            return message
        return replace(message, parts=parts)

    async def _content(self, content: Any) -> Any:
        """Return the content with URLs in it, or the same object if there is nothing to replace."""
        if isinstance(content, BinaryContent):
            return await self._url(content)
        if isinstance(content, Mapping):
            replaced: dict[Any, Any] = {key: await self._content(value) for key, value in content.items()}  # pyright: ignore[reportUnknownVariableType]
            same = all(replaced[key] is value for key, value in content.items())  # pyright: ignore[reportUnknownVariableType]
            return content if same else replaced  # pyright: ignore[reportUnknownVariableType]
        if isinstance(content, Sequence) and not isinstance(content, str | bytes | bytearray):
            items: list[Any] = [await self._content(item) for item in content]  # pyright: ignore[reportUnknownVariableType]
            same = all(new is old for new, old in zip(items, content, strict=True))  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
            return content if same else items  # pyright: ignore[reportUnknownVariableType]
        return content

    async def _url(self, content: BinaryContent) -> BinaryContent | FileUrl:
        if len(content.data) < self.threshold:
            return content
        known = self._put.get(id(content))
        if known is None:
            uri = await self.media.put(content.data, MediaContext(media_type=content.media_type))
            self._put[id(content)] = (content, uri)
        else:
            uri = known[1]
        url = await self.media.public_url(uri)
        if url is None:
            return content
        kind = _KINDS.get(content.media_type.partition("/")[0], DocumentUrl)
        return kind(
            url=url,
            media_type=content.media_type,
            identifier=content.identifier,
            vendor_metadata=content.vendor_metadata,
        )
