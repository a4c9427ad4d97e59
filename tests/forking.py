"""Starts Python processes quickly: a server has imported what takes long, and forks.

`Forked` is a `subprocess.Popen` for `python -m module`, `python -c program` and the `holdfast` command. The process is a real
one: it has its own pid, signals, working directory, environment and files. Where the environment changes what imports do, and on
other systems than Linux, it is an ordinary process.
"""

import asyncio
import atexit
import gc
import importlib
import inspect
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import types
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

LIBRARIES = (
    "asyncpg",
    "cryptography.hazmat.primitives.ciphers.aead",
    "fastapi",
    "jwt",
    "obstore",
    "pydantic_ai.models.function",
    "pydantic_ai.models.test",
    "pydantic_ai.ui.ag_ui",
    "pydantic_ai.ui.vercel_ai",
    "pydantic_settings",
    "pymongo",
    "rich.console",
    "rich.markdown",
    "rich.table",
    "typer",
    "uvicorn",
    "websockets",
    "holdfast.cli",
    "holdfast.client.sync",
    "holdfast.record",
    "holdfast.runtime.worker",
    "holdfast.server",
    "holdfast.store.mongo.store",
    "holdfast.store.postgres.store",
    "holdfast.store.sqlite.store",
)
_IMPORTS = ("PROMETHEUS_MULTIPROC_DIR", "PYTHONPATH")
"""The variables of the environment that change what an import does."""
COMMAND = Path(sys.executable).parent / "holdfast"
_IMPORTED = [os.environ.get(name) for name in _IMPORTS]
_LENGTH = 8
_server: "tuple[int, socket.socket] | None" = None
_lock = threading.Lock()


class Forked(subprocess.Popen[Any]):
    """A process that the fork server starts, with the interface of `subprocess.Popen`."""

    _status: socket.socket | None = None

    def _execute_child(self, *given: Any) -> None:
        """Start the process. Its name and parameters are those that `Popen` calls."""
        start = super()._execute_child  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownVariableType]
        named: dict[str, Any] = inspect.signature(start).bind(*given).arguments  # pyright: ignore[reportUnknownArgumentType]
        program = _program(named["args"])
        environment = dict(named["env"] if named["env"] is not None else os.environ)
        imports_alike = [environment.get(name) for name in _IMPORTS] == _IMPORTED
        if program is None or not imports_alike or not sys.platform.startswith("linux"):
            start(*given)
            return
        pipes = [named["p2cread"], named["c2pwrite"], named["errwrite"]]
        files = [number if pipe == -1 else pipe for number, pipe in enumerate(pipes)]
        asked = {
            **program,
            "cwd": os.fspath(named["cwd"] or Path.cwd()),
            "env": environment,
            "session": bool(named["start_new_session"]),
        }
        self._status = _ask(asked, files)
        self.pid = int.from_bytes(_exactly(self._status, _LENGTH))
        self._child_created = True
        names = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(named[name] for name in names))  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]

    def _internal_poll(self, *given: Any, **more: Any) -> int | None:
        if self._status is None:
            return super()._internal_poll(*given, **more)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownVariableType]
        if self.returncode is None:
            _, status = self._try_wait(os.WNOHANG)
            if status is not None:
                self._handle_exitstatus(status)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
        return self.returncode

    def _try_wait(self, wait_flags: int) -> tuple[int, Any]:
        if self._status is None:
            return super()._try_wait(wait_flags)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownVariableType]
        if wait_flags & os.WNOHANG and not select.select([self._status], [], [], 0)[0]:
            return 0, None
        status = int.from_bytes(_exactly(self._status, _LENGTH))
        self._status.close()
        return self.pid, status


class AsyncForked:
    """The same with the part of `asyncio.subprocess.Process` that the tests use."""

    def __init__(self, process: Forked) -> None:
        self._process = process
        self.pid = process.pid
        self.stdin: asyncio.StreamWriter | None = None
        self.stdout: asyncio.StreamReader | None = None
        self.stderr: asyncio.StreamReader | None = None

    async def open(self) -> Self:
        self.stdin = await _writer(self._process.stdin)
        self.stdout = await _reader(self._process.stdout)
        self.stderr = await _reader(self._process.stderr)
        return self

    @property
    def returncode(self) -> int | None:
        return self._process.poll()

    async def wait(self) -> int:
        while (code := self._process.poll()) is None:
            await asyncio.sleep(0.005)
        return code

    async def communicate(self) -> tuple[bytes, bytes]:
        if self.stdin is not None:
            self.stdin.close()
        out, err = await asyncio.gather(*(_rest(stream) for stream in (self.stdout, self.stderr)))
        await self.wait()
        return out, err

    def send_signal(self, number: int) -> None:
        if self._process.poll() is not None:
            raise ProcessLookupError
        os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


async def start_forked(*arguments: str | Path, **options: Any) -> AsyncForked:
    """Start a process, as `asyncio.create_subprocess_exec` does."""
    return await AsyncForked(Forked(arguments, bufsize=0, **options)).open()


async def _reader(pipe: Any) -> asyncio.StreamReader | None:
    if pipe is None:
        return None
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    return reader


async def _writer(pipe: Any) -> asyncio.StreamWriter | None:
    if pipe is None:
        return None
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, pipe)
    return asyncio.StreamWriter(transport, protocol, None, loop)


async def _rest(stream: asyncio.StreamReader | None) -> bytes:
    return b"" if stream is None else await stream.read()


def run(
    command: Sequence[str | Path], *, timeout: float = 60, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, as `subprocess.run` does, and return its output as text."""
    process = Forked(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )
    with process:
        try:
            stdout, stderr = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)


def _program(command: Any) -> dict[str, Any] | None:
    """Return the kind of program that a command runs, the program and its arguments, if it runs one of Python."""
    words: list[str] = [os.fspath(word) for word in command]
    if words[0] == os.fspath(COMMAND):
        return {"kind": "command", "program": "", "argv": words}
    if words[:2] == [sys.executable, "-m"]:
        return {"kind": "module", "program": words[2], "argv": words[2:]}
    if words[:2] == [sys.executable, "-c"]:
        return {"kind": "text", "program": words[2], "argv": ["-c", *words[3:]]}
    return None


def _ask(asked: Mapping[str, Any], files: list[int]) -> socket.socket:
    global _server  # noqa: PLW0603 - one for each process that runs tests
    with _lock:
        if _server is None or _server[0] != os.getpid():
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.forking", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                cwd=Path(__file__).parents[1],
                stdin=subprocess.DEVNULL,
            )
            theirs.close()
            _server = os.getpid(), ours
            atexit.register(_stop, ours, process)
        status, theirs = socket.socketpair()
        body = json.dumps(asked).encode()
        socket.send_fds(_server[1], [len(body).to_bytes(_LENGTH)], [*files, theirs.fileno()])
        status.sendall(body)
        theirs.close()
    return status


def _stop(asking: socket.socket, server: "subprocess.Popen[bytes]") -> None:
    asking.close()
    server.wait()


def _exactly(source: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = source.recv(count - len(data))
        if not piece:
            message = "the fork server has ended"
            raise OSError(message)
        data += piece
    return data


def serve(asking: socket.socket) -> None:
    """Fork a process for each request, until the test run closes its end of the socket."""
    for name in LIBRARIES:
        with suppress(ImportError):
            importlib.import_module(name)
    gc.freeze()
    children: dict[int, socket.socket] = {}
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, _woken)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        ready, _, _ = select.select([asking, woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
            _reap(children)
        if asking in ready:
            length, files, _, _ = socket.recv_fds(asking, _LENGTH, 4)
            if not length:
                return
            told = socket.socket(fileno=files.pop())
            asked = json.loads(_exactly(told, int.from_bytes(length)))
            if not (pid := os.fork()):
                asking.close()
                for other in children.values():
                    other.close()
                told.close()
                _become(asked, files)
            for file in files:
                os.close(file)
            told.sendall(pid.to_bytes(_LENGTH))
            children[pid] = told


def _woken(*_: object) -> None:
    """Do nothing: that a signal has come is in the pipe."""


def _reap(children: dict[int, socket.socket]) -> None:
    while children:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        with children.pop(pid) as told, suppress(OSError):
            told.sendall(status.to_bytes(_LENGTH))


def _become(asked: Mapping[str, Any], files: list[int]) -> None:
    """Be the process that was asked for, and end as it ends."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGINT):
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    if asked["session"]:
        os.setsid()
    for number, file in enumerate(files):
        os.dup2(file, number, inheritable=True)
    os.closerange(3, max(files) + 1)
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["env"])
    sys.dont_write_bytecode = bool(asked["env"].get("PYTHONDONTWRITEBYTECODE"))
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w", buffering=-1), open(2, "w", buffering=1)  # noqa: SIM115
    sys.argv = asked["argv"]
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    sys.path[0] = asked["cwd"]
    code = 1
    try:
        match asked["kind"]:
            case "module":
                runpy.run_module(asked["program"], run_name="__main__", alter_sys=True)
            case "text":
                exec(compile(asked["program"], "<string>", "exec"), vars(main))
            case _:
                sys.exit(importlib.import_module("holdfast.cli").main())
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else _said(end.code)
    except BaseException as error:  # noqa: BLE001 - as the interpreter does
        sys.excepthook(type(error), error, error.__traceback__)
        code = 130 if isinstance(error, KeyboardInterrupt) else 1
    finally:
        with suppress(Exception):
            threading._shutdown()  # type: ignore[attr-defined]
        with suppress(Exception):
            atexit._run_exitfuncs()
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _said(reason: object) -> int:
    print(reason, file=sys.stderr)
    return 1


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as given:
        serve(given)
