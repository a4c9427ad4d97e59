import asyncio
import logging
from typing import Any

import pytest

from holdfast.config import load_settings
from holdfast.errors import BadSettings, StoreUnavailable
from holdfast.shell import ShellService
from holdfast.shell.retention import Sweeper, purge
from holdfast.store import Store, open_store
from tests.builders import until


async def test_the_first_sweep_is_at_the_start(store: Store):
    async with ShellService(store) as service:
        old = await service.execute("echo old")
    settings = load_settings(shell_retention_seconds=0.001)
    async with ShellService(store, settings=settings) as service:
        running = await service.start("echo on; sleep 100")
        await anext(service.follow(running.id))

        async def is_purged() -> bool:
            return (await store.command(old.command.id)).purged_at is not None

        await until(is_purged, seconds=10)
        # A command that runs keeps its record and its output, however old they are.
        assert await purge(store, 0) == 0
        assert len(await store.outputs(running.id)) == 1
        assert (await store.command(running.id)).command == "echo on; sleep 100"


async def test_the_settings_of_the_store_apply_to_its_shell_service():
    settings = load_settings(
        store="sqlite://:memory:",
        shell_retention_seconds=90,
        shell_output_bytes=2048,
        shell_tail_bytes=1024,
    )
    async with open_store(settings=settings) as store, ShellService(store) as service:
        assert [task.get_name() for task in service._chores] == ["holdfast-shell", "holdfast-shell-sweeper"]
        result = await service.execute("head -c 8000 /dev/zero | tr '\\0' x")
        assert result.command.left_out_bytes == 8000 - 2048


async def test_without_a_setting_everything_is_kept(store: Store):
    async with ShellService(store) as service:
        result = await service.execute("echo x")
        assert [task.get_name() for task in service._chores] == ["holdfast-shell"]
    async with ShellService(store):
        assert (await store.command(result.command.id)).purged_at is None


async def test_the_environment_sets_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOLDFAST_SHELL_RETENTION_SECONDS", "90")
    assert load_settings().shell_retention_seconds == 90
    monkeypatch.setenv("HOLDFAST_SHELL_RETENTION_SECONDS", "0")
    with pytest.raises(BadSettings, match="shell_retention_seconds"):
        load_settings()
    monkeypatch.delenv("HOLDFAST_SHELL_RETENTION_SECONDS")
    assert load_settings().shell_retention_seconds is None
    with pytest.raises(BadSettings, match="twice"):
        load_settings(shell_output_bytes=2000, shell_tail_bytes=1001)


async def test_it_comes_every_half_retention_and_less_often_while_it_fails(store: Store):
    assert Sweeper(store, 1).pause(0) == 60
    assert Sweeper(store, 600).pause(0) == 300
    pauses = [Sweeper(store, 600).pause(failures) for failures in range(1, 8)]
    assert pauses == [600, 1200, 2400, 3600, 3600, 3600, 3600]
    assert Sweeper(store, 100_000).pause(50) == 50_000


async def test_a_failing_store_does_not_end_it(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    sweeper = Sweeper(store, 1)
    monkeypatch.setattr(sweeper, "pause", lambda failures: 0.001)  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    calls = 0
    real = store.purge_commands

    async def fail_twice(*, older_than: float, limit: int, **more: Any) -> int:
        nonlocal calls
        calls += 1
        if calls < 3:
            raise StoreUnavailable(url=store.url, problem="gone")
        return await real(older_than=older_than, limit=limit, **more)

    monkeypatch.setattr(store, "purge_commands", fail_twice)
    with caplog.at_level(logging.WARNING):
        task = asyncio.create_task(sweeper.run())
        try:

            async def has_gone_on() -> bool:
                return calls > 3

            await until(has_gone_on)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    assert [record.message.split(":")[0] for record in caplog.records] == [
        "purging shell commands failed 1 times in a row",
        "purging shell commands failed 2 times in a row",
    ]
