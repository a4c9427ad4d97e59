"""`holdfast serve` is everything in one command; `holdfast token` says who may come in."""

import asyncio
import logging
import os
import resource
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, nullcontext, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast.cli.options import AsJson, LogAs, StoreUrl, chosen_store
from holdfast.cli.terminal import echo, new_console, new_table, one_line, print_json, time_text
from holdfast.config import Settings, is_loopback, load_settings
from holdfast.errors import BadInput, BadSettings, HoldfastError, StoreClosed
from holdfast.ids import check_choice
from holdfast.logs import start_logging
from holdfast.store import Store
from holdfast.types import ROLES, Token

tokens = typer.Typer(help="Say who may come in.", no_args_is_help=True)
_log = logging.getLogger("holdfast.serve")
_LOOK_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 10.0
"""The longest pause before a worker is started again, and how long one has to live for the pauses to begin anew."""


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
    from holdfast.server.protocol import MAX_HEAD_BYTES, MAX_MESSAGE_BYTES, Server, new_protocol

    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a stream is an open file
    names = () if app is None else tuple(load_agents(app))
    async with AsyncExitStack() as stack:
        opened = await stack.enter_async_context(chosen_store(settings.store, upgrade=True))
        commands = None
        if shell:
            from holdfast.shell import ShellService

            commands = await stack.enter_async_context(ShellService(opened, settings=settings))
        numbers: str | None = None
        if workers:
            numbers = stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-metrics-"))
        crew = Crew(app or "", settings, workers, numbers)
        application = create_app(
            settings,
            opened,
            names,
            shell=commands,
            worker_metrics=Path(numbers) if numbers else None,
            kill=crew.kill if demo else None,
        )
        made = settings.auth == "token" and settings.token is None and settings.jwt_keys is None
        if made:
            application.state.doorkeeper.admin_token = new_token()
        server = Server(
            uvicorn.Config(
                application,
                http=new_protocol(settings.request_timeout_seconds),
                h11_max_incomplete_event_size=MAX_HEAD_BYTES,
                log_config=None,
                access_log=False,
                timeout_graceful_shutdown=5,
                lifespan="on",
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
                crew.hurry()
            application.state.channels.close()
            server.should_exit = True
            stopping.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop)
        for line in demo:
            echo(line)
        _say_where(listening, application.state.doorkeeper.admin_token if made else None)
        keeping = asyncio.create_task(crew.keep(stopping))
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


class Crew:
    """The worker processes: as many as were asked for; who dies is replaced, after a pause that grows."""

    def __init__(self, app: str, settings: Settings, size: int, numbers: str | None) -> None:
        # Everybody on the machine can read a command line, and the store's URL may have a password in it.
        self._environment = os.environ | {"HOLDFAST_STORE": settings.store}
        if numbers:
            self._environment["PROMETHEUS_MULTIPROC_DIR"] = numbers
        options = ["--log-format", settings.log_format]
        self._command = [sys.executable, "-m", "holdfast", "worker", app, "--supervised", *options]
        self._size = size
        self._pids: set[int] = set()

    async def keep(self, stopping: asyncio.Event) -> None:
        """Keep them running until told to stop, then let them hand over."""
        await asyncio.gather(*(self._keep_one(stopping) for _ in range(self._size)))

    def kill(self, pid: int | None) -> int | None:
        """Kill one of them with no chance to say a word, this one if it is ours; return which."""
        if pid not in self._pids:
            pid = next(iter(self._pids), None)
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
        return pid

    def hurry(self) -> None:
        """Tell them once more to stop: then they cut off what runs."""
        for pid in self._pids:
            with suppress(ProcessLookupError):  # it has ended, and we are about to hear of it
                os.kill(pid, signal.SIGTERM)

    async def _keep_one(self, stopping: asyncio.Event) -> None:
        pause = 0.2
        while not stopping.is_set():
            started = asyncio.get_running_loop().time()
            # Its input ends with this process, also when this is killed: then it hands over and ends as well. Ctrl-C is
            # for this process alone, which passes it on: a worker that hears it twice cuts off what runs.
            try:
                process = await asyncio.create_subprocess_exec(
                    *self._command, env=self._environment, stdin=asyncio.subprocess.PIPE, process_group=0
                )
            except OSError as error:
                pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)
                _log.error("a worker cannot be started, trying again in %.1f s: %s", pause, error)
                await asyncio.sleep(pause)
                continue
            self._pids.add(process.pid)
            ended = asyncio.create_task(process.wait())
            told = asyncio.create_task(stopping.wait())
            await asyncio.wait([ended, told], return_when=asyncio.FIRST_COMPLETED)
            told.cancel()
            if ended.done():
                self._pids.discard(process.pid)
            if not ended.done():
                process.send_signal(signal.SIGTERM)
                await ended
                self._pids.discard(process.pid)
                return
            if stopping.is_set():
                return
            lived = asyncio.get_running_loop().time() - started
            pause = 0.2 if lived > _LONGEST_PAUSE_SECONDS else min(pause * 2, _LONGEST_PAUSE_SECONDS)
            _log.warning("a worker ended with code %s; another starts in %.1f s", process.returncode, pause)
            await asyncio.sleep(pause)


@tokens.command("create")
def create(
    owner: Annotated[str, typer.Option(help="Whose sessions it opens.")],
    role: Annotated[str, typer.Option(help="user, or admin for all sessions.")] = "user",
    scope: Annotated[list[str] | None, typer.Option(help="What else it may, such as shell.")] = None,
    expires: Annotated[float | None, typer.Option(min=0, help="After so many days.")] = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Make a token and print it, once: only its digest is kept."""
    check_choice(role, ROLES, "role")
    from holdfast.server.auth import digest, new_token

    secret = new_token()

    async def work() -> Token:
        async with chosen_store(store, upgrade=True) as opened:
            return await opened.add_token(
                digest(secret),
                owner=owner,
                role=role,  # pyright: ignore[reportArgumentType]
                scopes=scope or (),
                lifetime=None if expires is None else expires * 86_400,
            )

    made = asyncio.run(work())
    if as_json:
        print_json({"token": secret, **asdict(made)})
    else:
        echo(secret)


@tokens.command("list")
def list_(store: StoreUrl = None, as_json: AsJson = False) -> None:
    """List all tokens, without their secrets."""

    async def work() -> list[Token]:
        async with chosen_store(store) as opened:
            return await opened.tokens()

    found = asyncio.run(work())
    if as_json:
        print_json({"tokens": [asdict(token) for token in found]})
        return
    table = new_table("id", "owner", "role", "scopes", "created", "expires", "revoked")
    for token in found:
        table.add_row(
            one_line(token.id),
            one_line(token.owner),
            token.role,
            one_line(" ".join(token.scopes)),
            time_text(token.created_at),
            time_text(token.expires_at),
            time_text(token.revoked_at),
        )
    new_console().print(table)


@tokens.command("revoke")
def revoke(
    token_id: Annotated[str, typer.Argument(help="The token's id; `list` names them.")],
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Make a token worth nothing; within five seconds on every front."""

    async def work() -> Token:
        async with chosen_store(store) as opened:
            return await opened.revoke_token(token_id)

    revoked = asyncio.run(work())
    if as_json:
        print_json(asdict(revoked))
    else:
        echo(f"{revoked.id} of {revoked.owner} is worth nothing any more")
