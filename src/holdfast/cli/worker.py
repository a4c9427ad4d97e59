"""`holdfast worker` runs sessions; `holdfast workers` shows who does."""

import asyncio
import logging
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import asdict
from typing import Annotated

import typer

from holdfast.cli.options import AsJson, LogAs, ServerUrl, StoreUrl, chosen_sessions, chosen_store
from holdfast.cli.terminal import new_console, new_table, one_line, print_json, time_text
from holdfast.config import load_settings
from holdfast.counting import counted_by
from holdfast.errors import MissingExtra
from holdfast.logs import start_logging
from holdfast.tasks import run_through_exits
from holdfast.types import Holder

_log = logging.getLogger("holdfast.worker")
CUT_OFF = 3
"""The exit code of a worker that had to cut runs off when its grace period was over."""
_LEAVE_SECONDS = 2.0
FORCED = 4
"""The exit code of a worker that was told twice to stop."""


def worker(
    app: Annotated[str, typer.Argument(help="The agent, or a list of them, as module:attribute.")],
    store: StoreUrl = None,
    concurrency: Annotated[int, typer.Option(min=1, help="How many sessions run at once.")] = 100,
    grace: Annotated[float, typer.Option(min=0, help="Seconds a run has to hand over after SIGTERM.")] = 20.0,
    log_format: LogAs = None,
    metrics_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Show what is counted here to Prometheus.")
    ] = None,
    supervised: Annotated[
        bool, typer.Option("--supervised", help="Stop, as if told to, when standard input ends.")
    ] = False,
    name: Annotated[str | None, typer.Option(help="What others see; else host and process id.")] = None,
) -> None:
    """Run sessions until SIGTERM or Ctrl-C; then hand over what runs. A second signal cuts it off.

    Exit code 0: all was handed over at a settled point. 3: some runs had to be cut off. 4: stopped by a second signal.
    """
    from holdfast.runtime import Worker, load_agents

    given = {"store": store, "log_format": log_format}
    settings = load_settings(**{name: value for name, value in given.items() if value is not None})
    start_logging(settings.log_format)
    agents = load_agents(app)
    key = settings.credential_key

    async def work() -> int:
        async with chosen_store(settings.store, upgrade=True) as opened, AsyncExitStack() as stack:
            serving = Worker(
                opened,
                [*agents.values()],
                name=name,
                concurrency=concurrency,
                grace=grace,
                credential_key=None if key is None else key.get_secret_value(),
            )
            stack.enter_context(_counting(metrics_port, settings.host))
            running = asyncio.ensure_future(serving.run())
            told: list[int] = []

            def stop() -> None:
                told.append(1)
                serving.stop()
                if len(told) > 1:
                    running.cancel()

            loop = asyncio.get_running_loop()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, stop)

            def gone() -> None:
                serving.stop()
                if folder := os.environ.get("PROMETHEUS_MULTIPROC_DIR"):
                    stack.callback(shutil.rmtree, folder, ignore_errors=True)  # nobody else will

            if supervised:
                _at_the_end_of_input(loop, gone)
            try:
                return 0 if await running else CUT_OFF
            except asyncio.CancelledError:
                return FORCED

    async def work_and_leave() -> int:
        code = await work()
        _exit_within(_LEAVE_SECONDS, code)
        return code

    raise typer.Exit(run_through_exits(work_and_leave()))


def _exit_within(seconds: float, code: int) -> None:
    """End the process even if code of an agent swallows its cancellation. Its sessions are released already."""
    timer = threading.Timer(seconds, os._exit, [code])
    timer.daemon = True
    timer.start()


def _at_the_end_of_input(loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> None:
    """Stop when whoever holds the other end of standard input is gone, however it went."""
    descriptor = sys.stdin.fileno()

    def look() -> None:
        if not os.read(descriptor, 1024):
            loop.remove_reader(descriptor)
            _log.warning("whoever started this worker is gone")
            stop()

    loop.add_reader(descriptor, look)


@contextmanager
def _counting(port: int | None, host: str) -> Generator[None, None, None]:
    """Count what happens here, if somebody wants to know: on a port, or in the files of `holdfast serve`."""
    folder = os.environ.get("PROMETHEUS_MULTIPROC_DIR")
    if port is None and folder is None:
        yield
        return
    try:
        from prometheus_client import CollectorRegistry

        from holdfast.metrics import WORKER, Counts, show
    except ModuleNotFoundError as error:
        raise MissingExtra(extra="server") from error
    registry = CollectorRegistry()
    with counted_by(Counts(registry, WORKER)):
        if port is not None:
            show(registry, host, port)
        yield


def workers(store: StoreUrl = None, url: ServerUrl = None, as_json: AsJson = False) -> None:
    """List workers and other holders of sessions: the agents they serve, how many sessions each holds, and until when."""

    async def work() -> list[Holder]:
        async with chosen_sessions(store, url) as opened:
            return await opened.holders()

    result = asyncio.run(work())
    if as_json:
        print_json({"workers": [asdict(holder) for holder in result]})
        return
    table = new_table("id", "name", "sessions", "until", "agents")
    for holder in result:
        table.add_row(
            one_line(holder.id),
            one_line(holder.name),
            str(holder.sessions),
            time_text(holder.deadline),
            one_line(", ".join(holder.agents or ())),
        )
    new_console().print(table)
