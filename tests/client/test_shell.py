"""Shell commands through the client, on a server that allows them."""

from pathlib import Path

import pytest

from holdfast import connect
from holdfast.api.shell import BashCommand, BashOutput
from holdfast.errors import NotFound
from tests.server.fronts import front


async def test_a_command_is_run_followed_listed_and_stopped(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/store.db"
    async with (
        front(url, "--role", "api", "--enable-shell") as server,
        connect(server.url, token=server.token) as hf,
    ):
        session = await hf.session(agent="agent")
        done = await hf.shell.run("echo hello", session_id=session.id)
        assert (done.stdout, done.exit_code) == ("hello\n", 0)
        (listed,) = [command async for command in session.commands()]
        assert (listed.command, listed.state) == ("echo hello", "done")
        assert "hello\n" in [output.stdout for output in await session.command_output(listed.id)]
        started = await hf.shell.start("echo one; echo two")
        pieces = [output.stdout or "" async for output in hf.shell.output(started.id)]
        assert "".join(pieces) == "one\ntwo\n"
        endless = await hf.shell.start("sleep 600")
        assert (await hf.shell.info(endless.id)).state == "running"
        assert (await hf.shell.stop(endless.id)).state == "stopped"
        kinds = {type(event) async for event in hf.shell.events()}
        assert kinds == {BashCommand, BashOutput}
        assert await hf.shell.clear() > 0


async def test_without_a_shell_there_are_no_commands(tmp_path: Path):
    async with connect(f"sqlite:///{tmp_path}/store.db") as hf:
        with pytest.raises(NotFound):
            await hf.shell.run("true")
