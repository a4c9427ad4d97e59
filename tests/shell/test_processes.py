"""Services in processes of their own: stopped from outside, killed, and succeeded by others."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from holdfast.commands import Command
from holdfast.config import load_settings
from holdfast.ids import new_id
from holdfast.shell import ShellService
from holdfast.shell.process import lives, started_at, this_host
from holdfast.store import Store
from tests.builders import until
from tests.conftest import Engine
from tests.forking import AsyncForked, start_forked
from tests.shell.conftest import leftovers

pytestmark = pytest.mark.processes


@asynccontextmanager
async def serving(url: str, *commands: str) -> AsyncGenerator[tuple[AsyncForked, list[dict[str, Any]]], None]:
    process = await start_forked(
        *(sys.executable, "-m", "tests.shell.serve", url, *commands),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout
    assert process.stdin
    try:
        yield process, [json.loads(await process.stdout.readline()) for _ in commands]
    finally:
        if process.returncode is None:
            process.stdin.close()
            await process.wait()


async def nothing_left() -> bool:
    return not leftovers()


async def test_a_killed_service_leaves_no_child_and_the_next_records_the_end(store: Store, engine: Engine):
    commands = ("echo up; sleep 100", "trap '' TERM; (setsid sleep 100 &); echo up; sleep 100", "sleep 100")
    async with serving(engine.url, *commands) as (process, started):
        for command in started[:2]:
            assert (await anext(store.watch_outputs(command["id"]))).stdout == "up\n"
        process.send_signal(signal.SIGKILL)
        await process.wait()
    # At once, and without anybody's help: the keepers see that their service is gone.
    await until(nothing_left, seconds=5)
    commands_left = (await store.commands(state="running")).items
    assert len(commands_left) == 3

    async def keepers_ended() -> bool:
        return not any(lives(command.pid, command.pid_started) for command in commands_left)

    await until(keepers_ended, seconds=5)
    async with ShellService(store):
        # At once as well, long before the deadline of the dead one has passed.
        for command in started:
            ended = await store.command(command["id"])
            assert (ended.state, ended.exit_code) == ("lost", -1)
            *_, last = [output async for output in store.watch_outputs(ended.id)]
            assert last.exit_code == -1
            assert "died" in (last.stderr or "")


async def test_what_outlived_its_service_and_its_keeper_is_killed(store: Store, engine: Engine):
    async with serving(engine.url, "sleep 100 & sleep 100 & echo up; wait") as (process, started):
        assert (await anext(store.watch_outputs(started[0]["id"]))).stdout == "up\n"
        # Nobody is left to notice: both stand still, and die at the same moment.
        process.send_signal(signal.SIGSTOP)
        os.kill(started[0]["pid"], signal.SIGSTOP)
        process.send_signal(signal.SIGKILL)
        await process.wait()
        os.kill(started[0]["pid"], signal.SIGKILL)
    await until(sleepers_only)
    assert leftovers()
    async with ShellService(store):
        ended = await store.command(started[0]["id"])
        assert (ended.state, ended.exit_code) == ("killed", -1)
    await until(nothing_left, seconds=5)


async def sleepers_only() -> bool:
    return all(line.startswith("sleep") for line in leftovers())


async def test_a_service_that_is_closed_by_its_process_records_the_end(store: Store, engine: Engine):
    async with serving(engine.url, "sleep 100") as (_, started):
        pass
    ended = await store.command(started[0]["id"])
    assert (ended.state, ended.exit_code) == ("killed", -1)


async def test_a_command_is_stopped_from_another_process(store: Store, engine: Engine):
    async with (
        serving(engine.url, "sleep 100", "echo on; sleep 100") as (_, started),
        ShellService(store) as service,
    ):
        stopped = await service.stop(started[0]["id"])
        assert (stopped.state, stopped.exit_code) == ("stopped", -1)
        assert (await store.command(started[1]["id"])).state == "running"


async def test_a_living_service_is_left_alone(store: Store, engine: Engine):
    async with serving(engine.url, "echo up; sleep 100") as (_, started):
        async with ShellService(store), ShellService(store):
            pass
        now = await store.command(started[0]["id"])
        assert (now.state, now.service is not None) == ("running", True)


async def test_a_dead_service_elsewhere_is_recorded_after_its_deadline(store: Store):
    elsewhere = await store.join("shell 1 1 another-machine", ttl=0.5)
    command = Command(
        id=new_id(), command="x", owner="o", holder=elsewhere.id, host="another-machine", pid=1, pid_started=1
    )
    await store.start_command(command)
    async with ShellService(store, settings=load_settings(lease_ttl_seconds=0.4, lease_renew_seconds=0.1)):
        assert (await store.command(command.id)).state == "running"

        async def is_lost() -> bool:
            return (await store.command(command.id)).state == "lost"

        await until(is_lost, seconds=10)


async def test_a_service_that_was_taken_for_dead_ends_its_commands(store: Store, engine: Engine):
    async with ShellService(store) as service:
        command = await service.start("sleep 100")
        holder = service._holder
        assert holder is not None
        await store.leave(holder)  # as `reclaim` does with one past its deadline
        ended = await service.result(command.id)
        assert ended.command.state == "killed"
        assert (await service.execute("echo on")).stdout == "on\n"


async def test_a_pid_that_was_used_again_is_not_touched(store: Store, engine: Engine):
    bystander = await asyncio.create_subprocess_exec("sleep", "100", start_new_session=True)
    born = started_at(bystander.pid)
    assert born is not None
    command = Command(id=new_id(), command="x", owner="o", holder="gone", host=this_host(), pid=bystander.pid)
    await store.start_command(replace(command, pid_started=born - 1))
    async with ShellService(store):
        assert (await store.command(command.id)).state == "lost"
    assert bystander.returncode is None
    bystander.kill()
    await bystander.wait()
