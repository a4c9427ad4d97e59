"""`holdfast mirror`, as a person runs it, and what a clean prints while files are left."""

import json
import os
import subprocess
import sys

import pytest

from holdfast.media import open_media
from holdfast.retention import clean
from holdfast.store import Store
from tests import forking
from tests.conftest import Engine
from tests.promises.sessions import fill

pytestmark = pytest.mark.processes


def holdfast(engine: Engine, *arguments: str) -> subprocess.CompletedProcess[str]:
    return forking.run(
        [sys.executable, "-m", "holdfast", *arguments, "--store", engine.url],
        env=os.environ | {"COLUMNS": "200"},
    )


async def test_mirrors_are_listed_and_forgotten(store: Store, engine: Engine):
    session_id = await fill(store, open_media(store=store), ["hello"])
    other = await fill(store, open_media(store=store), ["hello"])
    for each in (session_id, other):
        assert await store.begin_mirroring("front", each)
    cleaned = holdfast(engine, "sessions", "clean", session_id, "--force", "--yes")
    assert cleaned.returncode == 0
    assert "Files in a mirror are not deleted yet" in cleaned.stdout
    assert (await clean(store, open_media(store=store), session_id, actor="test")).files_pending
    listed = holdfast(engine, "mirror", "list", "--json")
    assert json.loads(listed.stdout) == {"mirrors": [{"name": "front", "to_delete": 1}]}
    assert "front" in holdfast(engine, "mirror", "list").stdout
    forgotten = holdfast(engine, "mirror", "forget", "front", "--yes")
    assert forgotten.stdout == "Forgot the mirror front with 2 sessions.\n"
    assert not (await clean(store, open_media(store=store), session_id, actor="test")).files_pending
    again = holdfast(engine, "mirror", "forget", "front", "--yes")
    assert again.returncode == 2
