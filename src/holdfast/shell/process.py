"""One command as a process of this machine: its keeper, its pipes, and how to end all of its processes.

The keeper (keeper.py) leads its own process session. With its pid and start time, the remaining processes of the
command can be found even after the service that started it has died.
"""

import asyncio
import contextlib
import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from holdfast.shell import keeper

_PIPE_BYTES = 1024 * 1024
_END_SECONDS = keeper.GRACE_SECONDS + 2
MARK = "SHELL_COMMAND_ID"
"""The environment variable that marks the processes of a command with its id."""
SHELL = shutil.which("bash") or "/bin/sh"


@dataclass(frozen=True, slots=True)
class Exit:
    """How a command ended: its exit code, and whether it was requested to end. Without a code its keeper was killed."""

    code: int | None
    requested: bool


class Process:
    """A running command. `spawn` starts only the keeper; `go` starts the command."""

    def __init__(
        self,
        command_id: str,
        popen: "subprocess.Popen[bytes]",
        line: socket.socket,
        pipes: tuple[int, int],
    ) -> None:
        self._command_id = command_id
        self._popen = popen
        self._line = line
        self.pid = popen.pid
        self.started = started_at(popen.pid)
        self.pipes = pipes

    @classmethod
    def spawn(cls, command_id: str, environment: Mapping[str, str]) -> "Process":
        """Start a keeper; call this on a thread. Raise `OSError` when the machine has no resources for another process."""
        ours, theirs = socket.socketpair()
        with contextlib.ExitStack() as on_error, contextlib.ExitStack() as always, theirs:
            on_error.callback(ours.close)
            stdout, stdout_end = _pipe(on_error, always)
            stderr, stderr_end = _pipe(on_error, always)
            popen = subprocess.Popen(  # noqa: S603 - nothing in it comes from outside
                [sys.executable, "-I", "-S", keeper.__file__, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=stdout_end,
                stderr=stderr_end,
                pass_fds=(theirs.fileno(),),
                env={**environment, MARK: command_id},
                cwd="/",
                start_new_session=True,
            )
            ours.setblocking(False)
            process = cls(command_id, popen, ours, (stdout, stderr))
            on_error.pop_all()
        return process

    async def go(self, command: str, cwd: str) -> None:
        """Start the command. If the keeper has died meanwhile, `exit` detects it."""
        order = json.dumps({"argv": [SHELL, "-c", command], "cwd": cwd}).encode() + b"\n"
        with contextlib.suppress(OSError):
            await asyncio.get_running_loop().sock_sendall(self._line, order)

    async def exit(self) -> Exit:
        """Wait until no process of the command is left, and return how it ended."""
        text = b""
        with contextlib.suppress(OSError):
            while more := await asyncio.get_running_loop().sock_recv(self._line, 4096):
                text += more
        await asyncio.to_thread(self._popen.wait)
        if not text:
            await end(self._command_id, self.pid, self.started)
            return Exit(None, requested=False)
        answer = json.loads(text)
        return Exit(answer["exit"], requested=answer["requested"])

    def terminate(self) -> None:
        """Send SIGTERM to its process group, and one second later SIGKILL to all remaining processes."""
        self._send(b"T")

    def kill(self) -> None:
        """Kill it at once."""
        self._send(b"K")

    def close(self) -> None:
        """Close the socket; a keeper that is still alive kills its command. The reader of the pipes closes them."""
        self._line.close()

    def abandon(self) -> None:
        """Drop a keeper that has not started its command; call this on a thread."""
        self._line.close()
        for pipe in self.pipes:
            os.close(pipe)
        self._popen.wait()

    def _send(self, word: bytes) -> None:
        with contextlib.suppress(OSError):
            self._line.send(word)


def _pipe(on_error: contextlib.ExitStack, always: contextlib.ExitStack) -> tuple[int, int]:
    ours, theirs = os.pipe()
    on_error.callback(os.close, ours)
    always.callback(os.close, theirs)
    os.set_blocking(ours, False)
    if hasattr(fcntl, "F_SETPIPE_SZ"):
        with contextlib.suppress(OSError):  # above the limit of this user
            fcntl.fcntl(ours, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    return ours, theirs


def this_host() -> str:
    """Return a name for the scope in which our process ids are valid: this machine, since its boot, in this container."""
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts.append(str(Path("/proc/self/ns/pid").readlink()))
    return " ".join(parts)


def started_at(pid: int) -> int | None:
    """Return when a process was started, in ticks since the boot; None if it has exited or the system cannot tell."""
    fields = _stat(pid)
    return None if fields is None or fields[0] == b"Z" else int(fields[19])


def lives(pid: int, started: int | None) -> bool:
    """Return whether this process is alive, and not another one that reuses its pid."""
    return started is not None and started_at(pid) == started


async def end(command_id: str, pid: int, started: int | None) -> bool:
    """End the keeper of a command and its whole process session. Return whether any process was alive."""
    result = False
    if lives(pid, started):
        result = True
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGTERM)
        deadline = asyncio.get_running_loop().time() + _END_SECONDS
        while lives(pid, started) and asyncio.get_running_loop().time() < deadline:  # noqa: ASYNC110 - not our child
            await asyncio.sleep(0.01)
    while started is not None and (members := _session(pid, f"{MARK}={command_id}".encode())):
        result = True
        for member in members:
            with contextlib.suppress(OSError):
                os.kill(member, signal.SIGKILL)
        await asyncio.sleep(0.01)
    return result


def _session(leader: int, mark: bytes) -> list[int]:
    """Return the processes of a session that have the mark: the session id may have been reused."""
    members: list[int] = []
    for path in Path("/proc").glob("[0-9]*"):
        fields = _stat(int(path.name))
        if fields and int(fields[3]) == leader and fields[0] != b"Z":
            with contextlib.suppress(OSError):
                if mark in (path / "environ").read_bytes().split(b"\x00"):
                    members.append(int(path.name))
    return members


def _stat(pid: int) -> list[bytes] | None:
    """Return the fields of a process after its name: state, parent, group, session, …; the start time is the twentieth."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
