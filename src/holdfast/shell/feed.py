"""The live log: commands and their output from all services on the store, each event once and without gaps.

It reads when its consumer is ready for more, so a slow consumer costs nothing but its own delay. It never skips events.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import datetime, timedelta

from holdfast.commands import Command, Output
from holdfast.errors import NotFound, StoreError
from holdfast.store import Store

_POLL_SECONDS = 0.1
_PAUSE_SECONDS = 1.0
_LATE = timedelta(seconds=10)
"""How long after its timestamp a command may be committed and still be found."""
_PAGE = 100
_MANY = 1000
_log = logging.getLogger(__name__)


class Feed:
    """One consumer's position in the log. Commands are found by time, with an overlap; output is followed by number."""

    def __init__(self, store: Store, *, owner: str | None = None) -> None:
        self._store = store
        self._owner = owner
        self._open: dict[
            str, int
        ] = {}  # the last output number delivered for each command that has not ended
        self._seen: dict[str, datetime] = {}  # the commands within the overlap
        self._from: datetime | None = None

    async def skip(self) -> None:
        """Skip the events that are already in the log; follow running commands from here."""
        newest = await self._store.shell_events(kind="command", owner=self._owner, newest_first=True, limit=1)
        for command in newest.items:
            if isinstance(command, Command):
                self._note(command)
        for command in await self._late():
            self._note(command)
        self._open.clear()
        for command in await self._running():
            self._note(command)
            self._open[command.id] = command.outputs - 1

    async def follow(self) -> AsyncGenerator[Command | Output, None]:
        """Yield new events indefinitely. If the store is unavailable, wait for it."""
        while True:
            given = False
            try:
                async with aclosing(self._poll()) as events:
                    async for event in events:
                        given = True
                        yield event
            except StoreError as error:
                if error.is_permanent:
                    raise
                _log.warning("the log of shell commands cannot be read, retrying: %s", error)
                await asyncio.sleep(_PAUSE_SECONDS)
            if not given:
                await asyncio.sleep(_POLL_SECONDS)

    async def replay(self) -> AsyncGenerator[Command | Output, None]:
        """Yield the events in the log, by time; `follow` continues from there."""
        cursor = None
        while True:
            page = await self._store.shell_events(owner=self._owner, cursor=cursor, limit=_PAGE)
            for event in page.items:
                if isinstance(event, Command):
                    if self._note(event):
                        yield event
                elif event.order == self._open.get(event.command_id, event.order) + 1:
                    self._given(event)
                    yield event
                elif event.command_id in self._open:  # an earlier output was committed late
                    async for output in self._outputs(event.command_id):
                        yield output
            cursor = page.next_cursor
            if cursor is None:
                return

    async def _poll(self) -> AsyncGenerator[Command | Output, None]:
        running = {command.id: command for command in await self._running()}
        for command in [*await self._late(), *running.values()]:
            if self._note(command):
                yield command
        for key, last in list(self._open.items()):
            now = running.get(key)
            if now is None or now.outputs - 1 > last:
                async for output in self._outputs(key):
                    yield output
                if (
                    now is None and key in self._open
                ):  # it has ended without a new output: its last output was deleted
                    await self._forget(key)

    async def _running(self) -> list[Command]:
        page = await self._store.commands(state="running", owner=self._owner, limit=_MANY)
        result = list(page.items)
        while page.next_cursor is not None:
            page = await self._store.commands(
                state="running", owner=self._owner, cursor=page.next_cursor, limit=_MANY
            )
            result += page.items
        return result

    async def _late(self) -> list[Command]:
        """Return the commands since the start of the overlap."""
        results: list[Command] = []
        cursor = None
        while True:
            page = await self._store.shell_events(
                kind="command", owner=self._owner, since=self._from, cursor=cursor, limit=_PAGE
            )
            results += [event for event in page.items if isinstance(event, Command)]
            cursor = page.next_cursor
            if cursor is None:
                return results

    def _note(self, command: Command) -> bool:
        """Return whether a command is new. If so, follow its output from the beginning."""
        at = command.started_at
        if command.id in self._seen or command.id in self._open or at is None:
            return False
        self._open[command.id] = -1
        if self._from is None or at - _LATE > self._from:
            self._from = at - _LATE
            self._seen = {key: when for key, when in self._seen.items() if when >= self._from}
        self._seen[command.id] = at
        return True

    async def _outputs(self, key: str) -> AsyncGenerator[Output, None]:
        """Yield the outputs after the last one delivered."""
        while key in self._open:
            try:
                page = await self._store.outputs(key, after=self._open[key], limit=_PAGE)
            except NotFound:
                return
            for output in page:
                self._given(output)
                yield output
            if not page:
                return

    def _given(self, output: Output) -> None:
        if output.exit_code is None:
            self._open[output.command_id] = output.order
        else:
            self._open.pop(output.command_id, None)

    async def _forget(self, key: str) -> None:
        try:
            ended = (await self._store.command(key)).ended_at is not None
        except NotFound:
            ended = True
        if ended and not await self._more(key):
            self._open.pop(key, None)

    async def _more(self, key: str) -> bool:
        try:
            return bool(await self._store.outputs(key, after=self._open[key], limit=1))
        except NotFound:
            return False
