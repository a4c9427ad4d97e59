"""One running command: read its pipes, write its output to the store, and record its end."""

import asyncio
import logging
import os
from dataclasses import replace
from typing import Final

from holdfast.commands import Command, CommandState, Output
from holdfast.errors import CommandLost, HoldfastError
from holdfast.ids import new_id
from holdfast.shell.output import Collector
from holdfast.shell.process import Exit, Process
from holdfast.store import Store

_log = logging.getLogger(__name__)

FLUSH_SECONDS = 0.1
"""How often slowly arriving output is written."""
_FIRST_SECONDS = 0.02
"""How long the first output after a silence waits for more."""
_BATCH_BYTES = 1024 * 1024
_DRAIN_SECONDS = 2.0
"""How long other processes that inherited the pipes may keep them open after the command's processes have ended."""
_PAUSE_SECONDS: Final = (0.1, 5.0)
"""The first and the longest pause between attempts while the store fails."""


class Running:
    """A running command. `run` follows it to its end in every case."""

    def __init__(self, store: Store, command: Command, process: Process, collector: Collector) -> None:
        self._store = store
        self.command = command
        self.process = process
        self._collector = collector
        self._open = set(process.pipes)
        self._paused = False
        self._wake = asyncio.Event()
        self._why: CommandState | None = None
        self._began = False
        self._exit: Exit | None = None
        self._giving_up = False

    def end(self, why: CommandState) -> None:
        """Request its end, for this reason. The first reason counts."""
        self._why = self._why or why
        if self._began:
            self.process.terminate()

    def give_up(self) -> None:
        """Stop waiting for a failing store: the next service records how the command ended."""
        self._giving_up = True
        self._wake.set()

    async def run(self, cwd: str) -> None:
        """Start the command, read and write its output, and record how it ended."""
        loop = asyncio.get_running_loop()
        waiting: asyncio.Task[None] | None = None
        timer: asyncio.TimerHandle | None = None
        try:
            for stream, pipe in enumerate(self.process.pipes):
                loop.add_reader(pipe, self._read, stream, pipe)
            await self.process.go(self.command.command, cwd)
            self._began = True
            if self._why is not None:  # its end was requested before it started
                self.process.terminate()
            if self.command.timeout is not None:
                timer = loop.call_later(self.command.timeout, self.end, "timed_out")
            waiting = asyncio.create_task(self._wait())
            await self._write_until_end()
            self._collector.end()
            await self._write(last=True)
        except CommandLost as lost:
            _log.warning("%s", lost)
        finally:
            if timer is not None:
                timer.cancel()
            self.process.kill()
            try:
                if waiting is not None:
                    await waiting
            finally:
                for pipe in self._open:
                    loop.remove_reader(pipe)
                for pipe in self.process.pipes:
                    os.close(pipe)
                self.process.close()

    async def _wait(self) -> None:
        self._exit = await self.process.exit()
        self._wake.set()

    def _read(self, stream: int, pipe: int) -> None:
        try:
            data = os.read(pipe, self._collector.wanted)
        except BlockingIOError:
            return
        if data:
            self._collector.feed(stream, data)
            if self._collector.is_full:
                self._pause()
        else:
            asyncio.get_running_loop().remove_reader(pipe)
            self._open.discard(pipe)
        self._wake.set()

    def _pause(self) -> None:
        self._paused = True
        for pipe in self._open:
            asyncio.get_running_loop().remove_reader(pipe)

    def _resume(self) -> None:
        if self._paused and not self._collector.is_full:
            self._paused = False
            for stream, pipe in enumerate(self.process.pipes):
                if pipe in self._open:
                    asyncio.get_running_loop().add_reader(pipe, self._read, stream, pipe)

    async def _write_until_end(self) -> None:
        """Write chunks as they fill up, and incomplete ones every 100 ms, until no more output can follow."""
        loop = asyncio.get_running_loop()
        flushed = loop.time()
        begun: float | None = None  # when the open chunk was started
        drained: float | None = None  # by when the pipes must be closed
        while not self._giving_up and (self._open or self._exit is None):
            now = loop.time()
            if self._exit is not None:
                drained = drained or now + _DRAIN_SECONDS
                if now >= drained and not self._paused:
                    return
            if self._collector.has_chunks:
                await self._write()
                flushed, begun = loop.time(), None
                continue
            due = None
            if self._collector.has_open:
                begun = now if begun is None else begun
                due = max(begun + _FIRST_SECONDS, flushed + FLUSH_SECONDS)
                if now >= due:
                    self._collector.flush()
                    continue
            self._wake.clear()
            limits = [at - now for at in (due, drained) if at is not None]
            timer = loop.call_later(min(limits), self._wake.set) if limits else None
            await self._wake.wait()
            if timer is not None:
                timer.cancel()

    async def _write(self, *, last: bool = False) -> None:
        """Write the waiting chunks; with the last one, write how the command ended."""
        while True:
            outputs = self._collector.take(_BATCH_BYTES)
            ends = last and not self._collector.has_chunks
            result = self._result() if ends else None
            if result is not None:
                final = outputs.pop() if outputs else Output(id=new_id())
                outputs.append(replace(final, exit_code=result[0]))
            await self._store_with_retries(outputs, result)
            self._resume()
            if ends or (not last and not self._collector.has_chunks):
                return

    def _result(self) -> tuple[int, CommandState]:
        if self._exit is None or self._exit.code is None:
            return -1, self._why or "killed"
        if self._exit.requested and self._why is not None:
            return -1, self._why
        return self._exit.code, "done"

    async def _store_with_retries(
        self, outputs: list[Output], result: tuple[int, CommandState] | None
    ) -> None:
        """Write until the store has accepted the output. Once enough of it waits, the command waits too."""
        stdout, stderr = self._collector.sizes
        new = replace(
            self.command,
            stdout_bytes=stdout,
            stderr_bytes=stderr,
            left_out_bytes=self._collector.left_out,
            damaged=self._collector.damaged,
        )
        if result is not None:
            new = replace(new, exit_code=result[0], state=result[1])
        pause, longest = _PAUSE_SECONDS
        while True:
            try:
                self.command = await self._store.write_outputs(new, outputs)
            except CommandLost:
                raise
            except HoldfastError as error:
                if self._giving_up:
                    raise CommandLost(id=self.command.id, reason=f"the store failed: {error}") from error
                _log.warning("output of command %s is delayed, retrying: %s", self.command.id, error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, longest)
            else:
                return
