"""A process whose code does not have the latest migration: `python -m tests.upgrade.earlier URL`.

One JSON object per line comes in, one goes out: `submit` creates a session and sends it a message, `serve` starts a worker.
"""

import asyncio
import json
import sys
from typing import Any

from holdfast.runtime import Worker
from holdfast.store import open_store
from tests.upgrade.app import agent


async def main(url: str) -> None:
    async with open_store(url) as store:
        serving: asyncio.Task[Any] | None = None
        worker = Worker(store, agent, name="an earlier worker")
        print(json.dumps({"version": (await store.schema()).version}), flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            order = json.loads(line)
            if "submit" in order:
                session = order["submit"]
                await store.create_session(agent="agent", owner="you", id=session, exist_ok=True)
                sent = await store.submit(session, "message", json.dumps({"text": order["text"]}))
                print(json.dumps({"submission": sent.id}), flush=True)
            elif "serve" in order:
                serving = asyncio.create_task(worker.run())
                print(json.dumps({"serves": True}), flush=True)
        if serving is not None:
            worker.stop()
            await serving


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
