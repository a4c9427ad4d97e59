"""PgBouncer in front of a PostgreSQL server, on loopback. Where it is not installed, its tests take no part, and say so."""

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
from pathlib import Path
from typing import Any

from tests.servers import free_port


def missing() -> str | None:
    """Say what the tests need and is not here."""
    if pgbouncer() is None:
        return "there is no pgbouncer (Debian: apt-get install -y --no-install-recommends pgbouncer)"
    return None


def pgbouncer() -> str | None:
    """Return the program. Debian keeps it where only root looks."""
    return shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


class PgBouncer:
    """A pooler with few connections to its server. It can be pointed at another one while clients are connected."""

    def __init__(self, folder: Path, server_port: int, *, mode: str, size: int) -> None:
        self._folder = folder
        self._mode = mode
        self._size = size
        self._process: subprocess.Popen[Any] | None = None
        self.port = free_port()
        self._write(server_port)

    def url(self, database: str = "postgres", pooler: str | None = None) -> str:
        query = f"?pooler={pooler}" if pooler else ""
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}{query}"

    def start(self) -> None:
        user: dict[str, Any] = {}
        if os.geteuid() == 0:  # it refuses to run as root
            nobody = pwd.getpwnam("nobody")
            user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
        with (self._folder / "log").open("ab") as log:
            process = self._process = subprocess.Popen(
                [pgbouncer() or "pgbouncer", "config.ini"], stdout=log, stderr=log, cwd=self._folder, **user
            )
        deadline = time.monotonic() + 30
        while not self._answers():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("PgBouncer did not start:\n" + (self._folder / "log").read_text())
            time.sleep(0.02)

    def point_at(self, server_port: int) -> None:
        """Send everything to another server from now on, as an operator does after a failover."""
        assert self._process is not None
        self._write(server_port)
        self._process.send_signal(signal.SIGHUP)

    def end(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(timeout=30)

    def _write(self, server_port: int) -> None:
        (self._folder / "users.txt").write_text('"postgres" ""\n')
        settings = {
            "listen_addr": "127.0.0.1",
            "listen_port": self.port,
            "unix_socket_dir": "",
            "auth_type": "trust",
            "auth_file": self._folder / "users.txt",
            "pool_mode": self._mode,
            "default_pool_size": self._size,
            "max_client_conn": 500,
            "server_login_retry": 1,
        }
        lines = [f"{name} = {value}" for name, value in settings.items()]
        databases = f"[databases]\n* = host=127.0.0.1 port={server_port}\n"
        (self._folder / "config.ini").write_text(databases + "[pgbouncer]\n" + "\n".join(lines) + "\n")

    def _answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


@contextmanager
def pooled(server_port: int, *, mode: str = "transaction", size: int = 4) -> Generator[PgBouncer, None, None]:
    """Run a pooler in front of a server for the duration of the block."""
    folder = Path(tempfile.mkdtemp(prefix="holdfast-pgbouncer-"))
    folder.chmod(0o755)
    try:
        pooler = PgBouncer(folder, server_port, mode=mode, size=size)
        pooler.start()
        try:
            yield pooler
        finally:
            pooler.end()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
