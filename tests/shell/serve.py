"""A shell service in a process of its own: `python -m tests.shell.serve URL COMMAND…`. Says one line per command."""

import asyncio
import json
import sys

from holdfast.shell import ShellService
from holdfast.store import open_store


async def main(url: str, *commands: str) -> None:
    async with open_store(url) as store, ShellService(store) as service:
        for command in commands:
            started = await service.start(command)
            print(json.dumps({"id": started.id, "pid": started.pid}), flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
