"""Archives as files: read in pieces, and written completely or not at all."""

import asyncio
import os
from collections.abc import AsyncGenerator, Generator
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import IO

from holdfast.errors import ArchiveFailed

_PIECE_BYTES = 1024 * 1024


async def read_pieces(file: Path) -> AsyncGenerator[bytes, None]:
    """Yield the content of a file."""
    try:
        with file.open("rb") as source:
            while piece := await asyncio.to_thread(source.read, _PIECE_BYTES):
                yield piece
    except OSError as error:
        raise ArchiveFailed(problem=str(error)) from error


async def write_file(file: Path, pieces: AsyncGenerator[bytes, None]) -> int:
    """Write a file, and return its size. The file appears when all pieces are written."""
    size = 0
    with replaced_file(file) as target:
        async with aclosing(pieces):
            async for piece in pieces:
                await asyncio.to_thread(target.write, piece)
                size += len(piece)
    return size


@contextmanager
def replaced_file(file: Path) -> Generator[IO[bytes], None, None]:
    """Yield a file to write to. It replaces `file` if no error is raised. Only its owner can read it."""
    partial = file.with_name(f"{file.name}.partial")
    try:
        partial.unlink(missing_ok=True)  # the mode only applies to a new file
        with open(partial, "xb", opener=_open_private) as target:
            yield target
        partial.replace(file)
    except OSError as error:
        raise ArchiveFailed(problem=str(error)) from error
    finally:
        partial.unlink(missing_ok=True)


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
