"""Gzip for archives: a written archive never exceeds the compression ratio that readers accept, and reading is limited."""

import zlib
from collections.abc import Iterator
from typing import IO, Any, Final

from holdfast.errors import BadArchive

_GZIP: Final = b"\x1f\x8b"
_READ: Final = 1024 * 1024
_FREE_BYTES: Final = 64 * 1024 * 1024
_LARGEST_RATIO: Final = 200
"""The largest compression ratio of an archive beyond `_FREE_BYTES`."""


class Packer:
    """Compresses an archive, piece by piece. The same pieces give the same bytes.

    Blank images and logs compress a thousandfold. Part of such content is stored uncompressed, in a separate gzip member.
    """

    def __init__(self) -> None:
        self._plain = 0
        self._packed = 0
        self._is_stored: bool = False
        self._member: Any = _member(6)

    def add(self, piece: bytes) -> bytes:
        """Return the next compressed bytes; often none."""
        return b"".join(self._add(piece[start : start + _READ]) for start in range(0, len(piece), _READ))

    def _add(self, piece: bytes) -> bytes:
        data: bytes = b""
        stores: bool = self._plain > _FREE_BYTES // 2 and self._plain > self._packed * _LARGEST_RATIO // 2
        if stores != self._is_stored:
            data = self._member.flush()
            self._is_stored = stores
            self._member = _member(0 if stores else 6)
        data += self._member.compress(piece)
        self._plain += len(piece)
        self._packed += len(data)
        return data

    def finish(self) -> bytes:
        """Return the last bytes."""
        return self._member.flush()


def _member(level: int) -> Any:
    return zlib.compressobj(level, zlib.DEFLATED, 31)  # the header has no name and no time


def unpack(file: IO[bytes]) -> Iterator[bytes]:
    """Yield the bytes, decompressed if necessary. Raise `BadArchive` if the compression ratio is too large."""
    first = file.read(_READ)
    pieces = _pieces(file, first)
    if not first.startswith(_GZIP):
        yield from pieces
        return
    member = zlib.decompressobj(31)
    packed = unpacked = 0
    for piece in pieces:
        packed += len(piece)
        rest = piece
        while rest:
            if member.eof:
                member = zlib.decompressobj(31)
            try:
                data = member.decompress(rest, _READ)
            except zlib.error as error:
                raise BadArchive(problem=f"it is not valid gzip: {error}") from None
            rest = member.unused_data or member.unconsumed_tail
            unpacked += len(data)
            if unpacked > _FREE_BYTES and unpacked > packed * _LARGEST_RATIO:
                raise BadArchive(
                    problem=f"its compression ratio is more than {_LARGEST_RATIO};"
                    " if you trust it, decompress it with gunzip and use the result"
                )
            yield data
    if not member.eof:
        raise BadArchive(problem="its compressed data is truncated")


def _pieces(file: IO[bytes], first: bytes) -> Iterator[bytes]:
    piece = first
    while piece:
        yield piece
        piece = file.read(_READ)
