"""The peers of the steps benchmark, in an environment without holdfast, and the clock that every side uses.

`python -m benchmarks.steps_peers NAME URL` runs a worker. For each line `WORKFLOWS STEPS` on standard input it runs that many
workflows at once, and prints as a JSON list the seconds at which their steps began.
"""

import asyncio
import json
import logging
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from importlib import import_module
from typing import Any

MOST_WORKFLOWS = 64


class Clock:
    """Holds the workflows of a round until all of them are running, and notes when each step begins.

    A side can begin a step only after it has recorded the one before it. No side waits for results before the last step has
    begun, because watching and polling take time, too.
    """

    def __init__(self) -> None:
        self.began: list[float] = []
        self.steps = 0
        self.finished = asyncio.Event()
        self._awaited = 0
        self._all = 0

    def start(self, workflows: int, steps: int) -> None:
        """Begin a round."""
        self.began, self.steps, self._awaited = [], steps, workflows
        self._all = workflows * steps
        self.finished.clear()

    async def arrive(self) -> None:
        """Wait for the other workflows of the round."""
        self._awaited -= 1
        while self._awaited > 0:
            await asyncio.sleep(0.005)

    def note(self) -> dict[str, int]:
        """Do what a step does: return a small result."""
        self.began.append(time.perf_counter())
        if len(self.began) == self._all:
            self.finished.set()
        return {"number": len(self.began)}


clock = Clock()


async def serve_rounds(run_round: Callable[[int], Awaitable[None]]) -> None:
    """Run the rounds that standard input names, until it ends."""
    print("ready", flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        workflows, steps = map(int, line.split())
        clock.start(workflows, steps)
        async with asyncio.timeout(300):
            await run_round(workflows)
        assert len(clock.began) == workflows * steps, "a step ran twice, or not at all"
        print(json.dumps(clock.began), flush=True)


async def dbos(url: str) -> None:
    """Run workflows of DBOS with its default settings, in this event loop."""
    engine: Any = import_module("dbos").DBOS
    engine(config={"name": "bench", "system_database_url": url, "log_level": "ERROR"})

    @engine.step()
    async def note() -> dict[str, int]:
        return clock.note()

    @engine.workflow()
    async def work() -> None:
        await clock.arrive()
        for _ in range(clock.steps):
            await note()

    async def run_round(workflows: int) -> None:
        started = [await engine.start_workflow_async(work) for _ in range(workflows)]
        await clock.finished.wait()
        for workflow in started:
            await workflow.get_result()

    engine.launch()
    await serve_rounds(run_round)


async def absurd(url: str) -> None:
    """Run tasks of absurd with its default settings, except that one worker runs all tasks of a round at once."""
    async with await import_module("psycopg").AsyncConnection.connect(url, autocommit=True) as connection:
        await connection.execute(import_module("absurdctl").BUNDLED_SCHEMA_SQL)
    app: Any = import_module("absurd_sdk").AsyncAbsurd(url)
    await app.create_queue()

    async def note() -> dict[str, int]:
        return clock.note()

    @app.register_task("work")
    async def work(params: Any, ctx: Any) -> None:
        del params
        await clock.arrive()
        for _ in range(clock.steps):
            await ctx.step("note", note)

    del work

    async def run_round(workflows: int) -> None:
        spawned = [await app.spawn("work", {}) for _ in range(workflows)]
        # Started after the tasks are queued: a worker claims again only when its last batch has ended.
        worker = asyncio.create_task(app.start_worker(concurrency=MOST_WORKFLOWS, batch_size=workflows))
        try:
            await clock.finished.wait()
            for task in spawned:
                await app.await_task_result(task["task_id"])
        finally:
            app.stop_worker()
            await worker

    await serve_rounds(run_round)


def main(name: str, url: str) -> None:
    logging.disable(logging.WARNING)
    with suppress(KeyboardInterrupt):
        asyncio.run({"dbos": dbos, "absurd": absurd}[name](url))


if __name__ == "__main__":
    main(*sys.argv[1:])
