"""`holdfast serve`: an API server and its workers in one command."""

import asyncio
import logging
import resource
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, nullcontext, suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.exit_codes import ExitCode
from holdfast.cli.options import LogAs, StoreUrl, chosen_store
from holdfast.cli.terminal import echo
from holdfast.config import Settings, is_loopback, load_settings
from holdfast.errors import BadInput, BadSettings, HoldfastError, MissingExtra, StoreClosed
from holdfast.ids import check_choice
from holdfast.logs import start_logging
from holdfast.shell.hiding import hide_process
from holdfast.store import Store

if TYPE_CHECKING:
    from holdfast.runtime.runner import Runner
    from holdfast.server.protocol import Server

_log = logging.getLogger("holdfast.serve")
_CHECK_SECONDS = 1.0


def serve(
    app: Annotated[str | None, typer.Argument(help="The agents to run, as module:attribute.")] = None,
    store: StoreUrl = None,
    host: Annotated[
        str | None, typer.Option(help="Address to listen on. Default: HOLDFAST_HOST or 127.0.0.1.")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Port; 0 selects a free one. Default: HOLDFAST_PORT or 8350."),
    ] = None,
    role: Annotated[
        str, typer.Option(help="all: an API server and workers. api: only the API server.")
    ] = "all",
    workers: Annotated[int, typer.Option(min=1, metavar="N", help="Number of worker processes.")] = 1,
    enable_shell: Annotated[
        bool,
        typer.Option(
            "--enable-shell", help="Allow tokens with the scope shell to run commands on this machine."
        ),
    ] = False,
    log_format: LogAs = None,
    no_auth: Annotated[
        bool, typer.Option("--no-auth", help="Serve without authentication, on loopback only.")
    ] = False,
) -> None:
    """Serve sessions over HTTP and run them in worker processes.

    Prints the address with a token. Stops on SIGTERM or Ctrl-C.

    Examples:
        holdfast serve bot:agent
        holdfast serve bot:agents --host 0.0.0.0 --port 8350 --workers 4
        holdfast serve --role api --store postgresql://localhost/holdfast
    """
    check_choice(role, ("all", "api"), "role")
    given: dict[str, Any] = {"store": store, "host": host, "port": port, "log_format": log_format}
    settings = load_settings(**{name: value for name, value in given.items() if value is not None})
    start_logging(settings.log_format)
    if no_auth:
        settings = settings.model_copy(update={"auth": "none"})
    if settings.auth == "none" and not is_loopback(settings.host):
        raise BadSettings(
            problem=f"Without authentication, the server only listens on loopback addresses, not on {settings.host}."
        )
    if role == "all" and app is None:
        raise BadInput(problem="name the agents to serve as module:attribute, or use --role api")
    code = run_server(app, settings, workers=workers if role == "all" else 0, shell=enable_shell)
    raise typer.Exit(code)


def run_server(
    app: str | None, settings: Settings, *, workers: int, shell: bool, demo: Sequence[str] = ()
) -> int:
    """Serve until SIGTERM or Ctrl-C and return the exit code.

    `demo` has lines to print before the address. With it, a worker can be killed from the page.
    """
    hide_process()
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
    # Accepted sockets inherit this; asyncio only sets it on sockets that it creates. Without it, the body of a response
    # waits 40 ms until the client has acknowledged the head.
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

    _, limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))  # a stream is an open file
    agents: Mapping[str, Runner] = {}
    if app is not None:
        from holdfast.runtime.agents import load_agents  # imports Pydantic AI

        agents = load_agents(app)
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
        is_new_token = settings.auth == "token" and settings.token is None and settings.jwt_keys is None
        if is_new_token:
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
        # Handle signals here: streams must end before the server waits for them.
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
        _print_address(listening, application.state.authenticator.admin_token if is_new_token else None)
        keeping = asyncio.create_task(pool.keep(stopping))
        watching = asyncio.create_task(_watch_store(opened, stop))
        warming = asyncio.create_task(_warm_up(server))
        await server.serve(sockets=[listening])
        stopping.set()
        await keeping
        for task in (watching, warming):
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
    return ExitCode.OK


async def _warm_up(server: "Server") -> None:
    """Once the server is ready, import in a thread the modules that only some requests need, so that no request waits for them."""
    while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
        await asyncio.sleep(0.05)
    with suppress(MissingExtra):
        await asyncio.to_thread(import_module, "holdfast.server.formats")


async def _watch_store(store: Store, stop: Callable[[], None]) -> None:
    """Stop the server and raise `StoreClosed` when this process can no longer use its store."""
    while True:
        await asyncio.sleep(_CHECK_SECONDS)
        try:
            await store.token("")
        except StoreClosed:
            stop()
            raise
        except HoldfastError:
            pass  # the store may recover, and /ready reports the problem


def _print_address(listening: socket.socket, token: str | None) -> None:
    host, port = listening.getsockname()[:2]
    address = f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"
    echo(f"Holdfast serves at {address}{'' if token is None else f'?token={token}'}")
    sys.stdout.flush()
