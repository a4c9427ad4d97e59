"""Media by its digest, for those who may read a session that refers to it; always as something a browser cannot run."""

import re
from typing import Annotated

from fastapi import Path, Request, Response
from fastapi.responses import StreamingResponse

from holdfast.errors import NotFound
from holdfast.media import open_media, to_uri
from holdfast.server.routes import new_router, principal_of, route, store_of

router = new_router("media")
_SAFE = re.compile(r"(image/(png|jpeg|gif|webp)|audio/[\w.+-]+|video/[\w.+-]+|application/pdf|text/plain)")
_RANGE = re.compile(r"bytes=(\d{1,18})-(\d{0,18})")


@route(
    router,
    "GET",
    "/api/media/{sha256}",
    "user",
    responses={
        200: {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}},
        206: {"description": "The part that was asked for."},
        304: {"description": "You have it already."},
    },
)
async def read_media(request: Request, sha256: Annotated[str, Path(pattern="^[0-9a-f]{64}$")]) -> Response:
    """Return some content, or a part of it. Its name is its digest, so it never changes."""
    store, principal = store_of(request), principal_of(request)
    references = await store.references(sha256=sha256)
    allowed = principal.is_admin and references
    for session_id, _ in references if not allowed else ():
        if principal.may_see(await store.session(session_id)):
            allowed = True
            break
    if not allowed:
        raise NotFound(what="media", id=sha256)
    etag = f'"{sha256}"'
    headers = {
        "etag": etag,
        "cache-control": "private, max-age=31536000, immutable",
        "accept-ranges": "bytes",
    }
    if request.headers.get("if-none-match") == etag:
        return Response(status_code=304, headers=headers)
    media = open_media(store=store)
    blob = await media.metadata(to_uri(sha256))
    kind = blob.media_type if _SAFE.fullmatch(blob.media_type) else "application/octet-stream"
    if kind == "application/octet-stream":
        headers["content-disposition"] = "attachment"
    found = _RANGE.fullmatch(request.headers.get("range", ""))
    if found is not None and int(found[1]) < blob.size:
        first, last = int(found[1]), min(int(found[2] or blob.size - 1), blob.size - 1)
        content = await media.get(to_uri(sha256))  # whole: what is given out was checked against its digest
        headers["content-range"] = f"bytes {first}-{last}/{blob.size}"
        return Response(content[first : last + 1], 206, headers, kind)

    async def chunks():  # noqa: ANN202 - a generator of bytes
        async with media.open(to_uri(sha256)) as reading:
            async for chunk in reading:
                yield chunk

    headers["content-length"] = str(blob.size)
    return StreamingResponse(chunks(), headers=headers, media_type=kind)
