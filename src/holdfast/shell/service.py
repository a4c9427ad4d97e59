"""`ShellService`: run shell commands and store their output, where any process can read it.

A service is a holder of the store. It never runs a command that is not recorded, and leaves no process behind, neither
when it is closed nor when it is killed.
"""

import asyncio
import contextlib
import errno
import logging
import math
import os
import re
import stat
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from holdfast.commands import Command, Output, ShellKind
from holdfast.config import Settings
from holdfast.errors import (
    BadInput,
    BadText,
    FolderNotFound,
    HoldfastError,
    NotFound,
    ShellClosed,
    ShellUnavailable,
)
from holdfast.ids import check_id, check_name, check_text, new_id
from holdfast.leases import Renewal, join
from holdfast.shell.orphans import record_orphans, service_name
from holdfast.shell.output import Collector
from holdfast.shell.process import Process, this_host
from holdfast.shell.retention import Sweeper, purge
from holdfast.shell.running import Running
from holdfast.store import Store
from holdfast.tasks import end
from holdfast.types import Holder, Page

_log = logging.getLogger(__name__)

INHERITED: Final = re.compile(r"PATH|HOME|LANG|LANGUAGE|LC_\w+|TERM|TZ|TMPDIR|USER|LOGNAME|SHELL")
"""The variables of the service's environment that a command inherits. Any other may be a secret."""
TIMEOUT_SECONDS: Final = 300.0
LARGEST_PAGE: Final = 100
_LONGEST_COMMAND = 128 * 1024 - 1
_LONGEST_TIMEOUT = 366 * 24 * 60 * 60
_POLL_SECONDS = 0.2
_CLOSE_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A command that has ended, and all of its stored output."""

    command: Command
    stdout: str
    stderr: str


class ShellService:
    """Shell commands on one store. Use it with `async with`; the caller opens and closes the store.

    `cwd` is the default working directory of commands. Any number of services may share a store.
    """

    def __init__(
        self, store: Store, *, settings: Settings | None = None, cwd: str | os.PathLike[str] | None = None
    ) -> None:
        self.store = store
        self._settings = settings or store.settings
        self._cwd = Path.cwd() if cwd is None else Path(cwd).absolute()
        self._host = this_host()
        self._holder: Holder | None = None
        self._renewal: Renewal | None = None
        self._running: dict[str, Running] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._starting: set[asyncio.Task[Command]] = set()
        self._chores: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        await self._join()
        try:
            await record_orphans(self.store, self._host)
        except BaseException:
            await self._leave()
            raise
        self._chores = [asyncio.create_task(self._keep(), name="holdfast-shell")]
        kept = self._settings.shell_retention_seconds
        _log.info(
            "the output of shell commands is kept %s; their results are always kept",
            "until it is deleted" if kept is None else f"for {kept:g} seconds after the command ended",
        )
        if self._settings.shell_retention_seconds is not None:
            sweeper = Sweeper(self.store, self._settings.shell_retention_seconds)
            self._chores.append(asyncio.create_task(sweeper.run(), name="holdfast-shell-sweeper"))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End all commands, record how they ended, and leave. Closing again does nothing."""
        holder, self._holder = self._holder, None
        if self._starting:
            await asyncio.wait(self._starting)
        for running in self._running.values():
            running.end("killed")
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=_CLOSE_SECONDS)
            if late:
                for running in self._running.values():
                    running.give_up()
                await asyncio.wait(late)
        await end(*self._chores)
        if holder is not None:
            self._holder = holder
            await self._leave()

    async def start(
        self,
        command: str,
        *,
        cwd: str | os.PathLike[str] | None = None,
        timeout: float | None = TIMEOUT_SECONDS,  # noqa: ASYNC109 - the command's, not the call's
        env: Mapping[str, str] | None = None,
        session_id: str | None = None,
        owner: str = "local",
        call_id: str | None = None,
    ) -> Command:
        """Start a command line with bash, or with sh if there is no bash, and return the recorded command.

        It inherits `env` and only the essential variables of the service's environment. `env` is not recorded. `timeout=None`
        means no limit. Raises `FolderNotFound`, `BadInput` or `SessionNotFound`; then nothing was started or recorded.
        """
        holder = self._open()
        _check_command(command)
        _check_timeout(timeout)
        folder = str(self._cwd / Path(cwd or "."))
        environment = _environment(env or {})
        check_name(owner, "owner")
        if session_id is not None:
            check_id(session_id, "session id")
        await asyncio.to_thread(_check_folder, folder)
        wanted = Command(
            id=new_id(),
            command=command,
            cwd=folder,
            timeout=timeout,
            owner=owner,
            session_id=session_id,
            call_id=call_id,
            holder=holder.id,
            host=self._host,
        )
        # Recording and starting belong together, even if the caller is cancelled meanwhile.
        task = asyncio.create_task(self._start(wanted, environment, folder))
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(lambda _: self._end_unseen(wanted.id))
            raise

    def _end_unseen(self, command_id: str) -> None:
        """Stop a command whose caller was cancelled before it received the id."""
        if (running := self._running.get(command_id)) is not None:
            running.end("stopped")

    async def _start(self, wanted: Command, environment: Mapping[str, str], folder: str) -> Command:
        self._open()  # the service may have been closed meanwhile
        try:
            process = await asyncio.to_thread(Process.spawn, wanted.id, environment)
        except OSError as error:
            if error.errno == errno.E2BIG:
                raise BadInput(problem=f"the command cannot be started: {error}") from error
            raise ShellUnavailable(problem=error) from error
        try:
            recorded = await self.store.start_command(
                replace(wanted, pid=process.pid, pid_started=process.started)
            )
        except BaseException:
            await asyncio.to_thread(process.abandon)
            raise
        collector = Collector(self._settings.shell_output_bytes, self._settings.shell_tail_bytes)
        running = self._running[recorded.id] = Running(self.store, recorded, process, collector)
        task = asyncio.create_task(self._see_to_end(running, folder), name=f"holdfast-command-{recorded.id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return recorded

    async def _see_to_end(self, running: Running, folder: str) -> None:
        try:
            await running.run(folder)
        finally:
            self._running.pop(running.command.id, None)

    async def execute(
        self,
        command: str,
        *,
        cwd: str | os.PathLike[str] | None = None,
        timeout: float | None = TIMEOUT_SECONDS,  # noqa: ASYNC109 - the command's, not the call's
        env: Mapping[str, str] | None = None,
        session_id: str | None = None,
        owner: str = "local",
    ) -> Result:
        """Run a command to its end and return all of its stored output. The command continues if the caller is cancelled."""
        started = await self.start(
            command, cwd=cwd, timeout=timeout, env=env, session_id=session_id, owner=owner
        )
        return await self.result(started.id)

    async def result(self, command_id: str) -> Result:
        """Wait for the end of a command and return it with all of its stored output."""
        stdout: list[str] = []
        stderr: list[str] = []
        async with contextlib.aclosing(self.follow(command_id)) as outputs:
            async for output in outputs:
                stdout.append(output.stdout or "")
                stderr.append(output.stderr or "")
        return Result(
            command=await self.store.command(command_id), stdout="".join(stdout), stderr="".join(stderr)
        )

    def follow(self, command_id: str, *, after: int = -1) -> AsyncGenerator[Output, None]:
        """Yield the output of a command, past and future, each chunk once, until it has ended. `after` is an order number."""
        return self.store.watch_outputs(command_id, after=after)

    async def stop(self, command_id: str, *, wait: float = 5.0) -> Command:
        """Stop a command of any service, and return it once it has ended, or after `wait` seconds."""
        command = await self.store.stop_command(command_id)
        running = self._running.get(command.id)
        if running is not None:
            running.end("stopped")
        if command.ended_at is None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    async for _ in self.follow(command.id, after=max(-1, command.outputs - 1)):
                        pass
            command = await self.store.command(command.id)
        return command

    async def search(
        self,
        *,
        kind: ShellKind | None = None,
        command_id: str | None = None,
        owner: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        after_order: int | None = None,
        newest_first: bool = False,
        page_id: str | None = None,
        limit: int = LARGEST_PAGE,
    ) -> Page[Command | Output]:
        """Search the log of commands and output; see `Store.shell_events`. A page has 1 to 100 events."""
        if not 1 <= limit <= LARGEST_PAGE:
            raise BadInput(problem=f"limit must be 1 to {LARGEST_PAGE}, not {limit}")
        return await self.store.shell_events(
            kind=kind,
            command_id=command_id,
            owner=owner,
            since=since,
            until=until,
            after_order=after_order,
            newest_first=newest_first,
            cursor=page_id,
            limit=limit,
        )

    async def event(self, event_id: str, *, owner: str | None = None) -> Command | Output:
        """Return one event of the log. Raises `NotFound`."""
        (result,) = await self.store.shell_events_by_id([event_id], owner=owner)
        if result is None:
            raise NotFound(what="event", id=event_id)
        return result

    async def events(
        self, event_ids: Sequence[str], *, owner: str | None = None
    ) -> list[Command | Output | None]:
        """Return up to 100 events of the log in the order of their ids; None for each that does not exist."""
        if len(event_ids) > LARGEST_PAGE:
            raise BadInput(problem=f"at most {LARGEST_PAGE} events can be read at once, not {len(event_ids)}")
        return await self.store.shell_events_by_id(event_ids, owner=owner)

    async def clear(self, *, owner: str | None = None) -> int:
        """Delete the log, except running commands and those on hold, and return how many events were deleted."""
        return await purge(self.store, 0, owner=owner)

    async def _keep(self) -> None:
        """Renew the holder, stop commands on request, and record the orphans of dead services."""
        loop = asyncio.get_running_loop()
        look_at = loop.time() + self._settings.lease_ttl_seconds
        while True:
            await asyncio.sleep(_POLL_SECONDS)
            now = loop.time()
            try:
                if self._renewal is not None and self._renewal.is_lost:
                    # Other services consider this one dead, and its commands lost.
                    for running in self._running.values():
                        running.end("killed")
                    await self._join()
                # After an outage of the database this holder may look dead until it is renewed, and its own commands like orphans.
                if now >= look_at and self._renewal is not None and self._renewal.is_current:
                    await record_orphans(self.store, self._host)
                    look_at = now + self._settings.lease_ttl_seconds
                for holder in {running.command.holder for running in self._running.values()}:
                    await self._stop_requested(holder)
            except HoldfastError as error:
                _log.warning("the shell service could not reach its store: %s", error)

    async def _join(self) -> None:
        ttl = self._settings.lease_ttl_seconds
        self._holder = await join(self.store, service_name(self._host), ttl=ttl)
        self._renewal = Renewal(self.store, self._holder, every=self._settings.lease_renew_seconds)

    async def _stop_requested(self, holder: str) -> None:
        """Stop the commands that other processes have requested to stop."""
        cursor = None
        while True:
            page = await self.store.commands(state="running", holder=holder, cursor=cursor, limit=1000)
            for command in page.items:
                if command.stop_requested and (running := self._running.get(command.id)):
                    running.end("stopped")
            cursor = page.next_cursor
            if cursor is None:
                return

    async def _leave(self) -> None:
        holder, self._holder = self._holder, None
        if self._renewal is not None:
            await self._renewal.stop()
        if holder is not None:
            with contextlib.suppress(HoldfastError):  # if this fails, the holder expires at its deadline
                await self.store.leave(holder)

    def _open(self) -> Holder:
        if self._holder is None:
            raise ShellClosed
        return self._holder


def _check_command(command: str) -> None:
    size = check_text(command, "command")
    if not command.strip():
        raise BadText(what="command", problem="is empty")
    if size > _LONGEST_COMMAND:
        raise BadText(
            what="command",
            problem=f"has {size} bytes; the system accepts {_LONGEST_COMMAND}. Put it into a file and run that",
        )


def _check_timeout(timeout: float | None) -> None:
    if timeout is not None and not (math.isfinite(timeout) and 0 < timeout <= _LONGEST_TIMEOUT):
        raise BadInput(
            problem=f"timeout must be a positive number of seconds, at most one year, not {timeout}"
        )


def _check_folder(path: str) -> None:
    try:
        result = stat.S_ISDIR(os.stat(path).st_mode)  # noqa: PTH116 - raises the reason for a failure
    except (OSError, ValueError) as error:
        raise FolderNotFound(path=path) from error
    if not result:
        raise FolderNotFound(path=path)


def _environment(given: Mapping[str, str]) -> dict[str, str]:
    for name, value in given.items():
        if not name or "=" in name or "\x00" in name + value:
            raise BadInput(problem=f"{name!r} with this value is not a valid environment variable")
    ours = {name: value for name, value in os.environ.items() if INHERITED.fullmatch(name)}
    return {**ours, **given}
