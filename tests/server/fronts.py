"""Real server processes: `holdfast serve` as a user starts it."""

import asyncio
import os
import re
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.forking import AsyncForked, start_forked
from tests.raw_client import AsyncClient

ROOT = Path(__file__).parents[2]


@dataclass
class Front:
    """One `holdfast serve`, where it is, and the token that it printed."""

    process: AsyncForked
    url: str
    token: str

    def client(self, token: str | None = None) -> AsyncClient:
        return AsyncClient(self.url, token or self.token)


@asynccontextmanager
async def front(
    store: str, *options: str, stderr: Any = None, **settings: Any
) -> AsyncGenerator[Front, None]:
    """Start a server on a free port and kill it in the end, if it still lives."""
    environment = os.environ | {f"HOLDFAST_{name.upper()}": str(value) for name, value in settings.items()}
    process = await start_forked(
        *(sys.executable, "-m", "holdfast", "serve", "--store", store, "--port", "0", *options),
        cwd=ROOT,
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=stderr,
        start_new_session=True,  # as from a terminal: whatever is typed there goes to all of the group
    )
    try:
        assert process.stdout is not None
        line = (await asyncio.wait_for(process.stdout.readline(), 30)).decode()
        found = re.search(r"serves at (\S+?)/(?:\?token=(\S+))?$", line.strip())
        assert found, line
        yield Front(process, found[1], found[2] or str(settings.get("token", "")))
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), 15)
        except TimeoutError:
            process.kill()
            await process.wait()
