"""The route of media, by digest. It requires access to a session that refers to it. Browsers cannot execute its responses."""

import re
from collections.abc import AsyncGenerator
from typing import Annotated

from fastapi import Path, Request, Response
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException

from holdfast.api.models import ErrorBody
from holdfast.media import MediaStore, to_uri
from holdfast.operations.media import find_media
from holdfast.operations.registry import ClientMethod
from holdfast.server.long_responses import Download
from holdfast.server.routes import access_of, caller_of, new_router, route

router = new_router("media")
_SAFE = re.compile(r"(image/(png|jpeg|gif|webp)|audio/[\w.+-]+|video/[\w.+-]+|application/pdf|text/plain)")
_RANGE = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})")


@route(
    router,
    "GET",
    "/api/media/{sha256}",
    "user",
    ClientMethod("Client.media", note="`holdfast media show` shows what is known of it"),
    responses={
        200: {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}},
        206: {"description": "The requested range."},
        304: {"description": "Your copy is current."},
        416: {"model": ErrorBody, "description": "The range is outside the content."},
    },
)
async def read_media(request: Request, sha256: Annotated[str, Path(pattern="^[0-9a-f]{64}$")]) -> Response:
    """Return content, or the part in `Range` without reading the rest. Only whole content is verified by its digest."""
    media = await find_media(caller_of(request), sha256)
    etag = f'"{sha256}"'
    headers = {
        "etag": etag,
        "cache-control": "private, max-age=31536000, immutable",
        "accept-ranges": "bytes",
    }
    if request.headers.get("if-none-match") == etag:
        return Response(status_code=304, headers=headers)
    blob = await media.metadata(to_uri(sha256))
    kind = blob.media_type if _SAFE.fullmatch(blob.media_type) else "application/octet-stream"
    if kind == "application/octet-stream":
        headers["content-disposition"] = "attachment"
    part = _part(request.headers, blob.size, etag)
    start, stop = part or (0, blob.size)
    headers["content-length"] = str(stop - start)
    if part is not None:
        headers["content-range"] = f"bytes {start}-{stop - 1}/{blob.size}"
    if start == stop:
        return Response(b"", headers=headers, media_type=kind)

    chunks = _chunks(media, to_uri(sha256), start, stop)
    await anext(chunks)
    status = 200 if part is None else 206
    return Download(chunks, status, watch=access_of(request), headers=headers, media_type=kind)


async def _chunks(media: MediaStore, uri: str, start: int, stop: int) -> AsyncGenerator[bytes, None]:
    """Yield empty bytes when the first chunk was read, and then all chunks.

    So an early problem becomes an error response. A later one breaks the connection.
    """
    async with media.part(uri, start, stop) as chunks:
        first = await anext(chunks)
        yield b""
        yield first
        async for chunk in chunks:
            yield chunk


def _part(headers: Headers, size: int, etag: str) -> tuple[int, int] | None:
    """Return the requested range as start and stop; None for the whole content, or if `Range` is not understood."""
    result = _RANGE.fullmatch(headers.get("range", ""))
    if result is None or not (result[1] or result[2]) or headers.get("if-range", etag) != etag:
        return None
    if not result[1]:
        start, stop = max(0, size - int(result[2])), size
    else:
        start, stop = int(result[1]), min(int(result[2] or size - 1), size - 1) + 1
        if result[2] and int(result[2]) < start:
            return None
    if start >= stop:
        problem = f"The range is outside the content, which has {size} bytes."
        raise HTTPException(416, problem, {"content-range": f"bytes */{size}"})
    return start, stop
