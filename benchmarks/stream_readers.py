"""Many readers of event streams in one cheap process: raw sockets, no parsing beyond finding the numbers.

`python -m benchmarks.stream_readers` takes an order as a line of JSON on standard input, says `ready` when every stream
has begun, and answers with a line of JSON when each has got what was expected, or when a line says `stop`.
"""

import json
import re
import selectors
import socket
import sys
import time
from dataclasses import dataclass, field

_NUMBER = re.compile(rb"(?<=\n)id: (\d+)\n")
_PATIENCE_SECONDS = 120.0
_OVERLAP = 32
"""So many bytes of the last read are looked at again: a number may be cut in two."""


@dataclass(slots=True)
class Reader:
    """One stream, and what came in."""

    topic: int
    socket: socket.socket
    tail: bytes = b""
    last: int = 0
    reads: int = 0
    seen: list[tuple[int, int, float]] = field(default_factory=list[tuple[int, int, float]])

    def take(self, data: bytes, now: float, *, noting: bool) -> None:
        """Look for the numbers in what came in."""
        self.reads += 1
        for found in _NUMBER.finditer(self.tail + data):
            number = int(found[1])
            if number > self.last:
                if number != self.last + 1:
                    raise SystemExit(f"a reader that had {self.last} got {number}")
                self.last = number
                if noting:
                    self.seen.append((self.topic, number, now))
        self.tail = (self.tail + data)[-_OVERLAP:]


def connect(order: dict[str, object], topic: int, path: str) -> Reader:
    """Open a stream and read until its first bytes are there."""
    connection = socket.create_connection((str(order["host"]), int(str(order["port"]))), timeout=60)
    lines = [
        f"GET {path} HTTP/1.1",
        f"Host: {order['host']}:{order['port']}",
        "Accept: text/event-stream",
        f"Authorization: Bearer {order['token']}",
    ]
    connection.sendall("\r\n".join([*lines, "", ""]).encode())
    reader = Reader(topic, connection)
    head = b""
    while b"\r\n\r\n" not in head:
        got = connection.recv(65536)
        if not got:
            raise SystemExit(f"the server hung up: {head!r}")
        head += got
    status, _, rest = head.partition(b"\r\n\r\n")
    if b" 200 " not in status.split(b"\r\n")[0]:
        raise SystemExit(f"the server answered {head!r}")
    reader.take(b"\n" + rest, time.monotonic(), noting=bool(order["noting"]))
    connection.setblocking(False)
    return reader


def main() -> None:
    order = json.loads(sys.stdin.readline())
    expected, noting = int(order["expected"]), bool(order["noting"])
    readers = [connect(order, topic, path) for topic, path in order["streams"]]
    selector = selectors.DefaultSelector()
    for reader in readers:
        selector.register(reader.socket, selectors.EVENT_READ, reader)
    selector.register(sys.stdin, selectors.EVENT_READ, None)
    print("ready", flush=True)
    waiting = {id(reader) for reader in readers if reader.last < expected}
    deadline = time.monotonic() + _PATIENCE_SECONDS
    stopped = False
    while (waiting or not expected) and not stopped:
        if expected and time.monotonic() > deadline:
            raise SystemExit(f"{len(waiting)} readers still wait")
        for key, _ in selector.select(1.0):
            if key.data is None:
                stopped = True
                break
            reader: Reader = key.data
            data = reader.socket.recv(262144)
            now = time.monotonic()
            if not data:
                raise SystemExit("the server hung up")
            reader.take(data, now, noting=noting)
            if reader.last >= expected:
                waiting.discard(id(reader))
    print(
        json.dumps(
            {
                "ended": time.monotonic(),
                "reads": sum(reader.reads for reader in readers),
                "seen": [item for reader in readers for item in reader.seen],
            }
        ),
        flush=True,
    )


if __name__ == "__main__":
    main()
