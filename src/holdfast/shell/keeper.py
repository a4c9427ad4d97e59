"""Keep one command: start it on request, and end all of its processes when it ends or when its service dies.

This is a separate program (`python -I -S keeper.py FD`) that uses only the standard library, so that it starts quickly. FD is a
socket to the service. The service first sends one line of JSON with `argv` and `cwd`, then `T` (SIGTERM, a second later SIGKILL)
or `K` (SIGKILL). The reply is one line: the exit code, and whether the end was requested. When the socket closes, the
service is dead, and everything is killed at once. The command writes into pipes of the service, which the keeper never touches.
"""

import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

GRACE_SECONDS = 1.0
"""Between SIGTERM and SIGKILL."""
LINGER_SECONDS = 0.25
"""How long remaining processes may take to end by themselves, such as `tee` at the end of a process substitution."""

_LINUX = sys.platform == "linux"
_PDEATHSIG, _SUBREAPER = 1, 36
_CANNOT_RUN = 126


def main(fd: int) -> None:
    """Wait for the order, run the command, and report how it ended."""
    line = socket.socket(fileno=fd)
    line.set_inheritable(False)  # the command must neither keep it open nor write to it
    order = _order(line)
    if order is None:
        return
    _prctl(_SUBREAPER, 1)  # orphaned processes become our children, even after setsid
    bell, ring = os.pipe()
    os.set_blocking(ring, False)
    signal.set_wakeup_fd(ring, warn_on_full_buffer=False)
    requests: list[int] = []
    signal.signal(signal.SIGCHLD, _wake_only)
    signal.signal(
        signal.SIGTERM, lambda number, _: requests.append(number)
    )  # how a later service ends an orphan
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # our handler must not run in the child
    leader = os.fork()
    if leader == 0:
        _become(order)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    with contextlib.suppress(OSError):
        os.setpgid(leader, leader)  # the child does this too, whichever is first
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 1)  # the pipes must close when the command closes them
    os.dup2(nothing, 2)
    _Watch(line, bell, leader).run(requests)


def _wake_only(number: int, frame: object) -> None:
    """Do nothing, but have a handler, so that the signal writes to the wakeup descriptor."""


class _Watch:
    """The command and all processes that it started, until none is left."""

    def __init__(self, line: socket.socket, bell: int, leader: int) -> None:
        self._line = line
        self._bell = bell
        self._leader = leader
        self._code: int | None = None
        self._requested = False  # to end it, before it had ended by itself
        self._kill_at: float | None = None

    def run(self, requests: list[int]) -> None:
        """Run until no process of the command is left."""
        line_open = True
        while self._reap():
            now = time.monotonic()
            if requests and self._kill_at is None:
                self._end(now)
            if self._kill_at is not None and now >= self._kill_at:
                self._kill()
                self._kill_at = now + 0.01  # again, for processes started meanwhile
            wait = None if self._kill_at is None else max(0.0, self._kill_at - now)
            watched = [self._bell, self._line] if line_open else [self._bell]
            ready, _, _ = select.select(watched, [], [], wait)
            if self._bell in ready:
                os.read(self._bell, 4096)
            if self._line in ready:
                line_open = self._listen()
        with contextlib.suppress(OSError):
            self._line.sendall(
                json.dumps({"exit": self._code, "requested": self._requested}).encode() + b"\n"
            )

    def _listen(self) -> bool:
        try:
            words = self._line.recv(64)
        except OSError:
            words = b""
        now = time.monotonic()
        if not words or b"K" in words:
            self._requested = self._requested or self._code is None
            self._kill_at = now
        elif b"T" in words:
            self._end(now)
        return bool(words)

    def _end(self, now: float) -> None:
        if self._code is None:
            self._requested = True
            with contextlib.suppress(OSError):
                os.killpg(self._leader, signal.SIGTERM)
                os.killpg(self._leader, signal.SIGCONT)
        self._kill_at = min(self._kill_at or now + GRACE_SECONDS, now + GRACE_SECONDS)

    def _reap(self) -> bool:
        """Reap processes that have ended, and return whether any is left."""
        left = True
        while left:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                left = False
                break
            if pid == 0:
                break
            if pid == self._leader:
                code = os.waitstatus_to_exitcode(status)
                self._code = 128 - code if code < 0 else code
                linger = time.monotonic() + LINGER_SECONDS
                self._kill_at = linger if self._kill_at is None else min(self._kill_at, linger)
        return left or (not _LINUX and self._group_lives())

    def _group_lives(self) -> bool:
        try:
            os.killpg(self._leader, 0)
        except OSError:
            return False
        return True

    def _kill(self) -> None:
        with contextlib.suppress(OSError):
            os.killpg(self._leader, signal.SIGKILL)
        for pid in _descendants() if _LINUX else ():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)


def _descendants() -> list[int]:
    """Return all descendants. None can escape: orphans become our children."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 - pathlib takes a while to import
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123
                parent = int(file.read().rpartition(b")")[2].split()[1])
                children.setdefault(parent, []).append(int(name))
    result = list(children.get(os.getpid(), ()))
    for pid in result:
        result += children.get(pid, ())
    return result


def _order(line: socket.socket) -> "dict[str, Any] | None":
    """Read the first line; None if the service has closed the socket or died."""
    text = b""
    while not text.endswith(b"\n"):
        more = line.recv(65536, socket.MSG_PEEK)  # data after the line is read later
        if not more:
            return None
        text += line.recv(more.find(b"\n") + 1 or len(more))
    return json.loads(text)


def _become(order: "dict[str, Any]") -> None:
    try:
        os.setpgid(0, 0)
        _prctl(_PDEATHSIG, signal.SIGKILL)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        os.chdir(order["cwd"])
        os.execv(order["argv"][0], order["argv"])  # noqa: S606 - running commands is the purpose of this program
    except OSError as error:
        os.write(2, f"holdfast: cannot run the command: {error}\n".encode())
    finally:
        os._exit(_CANNOT_RUN)


def _prctl(option: int, value: int) -> None:
    if _LINUX:
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
