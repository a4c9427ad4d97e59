"""The commands of docs/how-to/backup.md, run while sessions run. The original is destroyed, and the copy continues."""

import asyncio
import os
import re
import sys
import urllib.request
from collections.abc import Generator, Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import obstore
import pytest
from obstore.store import S3Store

from holdfast import Store, connect
from holdfast.config import load_settings
from holdfast.media import open_media
from holdfast.store import open_store
from tests.builders import until
from tests.promises.workers import ROOT, worker
from tests.servers import Postgres, postgres, seaweedfs

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(300)]

_PAGE = ROOT / "docs" / "how-to" / "backup.md"
_APP = "tests.promises.backup_agents:agent"
_CALLS = 30
_AWS = f"""#!/bin/sh
exec {sys.executable} -c "import sys; from tests.promises.test_backup import sync; sync(*sys.argv[-2:])" "$@"
"""


def bucket(url: str) -> S3Store:
    endpoint, region = os.environ["AWS_ENDPOINT_URL"], os.environ["AWS_REGION"]
    return S3Store.from_url(url, endpoint=endpoint, region=region, client_options={"allow_http": True})


def keys(objects: Any) -> set[str]:
    return {meta["path"] for page in objects.list() for meta in page}


def sync(source: str, target: str) -> None:
    """Copy the objects that the target does not have, as `aws s3 sync` does."""
    objects, copies = bucket(source), bucket(target)
    for key in keys(objects) - keys(copies):
        obstore.put(copies, key, obstore.get(objects, key).bytes())


@pytest.fixture(autouse=True)
def _buckets(monkeypatch: pytest.MonkeyPatch) -> Generator[None, None, None]:
    """Run an S3 server with the buckets of the page."""
    with seaweedfs() as server:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        for name in ("backup", "restored"):
            made = obstore.sign(bucket(f"s3://{name}"), "PUT", "", timedelta(seconds=60))
            with urllib.request.urlopen(urllib.request.Request(made, method="PUT"), timeout=10):
                pass
        yield


@pytest.fixture
def server() -> Generator[Postgres, None, None]:
    with postgres(syncs=False) as started:
        yield started


async def run(section: str, server: Postgres, folder: Path) -> None:
    """Run the commands in a section of the page."""
    (text,) = re.findall(rf"^## {section}\n(.*?)^## ", _PAGE.read_text(), re.MULTILINE | re.DOTALL)
    script = "\n".join(re.findall(r"^(?: {4}| {8})(\S.*)$", text, re.MULTILINE))
    (folder / "aws").write_text(_AWS)
    (folder / "aws").chmod(0o755)
    path = [str(folder), str(server._binaries), str(Path(sys.executable).parent), os.environ["PATH"]]
    process = await asyncio.create_subprocess_exec(
        *("bash", "-exc", script.replace("postgresql://holdfast@db/", server.url(""))),
        cwd=folder,
        env=os.environ | {"PATH": ":".join(path), "PYTHONPATH": str(ROOT)},
    )
    assert await process.wait() == 0


async def destroy(server: Postgres) -> None:
    """Delete the original database, and its media."""
    connection = await asyncpg.connect(server.url())
    await connection.execute("DROP DATABASE holdfast WITH (FORCE)")
    await connection.close()
    media = bucket("s3://media/holdfast")
    obstore.delete(media, [*keys(media)])


async def draws(store: Store, session: str) -> int:
    """Read all media of a session, which checks its digests, and return the number."""
    media = open_media(store=store)
    references = await store.references(session_id=session)
    for _, digest in references:
        await media.get(f"media+sha256://{digest}")
    return len(references)


async def statuses(store: Store, sessions: Iterable[str]) -> set[str]:
    return {(await store.session(session)).status for session in sessions}


async def test_a_backup_of_running_sessions_continues_in_a_new_database_and_bucket(
    server: Postgres, tmp_path: Path
):
    original, restored = await server.create_database("holdfast"), server.url("restored")
    media = "s3://media/holdfast"
    async with open_store(original, settings=load_settings(media=media)) as store:
        sessions = [(await store.create_session(agent="painter", owner="local")).id for _ in range(5)]
        quick, stopped, *slow = sessions
        async with worker(original, app=_APP, media=media):
            await store.submit(quick, "message", '{"text": "draw 2"}')
            for session in (stopped, *slow):
                await store.submit(session, "message", f'{{"text": "draw {_CALLS}"}}')
            soon = datetime.now(UTC) + timedelta(seconds=30)
            later = await store.submit(quick, "message", '{"text": "again"}', deliver_at=soon)

            async def have_drawn() -> bool:
                return min([await draws(store, session) for session in sessions]) >= 2

            await until(have_drawn)
            await run("Back up PostgreSQL and a bucket", server, tmp_path)
    await destroy(server)
    await run("Restore", server, tmp_path)

    async with open_store(restored, settings=load_settings(media="s3://restored/holdfast")) as store:
        # As of the dump; queued as soon as the lease of the dead worker has expired.
        assert await statuses(store, [stopped, *slow]) <= {"running", "queued"}
        assert (await store.submission(later.id)).state == "queued"
        before = {session: await draws(store, session) for session in sessions}
        assert all(2 <= count < _CALLS for count in before.values())
        async with connect(store) as client:
            await (await client.session(stopped)).interrupt()
        async with worker(restored, app=_APP, media="s3://restored/holdfast"):

            async def have_ended() -> bool:
                delivered = (await store.submission(later.id)).state == "done"
                return delivered and await statuses(store, sessions) <= {"idle", "failed"}

            await until(have_ended, 120)
        assert await statuses(store, sessions) == {"idle"}
        for session in slow:
            kinds = {event.kind for event in await store.events(session, limit=1000)}
            assert {"takeover", "run_completed"} <= kinds
            assert await draws(store, session) >= _CALLS - 1  # a call that was cut off has no result
        assert await draws(store, stopped) <= before[stopped] + 1
        assert await draws(store, quick) == 2
        assert await store.check() == []
