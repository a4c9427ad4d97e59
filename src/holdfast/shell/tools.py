"""Shell commands as tools of a Pydantic AI agent. For a recorded agent each call is an effect in the ledger.

The recovery policy is `report`: a command with an unknown end is never run again automatically; the model decides.
"""

import asyncio
from typing import Annotated, Any

from pydantic import Field
from pydantic_ai import FunctionToolset, ModelRetry, RunContext

from holdfast.commands import Command
from holdfast.errors import BadInput, NotFound
from holdfast.shell.service import TIMEOUT_SECONDS, ShellService

_MOST_CHARACTERS = 30_000
_PAGE = 100


def shell_tools(
    service: ShellService, *, max_characters: int = _MOST_CHARACTERS, owner: str = "agent"
) -> FunctionToolset[Any]:
    """Return the tools `shell_run`, `shell_output` and `shell_stop`.

    A command belongs to the session of the run that started it, if that session is in the service's store. The model sees at most
    `max_characters` of each output.
    """
    tools: FunctionToolset[Any] = FunctionToolset(metadata={"recovery": "report"})

    @tools.tool
    async def shell_run(
        ctx: RunContext[Any],
        command: Annotated[str, Field(description="A command line for the shell. Its stdin is empty.")],
        cwd: Annotated[str | None, Field(description="The working directory.")] = None,
        timeout: Annotated[  # noqa: ASYNC109 - the command's, not the call's
            float, Field(description="Seconds after which the command is stopped.", gt=0)
        ] = TIMEOUT_SECONDS,
        background: Annotated[
            bool, Field(description="Return without waiting for the command to end.")
        ] = False,
    ) -> dict[str, Any]:
        """Run a shell command and return its exit code and output. Processes that it leaves running are killed when it ends.

        For long-running processes such as a server, use `background` and read the output with `shell_output`.
        """
        session_id = await _session(service, ctx.conversation_id)
        try:
            started = await service.start(
                command,
                cwd=cwd,
                timeout=timeout,
                session_id=session_id,
                owner=owner,
                call_id=ctx.tool_call_id,
            )
        except BadInput as error:
            raise ModelRetry(str(error)) from error
        if background:
            return {"command_id": started.id, "state": "running"}
        try:
            result = await service.result(started.id)
        except asyncio.CancelledError:
            await asyncio.shield(service.stop(started.id))  # its caller was cancelled
            raise
        return _shown(result.command, result.stdout, result.stderr, max_characters)

    async def own_command(ctx: RunContext[Any], command_id: str) -> Command:
        """Return a command of this run's session. Commands of other sessions are treated as missing."""
        try:
            command = await service.store.command(command_id)
        except (BadInput, NotFound) as error:
            raise ModelRetry(str(error)) from error
        session_id = await _session(service, ctx.conversation_id)
        if command.session_id != session_id or (session_id is None and command.owner != owner):
            raise ModelRetry(str(NotFound(what="command", id=command_id)))
        return command

    @tools.tool
    async def shell_output(
        ctx: RunContext[Any],
        command_id: Annotated[str, Field(description="The `command_id` that `shell_run` returned.")],
        after: Annotated[int, Field(description="The `next_after` of the previous call.", ge=-1)] = -1,
    ) -> dict[str, Any]:
        """Return the state of a command and its output after number `after`."""
        command = await own_command(ctx, command_id)
        outputs = await service.store.outputs(command.id, after=after, limit=_PAGE)
        stdout = "".join(output.stdout or "" for output in outputs)
        stderr = "".join(output.stderr or "" for output in outputs)
        last = outputs[-1].order if outputs else after
        more = {"next_after": last, "has_more": command.outputs > last + 1}
        return {**_shown(command, stdout, stderr, max_characters), **more}

    @tools.tool
    async def shell_stop(
        ctx: RunContext[Any],
        command_id: Annotated[str, Field(description="The `command_id` that `shell_run` returned.")],
    ) -> dict[str, Any]:
        """Stop a running command."""
        command = await service.stop((await own_command(ctx, command_id)).id)
        return {"command_id": command.id, "state": command.state, "exit_code": command.exit_code}

    return tools


async def _session(service: ShellService, conversation_id: str | None) -> str | None:
    if conversation_id is None:
        return None
    try:
        return (await service.store.session(conversation_id)).id
    except (BadInput, NotFound):  # this run is not recorded here
        return None


def _shown(command: Command, stdout: str, stderr: str, most: int) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "command_id": command.id,
        "state": command.state,
        "exit_code": command.exit_code,
        "stdout": _shortened(stdout, most),
        "stderr": _shortened(stderr, most),
    }
    if command.purged_at is not None:
        shown["purged"] = True
    return shown


def _shortened(text: str, most: int) -> str:
    """Return the beginning and the end of a text that is too long."""
    if len(text) <= most:
        return text
    half = most // 2
    left_out = f"\n[{len(text) - 2 * half:,} characters omitted here]\n"
    return text[:half] + left_out + text[len(text) - half :]
