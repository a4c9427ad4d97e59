"""`holdfast worker` runs sessions; `holdfast workers` lists the workers."""

import asyncio
import logging
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import AsyncExitStack, contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.exit_codes import ExitCode
from holdfast.cli.options import AsJson, LogAs, ServerUrl, StoreUrl, chosen_store, connected
from holdfast.cli.terminal import TextTable, new_console, one_line, print_json, record, time_text
from holdfast.config import load_settings
from holdfast.counting import counted_by
from holdfast.errors import MissingExtra
from holdfast.logs import start_logging
from holdfast.shell.hiding import hide_process
from holdfast.tasks import run_through_exits

if TYPE_CHECKING:
    from holdfast.api.models import WorkerInfo

_log = logging.getLogger("holdfast.worker")
_EXIT_SECONDS = 2.0


def worker(
    app: Annotated[str, typer.Argument(help="The agent or list of agents, as module:attribute.")],
    store: StoreUrl = None,
    concurrency: Annotated[
        int, typer.Option(min=1, metavar="N", help="Number of sessions to run at once.")
    ] = 100,
    grace: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="Time for runs to hand over after SIGTERM.")
    ] = 20.0,
    log_format: LogAs = None,
    metrics_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Serve Prometheus metrics on this port.")
    ] = None,
    supervised: Annotated[
        bool, typer.Option("--supervised", help="Stop when standard input ends, as on SIGTERM.")
    ] = False,
    name: Annotated[
        str | None, typer.Option(help="Name of the worker. Default: host and process id.")
    ] = None,
) -> None:
    """Run sessions until SIGTERM or Ctrl-C.

    After the signal, running sessions are handed over at the next settled point. A second signal cuts them off. Exits with 0
    if all sessions were handed over, 3 if some were cut off after --grace, and 4 after a second signal.

    Examples:
        holdfast worker bot:agent
        holdfast worker bot:agents --concurrency 20 --grace 60
    """
    from holdfast.runtime import Worker, load_agents

    given = {"store": store, "log_format": log_format}
    settings = load_settings(**{name: value for name, value in given.items() if value is not None})
    start_logging(settings.log_format)
    hide_process()
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
            signals: list[int] = []

            def stop() -> None:
                signals.append(1)
                serving.stop()
                if len(signals) > 1:
                    running.cancel()

            loop = asyncio.get_running_loop()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, stop)

            def stop_orphan() -> None:
                serving.stop()
                if folder := os.environ.get("PROMETHEUS_MULTIPROC_DIR"):
                    stack.callback(shutil.rmtree, folder, ignore_errors=True)  # its owner is gone

            if supervised:
                _at_the_end_of_input(loop, stop_orphan)
            try:
                code = ExitCode.OK if await running else ExitCode.CUT_OFF
            except asyncio.CancelledError:
                code = ExitCode.FORCED
            if (
                serving.threads_are_working
            ):  # only the end of the process ends them, and only then may others continue
                _log.warning("synchronous code of a session still runs and ends with this process")
                logging.shutdown()
                os._exit(code)
            return code

    async def work_and_exit() -> int:
        code = await work()
        _exit_within(_EXIT_SECONDS, code)
        return code

    raise typer.Exit(run_through_exits(work_and_exit()))


def _exit_within(seconds: float, code: int) -> None:
    """End the process even if code of an agent ignores its cancellation. Its sessions are already released."""
    timer = threading.Timer(seconds, os._exit, [code])
    timer.daemon = True
    timer.start()


def _at_the_end_of_input(loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> None:
    """Stop when the process at the other end of standard input has ended, even if it was killed."""
    descriptor = sys.stdin.fileno()

    def read() -> None:
        if not os.read(descriptor, 1024):
            loop.remove_reader(descriptor)
            _log.warning("the process that started this worker has ended; stopping")
            stop()

    loop.add_reader(descriptor, read)


@contextmanager
def _counting(port: int | None, host: str) -> Generator[None, None, None]:
    """Collect metrics if they are used: on a port, or in the files of `holdfast serve`."""
    folder = os.environ.get("PROMETHEUS_MULTIPROC_DIR")
    if port is None and folder is None:
        yield
        return
    try:
        from prometheus_client import CollectorRegistry

        from holdfast.metrics import WORKER, Counts, start_server
    except ModuleNotFoundError as error:
        raise MissingExtra(extra="server") from error
    registry = CollectorRegistry()
    with counted_by(Counts(registry, WORKER)):
        if port is not None:
            start_server(registry, host, port)
        yield


def workers(store: StoreUrl = None, url: ServerUrl = None, as_json: AsJson = False) -> None:
    """List workers and other holders of session leases.

    Shows the agents, number of sessions and lease deadline of each.

    Examples:
        holdfast workers
    """

    async def work() -> "list[WorkerInfo]":
        async with connected(store, url) as client:
            return await client.workers()

    result = asyncio.run(work())
    if as_json:
        print_json({"workers": [record(holder) for holder in result]})
        return
    table = TextTable("id", "name", "sessions", "agents", "until")
    for holder in result:
        table.add_row(
            one_line(holder.id),
            one_line(holder.name),
            str(holder.sessions),
            one_line(", ".join(holder.agents)),
            time_text(holder.deadline),
        )
    new_console().print(table)
