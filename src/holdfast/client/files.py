"""Archives as files: read in pieces, and written completely or not at all."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

from holdfast.client.transport import LONG, Transport
from holdfast.errors import ArchiveFailed, ServerUnavailable

_PIECE_BYTES = 1024 * 1024


async def read_pieces(file: Path) -> AsyncGenerator[bytes, None]:
    """Yield the content of a file."""
    try:
        with file.open("rb") as source:
            while piece := await asyncio.to_thread(source.read, _PIECE_BYTES):
                yield piece
    except OSError as error:
        raise ArchiveFailed(problem=str(error)) from error


async def download_archive(
    transport: Transport, session_id: str, *, gzip: bool
) -> AsyncGenerator[bytes, None]:
    """Yield the archive of a session. Raises `ArchiveFailed` if the server breaks off."""
    path, params = f"/api/sessions/{session_id}/export", {"gzip": gzip}
    try:
        async with transport.download(path, params=params, timeout=LONG) as response:
            async for piece in response.aiter_bytes():
                yield piece
    except ServerUnavailable as error:
        raise ArchiveFailed(problem=str(error).rstrip(".")) from error


async def write_file(file: Path, pieces: AsyncGenerator[bytes, None]) -> int:
    """Write a file, and return its size. The file appears when all pieces are written."""
    partial = file.with_name(f"{file.name}.partial")
    size = 0
    try:
        with partial.open("wb") as target:
            async with aclosing(pieces):
                async for piece in pieces:
                    await asyncio.to_thread(target.write, piece)
                    size += len(piece)
        partial.replace(file)
    except OSError as error:
        raise ArchiveFailed(problem=str(error)) from error
    finally:
        partial.unlink(missing_ok=True)
    return size
