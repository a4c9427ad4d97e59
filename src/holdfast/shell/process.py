"""One command as a process of this machine: its keeper, its pipes, and how everything of it is ended.

The keeper (keeper.py) leads a process session of its own. Whoever knows its pid and start time can find what is left of
the command, also after the service that started it has died.
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
"""The variable by which a command's processes know, and are known, whose they are."""
SHELL = shutil.which("bash") or "/bin/sh"


@dataclass(frozen=True, slots=True)
class Exit:
    """How a command ended: its code, and whether it was told to. No code: its keeper was killed."""

    code: int | None
    told: bool


class Process:
    """A command that runs. Made by `spawn`, which starts nothing but the keeper; `go` starts the command."""

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
        """Start a keeper; call it on a thread. Raises `OSError` when the machine has no room for one more."""
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
        """Let it run. A keeper that has died meanwhile is noticed by `exit`."""
        order = json.dumps({"argv": [SHELL, "-c", command], "cwd": cwd}).encode() + b"\n"
        with contextlib.suppress(OSError):
            await asyncio.get_running_loop().sock_sendall(self._line, order)

    async def exit(self) -> Exit:
        """Wait until nothing of it is left, and say how it ended."""
        text = b""
        with contextlib.suppress(OSError):
            while more := await asyncio.get_running_loop().sock_recv(self._line, 4096):
                text += more
        await asyncio.to_thread(self._popen.wait)
        if not text:
            await end(self._command_id, self.pid, self.started)
            return Exit(None, told=False)
        answer = json.loads(text)
        return Exit(answer["exit"], told=answer["told"])

    def terminate(self) -> None:
        """Tell it to end: SIGTERM to its group, a second later SIGKILL to all that is left."""
        self._tell(b"T")

    def kill(self) -> None:
        """End it at once."""
        self._tell(b"K")

    def close(self) -> None:
        """Hang up; a keeper that still lives kills its command. The pipes are closed by whoever reads them."""
        self._line.close()

    def abandon(self) -> None:
        """Drop a keeper that was not told to go; call it on a thread."""
        self._line.close()
        for pipe in self.pipes:
            os.close(pipe)
        self._popen.wait()

    def _tell(self, word: bytes) -> None:
        with contextlib.suppress(OSError):
            self._line.send(word)


def _pipe(on_error: contextlib.ExitStack, always: contextlib.ExitStack) -> tuple[int, int]:
    ours, theirs = os.pipe()
    on_error.callback(os.close, ours)
    always.callback(os.close, theirs)
    os.set_blocking(ours, False)
    if hasattr(fcntl, "F_SETPIPE_SZ"):
        with contextlib.suppress(OSError):  # beyond what this user may have
            fcntl.fcntl(ours, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    return ours, theirs


def this_host() -> str:
    """Return a name for where our process ids have a meaning: this machine, since it booted, in this container."""
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts.append(str(Path("/proc/self/ns/pid").readlink()))
    return " ".join(parts)


def started_at(pid: int) -> int | None:
    """Return when a process was started, in ticks since the boot; None if it is gone, or nobody can tell."""
    fields = _stat(pid)
    return None if fields is None or fields[0] == b"Z" else int(fields[19])


def lives(pid: int, started: int | None) -> bool:
    """Say whether this very process lives, not another one that has its pid by now."""
    return started is not None and started_at(pid) == started


async def end(command_id: str, pid: int, started: int | None) -> bool:
    """End what is left of a command: its keeper, and all of its process session. Say whether anything was alive."""
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
    """Return the processes of a session that carry the mark: its number may have been used again since."""
    members: list[int] = []
    for path in Path("/proc").glob("[0-9]*"):
        fields = _stat(int(path.name))
        if fields and int(fields[3]) == leader and fields[0] != b"Z":
            with contextlib.suppress(OSError):
                if mark in (path / "environ").read_bytes().split(b"\x00"):
                    members.append(int(path.name))
    return members


def _stat(pid: int) -> list[bytes] | None:
    """Return the fields of a process after its name: state, parent, group, session, … the start is the twentieth."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
