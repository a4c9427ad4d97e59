"""Shell commands on an API server that allows them."""

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from urllib.parse import quote

from holdfast.api.shell import BashCommand, BashEvent, BashOutput, BashPage, Cleared, CommandResult
from holdfast.client.transport import Transport, blocks

_PATH = "/api/bash"


class ShellHandle:
    """The shell of an API server. Its token needs the scope `shell`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def start(
        self,
        command: str,
        *,
        cwd: str | None = None,
        timeout: int = 300,  # noqa: ASYNC109 - of the command
        session_id: str | None = None,
    ) -> BashCommand:
        """Start a command, and return at once. It ends after `timeout` seconds."""
        body = _body(command, cwd, timeout, session_id)
        return await self._transport.call(BashCommand, "POST", f"{_PATH}/start_bash_command", json=body)

    async def run(
        self,
        command: str,
        *,
        cwd: str | None = None,
        timeout: int = 300,  # noqa: ASYNC109 - of the command
        session_id: str | None = None,
    ) -> BashOutput:
        """Run a command, and return its output when it has ended."""
        body = _body(command, cwd, timeout, session_id)
        path = f"{_PATH}/execute_bash_command"
        return await self._transport.call(BashOutput, "POST", path, json=body, is_long=True)

    async def info(self, command_id: str) -> CommandResult:
        """Return the state of a command."""
        return await self._transport.call(
            CommandResult, "GET", f"{_PATH}/{quote(command_id, safe='', errors='replace')}"
        )

    async def stop(self, command_id: str) -> CommandResult:
        """Stop a command."""
        return await self._transport.call(
            CommandResult, "POST", f"{_PATH}/{quote(command_id, safe='', errors='replace')}/stop"
        )

    async def output(self, command_id: str, *, after: int = -1) -> AsyncGenerator[BashOutput, None]:
        """Yield the output of a command after number `after`, as it is written, until the command ends."""
        path = f"{_PATH}/{quote(command_id, safe='', errors='replace')}/output"
        async with (
            self._transport.listen(path, params={"after": after}) as pieces,
            aclosing(blocks(pieces)) as received,
        ):
            async for _, text in received:
                if json.loads(text).get("kind") == "BashOutput":
                    yield BashOutput.model_validate_json(text)

    async def events(self, *, command_id: str | None = None) -> AsyncGenerator[BashEvent, None]:
        """Yield the commands and outputs of the log, oldest first, or those of one command."""
        page_id: str | None = None
        while True:
            params = {"command_id__eq": command_id, "page_id": page_id}
            page = await self._transport.call(BashPage, "GET", f"{_PATH}/bash_events/search", params=params)
            for event in page.items:
                yield event
            page_id = page.next_page_id
            if page_id is None:
                return

    async def clear(self) -> int:
        """Delete the log of the commands that have ended, and return the number of deleted entries."""
        cleared = await self._transport.call(Cleared, "DELETE", f"{_PATH}/bash_events")
        return cleared.cleared_count


def _body(command: str, cwd: str | None, timeout: int, session_id: str | None) -> dict[str, object]:
    given = {"command": command, "cwd": cwd, "timeout": timeout, "session_id": session_id}
    return {name: value for name, value in given.items() if value is not None}
