"""What the runtime is measured against, in an environment that has no holdfast: job queues that do one job each.

`python -m benchmarks.runtime_peers NAME worker URL` serves jobs until it is killed, `… client URL COUNT JOB` enqueues
them when it is told to on standard input. A job is `agent`, which runs the agent of the benchmark once, or `nothing`.
"""

import asyncio
import logging
import sys
import time
from importlib import import_module
from typing import Any

from benchmarks.runtime_app import agent

CONCURRENCY = 100
ENQUEUE_AT_ONCE = 32


async def _do(job: str) -> str:
    return "ok" if job == "nothing" else (await agent.run("hello")).output


async def _warm_up() -> None:
    """Run the agent once: what is imported on the way is not what is measured."""
    await agent.run("hello")
    print("ready", flush=True)


async def enqueue_all(enqueue: Any, count: int) -> None:
    """Say that we are ready; when told to go, send the jobs, so many at once. Then say how long that took on a processor."""
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    began = time.process_time()
    numbers = iter(range(count))

    async def send() -> None:
        for _ in numbers:
            await enqueue()

    await asyncio.gather(*(send() for _ in range(ENQUEUE_AT_ONCE)))
    print(time.process_time() - began, flush=True)


def _procrastinate(url: str) -> Any:
    peer: Any = import_module("procrastinate")
    app = peer.App(connector=peer.PsycopgConnector(conninfo=url, min_size=4, max_size=20))
    app.task(_do, name="do")
    return app


async def procrastinate_worker(url: str) -> None:
    async with _procrastinate(url).open_async() as app:
        await _warm_up()
        await app.run_worker_async(concurrency=CONCURRENCY)


async def procrastinate_client(url: str, count: int, job: str) -> None:
    async with _procrastinate(url).open_async() as app:
        await enqueue_all(lambda: app.configure_task("do").defer_async(job=job), count)


async def procrastinate_schema(url: str) -> None:
    async with _procrastinate(url).open_async() as app:
        await app.schema_manager.apply_schema_async()


async def dbos_worker(url: str) -> None:
    engine: Any = import_module("dbos").DBOS
    engine(config={"name": "bench", "system_database_url": url, "log_level": "ERROR", "sys_db_pool_size": 20})
    engine.workflow(name="do")(_do)
    engine.launch()
    await engine.register_queue_async("bench", worker_concurrency=CONCURRENCY, polling_interval_sec=0.05)
    await _warm_up()
    await asyncio.Event().wait()


async def dbos_client(url: str, count: int, job: str) -> None:
    client: Any = import_module("dbos").DBOSClient(system_database_url=url)
    options = {"queue_name": "bench", "workflow_name": "do"}
    await enqueue_all(lambda: client.enqueue_async(options, job), count)


async def dbos_schema(url: str) -> None:
    engine: Any = import_module("dbos").DBOS
    engine(config={"name": "bench", "system_database_url": url, "log_level": "ERROR"})
    engine.launch()
    await engine.register_queue_async("bench", worker_concurrency=CONCURRENCY, polling_interval_sec=0.05)
    engine.destroy()


def main(name: str, role: str, url: str, *arguments: str) -> None:
    logging.disable(logging.WARNING)
    todo: Any = globals()[f"{name}_{role}"]
    given: list[Any] = [int(arguments[0]), arguments[1]] if arguments else []
    asyncio.run(todo(url, *given))


if __name__ == "__main__":
    main(*sys.argv[1:])
