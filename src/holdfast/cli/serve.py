"""`holdfast serve`: an API server and its workers in one command."""

import asyncio
import logging
import resource
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, nullcontext, suppress
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast.cli.options import LogAs, StoreUrl, chosen_store
from holdfast.cli.terminal import echo
from holdfast.config import Settings, is_loopback, load_settings
from holdfast.errors import BadInput, BadSettings, HoldfastError, StoreClosed
from holdfast.ids import check_choice
from holdfast.logs import start_logging
from holdfast.store import Store

_log = logging.getLogger("holdfast.serve")
_LOOK_SECONDS = 1.0


def serve(
    app: Annotated[str | None, typer.Argument(help="The agents to serve, as module:attribute.")] = None,
    store: StoreUrl = None,
    host: Annotated[str | None, typer.Option(help="The address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="The port; 0 takes a free one.")] = None,
    role: Annotated[str, typer.Option(help="all: a front and workers; front: no agents run here.")] = "all",
    workers: Annotated[int, typer.Option(min=1, help="How many worker processes.")] = 1,
    enable_shell: Annotated[
        bool, typer.Option("--enable-shell", help="Let principals with the scope shell run commands here.")
    ] = False,
    log_format: LogAs = None,
    no_auth: Annotated[bool, typer.Option("--no-auth", help="Open all doors; on loopback only.")] = False,
) -> None:
    """Serve sessions over HTTP and run them in worker processes, until SIGTERM or Ctrl-C."""
    check_choice(role, ("all", "front"), "role")
    given: dict[str, Any] = {"store": store, "host": host, "port": port, "log_format": log_format}
    settings = load_settings(**{name: value for name, value in given.items() if value is not None})
    start_logging(settings.log_format)
    if no_auth:
        settings = settings.model_copy(update={"auth": "none"})
    if settings.auth == "none" and not is_loopback(settings.host):
        raise BadSettings(
            problem=f"Without authentication it listens on loopback only, not on {settings.host}."
        )
    if role == "all" and app is None:
        raise BadInput(problem="name the agents to serve as module:attribute, or use --role front")
    raise typer.Exit(run_server(app, settings, workers=workers if role == "all" else 0, shell=enable_shell))


def run_server(
    app: str | None, settings: Settings, *, workers: int, shell: bool, demo: Sequence[str] = ()
) -> int:
    """Serve until SIGTERM or Ctrl-C and return the exit code.

    With words for a demo they are said before the address, and a worker can be killed from the page.
    """
    import_module("holdfast.server")  # raises MissingExtra before a port or a store is opened
    with _listen(settings.host, settings.port) as listening:
        return asyncio.run(_serve(app, settings, listening, workers=workers, shell=shell, demo=demo))


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        problem = (
            f"cannot listen on {host}, port {port}: {error.strerror}; choose others with --host and --port"
        )
        raise BadInput(problem=problem) from error
    # What it accepts inherits this; asyncio sets it on sockets of its own making only. Else the body of an answer waits
    # until the client has acknowledged its head, which takes 40 ms.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


async def _serve(
    app: str | None,
    settings: Settings,
    listening: socket.socket,
    *,
    workers: int,
    shell: bool,
    demo: Sequence[str],
) -> int:
    import uvicorn

    from holdfast.runtime.agents import load_agents
    from holdfast.server import create_app
    from holdfast.server.auth import new_token
    from holdfast.server.pool import WorkerPool
    from holdfast.server.protocol import (
        MAX_HEAD_BYTES,
        MAX_MESSAGE_BYTES,
        Server,
        SocketProtocol,
        new_protocol,
    )

    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a stream is an open file
    agents = {} if app is None else load_agents(app)
    async with AsyncExitStack() as stack:
        opened = await stack.enter_async_context(chosen_store(settings.store, upgrade=True))
        commands = None
        if shell:
            from holdfast.shell import ShellService

            commands = await stack.enter_async_context(ShellService(opened, settings=settings))
        numbers: str | None = None
        if workers:
            numbers = stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-metrics-"))
        pool = WorkerPool(app or "", settings, workers, numbers)
        application = create_app(
            settings,
            opened,
            agents,
            shell=commands,
            attached={name: setup.attached for name, setup in agents.items()},
            worker_metrics=Path(numbers) if numbers else None,
            kill=pool.kill if demo else None,
        )
        made = settings.auth == "token" and settings.token is None and settings.jwt_keys is None
        if made:
            application.state.authenticator.admin_token = new_token()
        server = Server(
            uvicorn.Config(
                application,
                http=new_protocol(settings.request_timeout_seconds),
                h11_max_incomplete_event_size=MAX_HEAD_BYTES,
                log_config=None,
                access_log=False,
                timeout_graceful_shutdown=5,
                lifespan="on",
                ws=SocketProtocol,
                ws_max_size=MAX_MESSAGE_BYTES,
                ws_per_message_deflate=False,
            )
        )
        # Signals are ours: streams must end before the server waits for them.
        setattr(server, "capture_signals", nullcontext)  # noqa: B010 - typed as a method
        stopping = asyncio.Event()
        loop = asyncio.get_running_loop()

        def stop() -> None:
            if stopping.is_set():
                pool.hurry()
            application.state.channels.close()
            server.should_exit = True
            stopping.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop)
        for line in demo:
            echo(line)
        _say_where(listening, application.state.authenticator.admin_token if made else None)
        keeping = asyncio.create_task(pool.keep(stopping))
        watching = asyncio.create_task(_watch_store(opened, stop))
        await server.serve(sockets=[listening])
        stopping.set()
        await keeping
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
    return 0


async def _watch_store(store: Store, stop: Callable[[], None]) -> None:
    """Stop the server, and raise `StoreClosed`, when its store can never be used again by this process."""
    while True:
        await asyncio.sleep(_LOOK_SECONDS)
        try:
            await store.token("")
        except StoreClosed:
            stop()
            raise
        except HoldfastError:
            pass  # it may come back, and /ready reports it


def _say_where(listening: socket.socket, token: str | None) -> None:
    host, port = listening.getsockname()[:2]
    address = f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"
    echo(f"Holdfast serves at {address}{'' if token is None else f'?token={token}'}")
    sys.stdout.flush()
