"""The TypeScript client, compiled and installed as a package, in node, against a real server and worker."""

import asyncio
import os
import re
import shutil
import subprocess
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from holdfast import Store
from holdfast.config import load_settings
from holdfast.server import create_app
from holdfast.server.auth import digest
from tests.browser.app import agent
from tests.server.serving import serving, working
from tests.typescript.conftest import PACKAGES

pytestmark = pytest.mark.processes
TOKEN = "hf_of-the-typescript-client"
CLIENT = Path(__file__).parents[2] / "clients" / "typescript"


@pytest.fixture(scope="module")
def compiled() -> Path:
    """Compile the client into a package, and the tests and the example of its README with that package."""
    package = PACKAGES / "node_modules" / "holdfast-client"
    shutil.rmtree(package, ignore_errors=True)
    package.mkdir()
    shutil.copy(CLIENT / "package.json", package)
    tsc = PACKAGES / "node_modules" / ".bin" / "tsc"
    subprocess.run([tsc, "--project", CLIENT, "--outDir", package / "dist"], check=True)
    for name in ("tsconfig.json", "client.test.ts"):
        shutil.copy(Path(__file__).with_name(name), PACKAGES)
    (example,) = re.findall(
        r"^```ts\n(.*?)^```", (CLIENT / "README.md").read_text(), re.DOTALL | re.MULTILINE
    )
    (PACKAGES / "example.ts").write_text(example)
    (PACKAGES / "package.json").write_text('{"type": "module"}')
    subprocess.run([tsc, "--project", PACKAGES], check=True)
    return PACKAGES


@pytest.fixture
async def url(store: Store) -> AsyncGenerator[str, None]:
    await store.add_token(digest(TOKEN), owner="ada", scopes=["read", "write"])
    async with serving(create_app(load_settings(), store, ["agent"])) as served, working(store, agent):
        yield served


async def node(folder: Path, url: str, *arguments: str) -> str:
    """Run node to its end, and return what it prints."""
    process = await asyncio.create_subprocess_exec(
        "node",
        *arguments,
        cwd=folder,
        env=os.environ | {"HOLDFAST_URL": url, "HOLDFAST_TOKEN": TOKEN},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(90):
            output = (await process.communicate())[0].decode()
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0, output
    return output


async def test_the_client_does_what_the_server_offers(compiled: Path, url: str):
    output = await node(compiled, url, "--test", "--test-reporter=tap", "client.test.js")
    assert "# fail 0" in output
    assert "# pass 0" not in output


async def test_the_example_of_the_readme(compiled: Path, url: str):
    printed = (await node(compiled, url, "example.js")).splitlines()
    assert printed[0] == "ended after 1: removed notes.txt"
    assert printed[1] == "1 submission_queued"
    assert printed[-1].endswith(" submission_done")
