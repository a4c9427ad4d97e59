"""Decode the output of a command, split it into chunks and limit its size. This module does no I/O."""

import codecs
from collections import deque

from holdfast.commands import Output
from holdfast.ids import new_id

CHUNK_BYTES = 64 * 1024
_WAITING_BYTES = 4 * 1024 * 1024
"""How much output may wait for the store before the command is paused."""
_LONGEST_CHARACTER = 4

STDOUT, STDERR = 0, 1


class Decoder:
    """Decodes UTF-8 across reads. Invalid bytes are replaced, and so is NUL, which no store can keep."""

    def __init__(self) -> None:
        self._rest = b""

    def decode(self, data: bytes, *, final: bool = False) -> tuple[str, bool]:
        """Return the text up to the last complete character, and whether anything in it was replaced."""
        data = self._rest + data
        damaged = False
        try:
            text, used = codecs.utf_8_decode(data, "strict", final)
        except UnicodeDecodeError:
            damaged = True
            text, used = codecs.utf_8_decode(data, "replace", final)
        self._rest = data[used:]
        if "\x00" in text:
            damaged = True
            text = text.replace("\x00", "\ufffd")
        return text, damaged

    def forget(self) -> int:
        """Drop an incomplete character whose end was omitted, and return its size."""
        size, self._rest = len(self._rest), b""
        return size


class Collector:
    """The output of one command: chunks for the log up to the limit, and beyond it the last bytes."""

    def __init__(self, limit: int, tail: int) -> None:
        self._limit = limit
        self._tail = tail
        self._decoders = (Decoder(), Decoder())
        self._open: tuple[list[bytes], list[bytes]] = ([], [])
        self._open_size = 0
        self._chunks: deque[tuple[Output, int]] = deque()
        self._waiting = 0
        self._room = limit - self._tail
        self._last: deque[tuple[int, bytes]] = deque()
        self._last_size = 0
        self.sizes = [0, 0]
        self.left_out = 0
        self.damaged = False

    @property
    def wanted(self) -> int:
        """How many bytes to read next: up to the end of the chunk."""
        return CHUNK_BYTES - self._open_size

    @property
    def is_full(self) -> bool:
        """Whether the command must wait until the store has written more."""
        return self._waiting >= _WAITING_BYTES

    @property
    def has_chunks(self) -> bool:
        """Whether a chunk is complete."""
        return bool(self._chunks)

    @property
    def has_open(self) -> bool:
        """Whether a chunk has been started."""
        return self._open_size > 0

    def feed(self, stream: int, data: bytes) -> None:
        """Add data read from a stream."""
        self.sizes[stream] += len(data)
        kept = data[: self._room]
        self._room -= len(kept)
        if kept:
            self._add(stream, kept)
        if len(kept) < len(data):
            self._keep_last(stream, data[len(kept) :])

    def flush(self) -> None:
        """Close the current chunk."""
        if self._open_size:
            size, self._open_size = self._open_size, 0
            self._chunk(size, final=False)

    def take(self, size: int) -> list[Output]:
        """Return waiting chunks of up to this many bytes, and at least one if there is one."""
        taken: list[Output] = []
        while self._chunks and size > 0:
            output, weight = self._chunks.popleft()
            self._waiting -= weight
            size -= weight
            taken.append(output)
        return taken

    def end(self) -> None:
        """Close everything. If output was omitted, write a marker and then the last bytes."""
        if self.left_out:
            self.flush()
            self.left_out += sum(decoder.forget() for decoder in self._decoders)
            self._trim_last()
            first = self._last[0][0] if self._last else STDOUT
            marker = f"\n[holdfast: {self.left_out:,} bytes omitted here; the limit is {self._limit:,}]\n"
            self._add(first, marker.encode())
        while self._last:
            self._add(*self._last.popleft())
        size, self._open_size = self._open_size, 0
        self._chunk(size, final=True)

    def _add(self, stream: int, data: bytes) -> None:
        while data:
            piece, data = data[: self.wanted], data[self.wanted :]
            self._open[stream].append(piece)
            self._open_size += len(piece)
            if self._open_size >= CHUNK_BYTES:
                self.flush()

    def _chunk(self, size: int, *, final: bool) -> None:
        texts: list[str] = []
        damaged = False
        for decoder, parts in zip(self._decoders, self._open, strict=True):
            text, replaced = decoder.decode(b"".join(parts), final=final)
            parts.clear()
            texts.append(text)
            damaged = damaged or replaced
        self.damaged = self.damaged or damaged
        if any(texts):
            stdout, stderr = (text or None for text in texts)
            self._chunks.append((Output(id=new_id(), stdout=stdout, stderr=stderr, damaged=damaged), size))
            self._waiting += size

    def _keep_last(self, stream: int, data: bytes) -> None:
        self._last.append((stream, data))
        self._last_size += len(data)
        while self._last_size > self._tail:
            stream, first = self._last.popleft()
            extra = min(self._last_size - self._tail, len(first))
            self._last_size -= extra
            self.left_out += extra
            if extra < len(first):
                self._last.appendleft((stream, first[extra:]))

    def _trim_last(self) -> None:
        """Make each stream start with a complete character."""
        for stream in (STDOUT, STDERR):
            for place, (owner, data) in enumerate(self._last):
                if owner == stream:
                    start = 0
                    while start < min(len(data), _LONGEST_CHARACTER - 1) and data[start] & 0xC0 == 0x80:  # noqa: PLR2004
                        start += 1
                    self._last[place] = (owner, data[start:])
                    self.left_out += start
                    break
