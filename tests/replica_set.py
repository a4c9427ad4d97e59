"""A MongoDB replica set of three members, whose primary is killed and comes back as a secondary."""

import shutil
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.servers import EMULATED, Mongo, mongo_url

_ELECTION_MS = 5_000 if EMULATED else 2_000
"""How long the secondaries wait for a silent primary. In an emulator a busy primary is silent for seconds."""
_PATIENCE_SECONDS = 300


class ReplicaSet:
    """Three members with data, any of which can be elected."""

    def __init__(self, folder: Path) -> None:
        self.members: list[Mongo] = []
        for name in ("a", "b", "c"):
            (folder / name).mkdir()
            self.members.append(Mongo(folder / name))
        self._running: list[Mongo] = []

    def url(self, database: str = "test") -> str:
        return f"{mongo_url(self.members, database)}&replicaSet=rs0"

    def start(self) -> None:
        for member in self.members:
            member.launch()
            self._running.append(member)
        for member in self.members:
            member.wait(lambda member=member: bool(member.command("hello")))
        places = [{"_id": n, "host": f"127.0.0.1:{m.port}"} for n, m in enumerate(self.members)]
        settings = {"electionTimeoutMillis": _ELECTION_MS}
        first = self.members[0]
        made: dict[str, Any] = {"_id": "rs0", "members": places, "settings": settings}
        first.wait(
            lambda: bool(first.command("replSetInitiate", made) or first.command("hello").get("setName"))
        )
        for member in self.members:
            member.wait(lambda member=member: _has_joined(member))
        self.elected()

    def elected(self) -> Mongo:
        """Wait until a member accepts writes, and return it."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while time.monotonic() < deadline:
            for member in self._running:
                if member.command("hello").get("isWritablePrimary"):
                    return member
            time.sleep(0.05)
        raise RuntimeError("The members of the replica set have not elected a primary.")

    def kill_primary(self) -> Mongo:
        """End the primary as a power cut would, and return it."""
        primary = self.elected()
        self._running.remove(primary)
        primary.kill()
        return primary

    def rejoin(self, member: Mongo) -> None:
        """Start a killed member, and wait until it follows the primary."""
        member.launch()
        self._running.append(member)
        member.wait(lambda: _has_joined(member))

    def end(self) -> None:
        for member in self._running:
            member.kill()


def _has_joined(member: Mongo) -> bool:
    hello = member.command("hello")
    return bool(hello.get("secondary") or hello.get("isWritablePrimary"))


@contextmanager
def replica_set() -> Generator[ReplicaSet, None, None]:
    """Run a replica set of three for the duration of the block."""
    folder = Path(tempfile.mkdtemp(prefix="holdfast-mongo-"))
    try:
        members = ReplicaSet(folder)
        try:
            members.start()
            yield members
        finally:
            members.end()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
