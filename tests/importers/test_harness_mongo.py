"""The collections that `MongoStepStore` of pydantic-ai-harness 0.62.0 really wrote, on a real server."""

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Generator
from contextlib import ExitStack
from importlib import import_module
from importlib.util import find_spec
from typing import Any
from uuid import uuid4

import pytest

from holdfast.errors import BadImport
from holdfast.importers import import_harness
from holdfast.importers.harness_address import open_source
from holdfast.media import open_media
from holdfast.store import open_store
from tests.importers.sources import HARNESS
from tests.importers.test_harness import NAMES, last, sessions
from tests.servers import free_port

SERVER = os.environ.get("HOLDFAST_TEST_MONGODB") or shutil.which("mongod")
MISSING = [
    *([] if SERVER else ["a server: set HOLDFAST_TEST_MONGODB to its URL, or put mongod on the PATH"]),
    *([] if find_spec("pymongo") else ["PyMongo: the extra mongo"]),
]
pytestmark = [
    pytest.mark.skipif(bool(MISSING), reason=f"importing from MongoDB needs {' and '.join(MISSING)}"),
    pytest.mark.timeout(400),  # in an emulator on a busy machine
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[str, None, None]:
    with ExitStack() as stack:
        url = os.environ.get("HOLDFAST_TEST_MONGODB")
        if url is None:
            folder = tmp_path_factory.mktemp("mongod")
            port = free_port()
            command = [
                "mongod",
                "--dbpath",
                str(folder),
                "--port",
                str(port),
                "--bind_ip",
                "127.0.0.1",
                "--nounixsocket",
            ]
            process = stack.enter_context(subprocess.Popen(command, stdout=subprocess.DEVNULL))
            stack.callback(process.kill)
            url = f"mongodb://127.0.0.1:{port}"
        yield url


@pytest.fixture
def source(server: str) -> Generator[tuple[str, str], None, None]:
    """A database with what the harness wrote: its URL, and its name."""

    def binary(value: dict[str, Any]) -> Any:
        return base64.b64decode(value["base64"]) if set(value) == {"base64"} else value

    name = f"harness_{uuid4().hex}"
    pymongo: Any = import_module("pymongo")
    with pymongo.MongoClient(server, serverSelectionTimeoutMS=300_000) as client:
        made = json.loads((HARNESS / "mongo.json").read_text(), object_hook=binary)
        for collection, documents in made.items():
            client[name][collection].insert_many(documents)
        yield server, name
        client.drop_database(name)


async def test_every_conversation_is_a_session(source: tuple[str, str]):
    address, name = source
    async with open_store("sqlite://:memory:") as store, open_source(address, database=name) as found:
        report = await import_harness(store, open_media(store=store), found, actor="test")
        assert (report.found, report.imported) == (7, 7)
        assert await sessions(store) == NAMES
        assert report.records["effects"] == 13
        assert await store.check() == []
        _, messages = await last(store, "talk")
        assert messages[8].parts[0].content == "GRÜSSE" * 40  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
        again = await import_harness(store, open_media(store=store), found, actor="test")
        assert (again.imported, again.already_present) == (0, 7)


async def test_what_is_no_step_store_is_refused(source: tuple[str, str]):
    address, _ = source
    async with open_store("sqlite://:memory:") as store:
        with pytest.raises(BadImport, match="no collection named runs"):
            async with open_source(address, database="empty") as found:
                await import_harness(store, open_media(store=store), found, actor="test")
        with pytest.raises(BadImport, match="name the database"):
            async with open_source(address.partition("?")[0].rstrip("/")):
                pass
