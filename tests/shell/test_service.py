import asyncio
import os
import resource
import time
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.commands import Command, Output
from holdfast.config import load_settings
from holdfast.errors import (
    BadInput,
    BadText,
    BadUuid,
    CommandLost,
    FolderNotFound,
    NotFound,
    SessionNotFound,
    ShellClosed,
    ShellUnavailable,
)
from holdfast.ids import new_id
from holdfast.shell import ShellService
from holdfast.store import Store
from tests.builders import new_session, until


async def test_execute_returns_the_exit_code_and_both_streams(service: ShellService, tmp_path: Path):
    result = await service.execute("echo out; echo err >&2; pwd; exit 3")
    assert (result.stdout, result.stderr) == (f"out\n{tmp_path}\n", "err\n")
    command = result.command
    assert (command.state, command.exit_code, command.cwd) == ("done", 3, str(tmp_path))
    assert (command.stdout_bytes, command.stderr_bytes) == (len(result.stdout), 4)
    assert (command.left_out_bytes, command.damaged, command.timeout) == (0, False, 300.0)
    outputs = await service.store.outputs(command.id)
    assert [o.exit_code for o in outputs] == [None] * (len(outputs) - 1) + [3]


async def test_output_is_seen_while_the_command_runs(service: ShellService, tmp_path: Path):
    (tmp_path / "gate").touch()
    command = await service.start("echo first; while [ -e gate ]; do sleep 0.01; done; echo second")
    following = service.follow(command.id)
    first = await anext(following)
    assert (first.stdout, first.order, first.exit_code) == ("first\n", 0, None)
    assert (await service.store.command(command.id)).state == "running"
    (tmp_path / "gate").unlink()
    rest = [output async for output in following]
    assert "".join(o.stdout or "" for o in rest) == "second\n"
    # Whoever comes back goes on after the number it has.
    assert [o.order async for o in service.follow(command.id, after=0)] == [o.order for o in rest]


async def test_a_trickle_is_written_ten_times_a_second(service: ShellService):
    result = await service.execute("for i in $(seq 50); do echo $i; sleep 0.01; done")
    assert result.stdout.split() == [str(n + 1) for n in range(50)]
    command = result.command
    assert command.started_at
    assert command.ended_at
    seconds = (command.ended_at - command.started_at).total_seconds()
    assert 3 <= command.outputs <= seconds / 0.1 + 2


async def test_commands_run_at_the_same_time(service: ShellService, tmp_path: Path):
    # Each waits for all others: this ends only if they do.
    (tmp_path / "all").mkdir()
    wait = "cd all; touch $N; until [ $(ls | wc -l) = 8 ]; do sleep 0.01; done; echo $N"
    results = await asyncio.gather(*(service.execute(wait, env={"N": str(n)}, timeout=60) for n in range(8)))
    assert [r.stdout for r in results] == [f"{n}\n" for n in range(8)]


async def test_a_timeout_ends_a_command_and_what_it_started(service: ShellService):
    started = time.monotonic()
    result = await service.execute("echo begun; sleep 100 & sleep 100", timeout=0.3)
    assert (result.command.state, result.command.exit_code, result.stdout) == ("timed_out", -1, "begun\n")
    assert time.monotonic() - started < 1.2  # SIGTERM was enough


async def test_a_command_that_ignores_sigterm_is_killed_after_a_second(service: ShellService):
    started = time.monotonic()
    result = await service.execute("trap 'echo no' TERM; while :; do sleep 0.05; done", timeout=0.3)
    assert (result.command.state, result.command.exit_code) == ("timed_out", -1)
    assert "no\n" in result.stdout
    assert 1.3 <= time.monotonic() - started < 4


async def test_a_command_that_cleans_up_on_sigterm_may(service: ShellService):
    trap = "trap 'echo bye; exit 5' TERM; echo up; while :; do sleep 0.01; done"
    command = await service.start(trap)
    await anext(service.follow(command.id))
    stopped = await service.stop(command.id)
    assert (stopped.state, stopped.exit_code) == ("stopped", -1)
    assert (await service.result(command.id)).stdout == "up\nbye\n"


async def test_stop_ends_a_command_once(service: ShellService):
    command = await service.start("sleep 100")
    stopped = await service.stop(command.id.replace("-", ""))
    assert (stopped.state, stopped.exit_code) == ("stopped", -1)
    assert await service.stop(command.id) == stopped
    done = await service.execute("exit 4")
    assert (await service.stop(done.command.id)).state == "done"
    with pytest.raises(NotFound):
        await service.stop(new_id())


@pytest.mark.parametrize(
    "command",
    [
        "sleep 100 & echo x",
        "(setsid sleep 100 &) ; echo x",
        "setsid sh -c 'sleep 100 & sleep 100' & echo x",
        "nohup sleep 100 >/dev/null 2>&1 & echo x",
        "for i in 1 2 3; do (trap '' TERM HUP INT; sleep 100) & done; echo x",
        "python3 -c 'import os, time; os.fork() or os.setsid() or os.fork() or time.sleep(100)'; echo x",
    ],
)
async def test_what_a_command_leaves_behind_ends_with_it(service: ShellService, command: str):
    started = time.monotonic()
    result = await service.execute(command)
    assert (result.command.exit_code, result.stdout) == (0, "x\n")
    assert time.monotonic() - started < 5  # and `no_leaks` finds nothing


async def test_a_process_substitution_may_finish(service: ShellService):
    result = await service.execute("echo hello > >(sleep 0.1; cat)")
    assert result.stdout == "hello\n"


async def test_a_command_may_close_its_output(service: ShellService):
    result = await service.execute("echo x; exec >&- 2>&-; sleep 0.2; exit 6")
    assert (result.stdout, result.command.exit_code) == ("x\n", 6)


async def test_a_command_reads_nothing_from_us(service: ShellService):
    assert (await service.execute("cat; read line || echo end")).stdout == "end\n"


async def test_no_newline_is_needed(service: ShellService):
    assert (await service.execute("printf %300000d 7")).stdout == "7".rjust(300_000)


async def test_what_is_not_utf8_is_replaced_and_flagged(service: ShellService):
    result = await service.execute(r"printf 'a\xff\0b'; sleep 0.3; echo fine")
    assert (result.stdout, result.command.damaged) == ("a��bfine\n", True)
    outputs = await service.store.outputs(result.command.id)
    assert [o.damaged for o in outputs if o.stdout] == [True, False]
    cut = await service.execute(r"echo fine; printf '\xe2\x82' >&2")
    assert (cut.stdout, cut.stderr, cut.command.damaged) == ("fine\n", "�", True)


async def test_a_character_may_arrive_in_pieces(service: ShellService):
    result = await service.execute(r"for b in '\xf0' '\x9f' '\x98' '\x80'; do printf $b; sleep 0.15; done")
    assert (result.stdout, result.command.damaged) == ("😀", False)
    many = await service.execute("yes 'é€😀' | head -c 1000000", timeout=60)
    assert many.stdout == ("é€😀\n" * 100_000)
    assert not many.command.damaged
    assert many.command.outputs > 15


async def test_a_gigabyte_is_bounded_and_ends(store: Store):
    settings = load_settings(shell_output_bytes=200_000, shell_tail_bytes=50_000)
    async with ShellService(store, settings=settings) as service:
        result = await service.execute("yes 0123456 | head -c 1000000000; echo the end", timeout=100)
    command = result.command
    assert (command.state, command.exit_code, command.stdout_bytes) == ("done", 0, 1_000_000_008)
    assert command.left_out_bytes == 1_000_000_008 - 200_000
    head, marker, tail = result.stdout.partition("\n[holdfast: 999,800,008 bytes omitted here; ")
    assert head == ("0123456\n" * 20_000)[:150_000]
    assert marker
    assert tail.endswith("0123456\nthe end\n")
    assert len(tail) < 50_100


async def test_the_environment_holds_no_secrets_of_ours(
    service: ShellService, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HOLDFAST_STORE", "sqlite:///secret.db")
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    result = await service.execute("env", env={"GIVEN": "yes", "HOME": "/nowhere"})
    names = dict(line.split("=", 1) for line in result.stdout.splitlines())
    assert "secret" not in result.stdout
    assert (names["GIVEN"], names["HOME"], names["LC_ALL"]) == ("yes", "/nowhere", "C.UTF-8")
    assert names["PATH"] == os.environ["PATH"]
    assert names["SHELL_COMMAND_ID"] == result.command.id
    ours = {"PATH", "HOME", "LANG", "LANGUAGE", "TERM", "TZ", "TMPDIR", "USER", "LOGNAME", "SHELL"}
    of_bash = {"PWD", "SHLVL", "_", "OLDPWD"}
    assert {n for n in names if not n.startswith("LC_")} <= ours | of_bash | {"GIVEN", "SHELL_COMMAND_ID"}
    # Nor are our open files theirs.
    fds = await service.execute("ls /proc/self/fd")
    assert set(fds.stdout.split()) <= {"0", "1", "2", "3"}


async def test_bad_input_starts_and_records_nothing(service: ShellService, tmp_path: Path):
    (tmp_path / "file").touch()
    for cwd in ("missing", "/nowhere", tmp_path / "file", "a\x00b"):
        with pytest.raises(FolderNotFound):
            await service.start("ls", cwd=cwd)
    for command in ("", "  \n", "a\x00b", "\ud800", "x" * 200_000):
        with pytest.raises(BadText):
            await service.start(command)
    for timeout in (0, -1, float("nan"), float("inf"), 1e12):
        with pytest.raises(BadInput):
            await service.start("ls", timeout=timeout)
    for env in ({"": "x"}, {"A=B": "x"}, {"A": "\x00"}, {"A": "x" * 10_000_000}):
        with pytest.raises(BadInput):
            await service.start("ls", env=env)
    with pytest.raises(SessionNotFound):
        await service.start("ls", session_id="nobody")
    with pytest.raises(BadInput):
        await service.start("ls", session_id="no body")
    with pytest.raises(BadInput):
        await service.start("ls", owner="")
    assert (await service.store.commands()).items == []


async def test_bad_questions_are_refused(service: ShellService):
    for limit in (0, -1, 101):
        with pytest.raises(BadInput, match="1 to 100"):
            await service.search(limit=limit)
    with pytest.raises(BadInput):
        await service.search(page_id="yesterday")
    with pytest.raises(BadUuid):
        await service.search(command_id="7")
    with pytest.raises(BadUuid):
        await service.event("7")
    with pytest.raises(NotFound):
        await service.event(new_id())
    with pytest.raises(BadInput, match="at most 100"):
        await service.events([new_id()] * 101)
    with pytest.raises(NotFound):
        await anext(service.follow(new_id()))


async def test_the_log_is_searched_and_cleared(service: ShellService):
    done = (await service.execute("echo a")).command
    running = await service.start("echo b; sleep 100")
    await anext(service.follow(running.id))
    events = (await service.search()).items
    ended = done.outputs + 1
    assert [type(e) for e in events] == [Command, *[Output] * done.outputs, Command, Output]
    assert await service.event(events[1].id.replace("-", "")) == events[1]
    page = await service.search(limit=1)
    assert await service.clear() == ended
    # What runs is left alone, and yesterday's page id still leads on from where it was.
    assert [e.id for e in (await service.search(page_id=page.next_cursor)).items] == [
        e.id for e in events[ended:]
    ]
    assert await service.events([e.id for e in events[:2]]) == [None, None]
    result = await service.store.command(events[0].id)
    assert (result.exit_code, result.stdout_bytes, result.command) == (0, 2, "")


async def test_a_command_belongs_to_a_session(service: ShellService, store: Store):
    session_id = await new_session(store)
    result = await service.execute("echo x", session_id=session_id, owner="ada")
    assert [c.id for c in (await store.commands(session_id=session_id)).items] == [result.command.id]
    lease = await store.acquire(session_id, await store.join("cleaner"))
    running = await service.start("sleep 100", session_id=session_id)
    # When the content of its session goes, a command that still runs is ended at its next output.
    chatty = await service.start("while :; do echo x; sleep 0.05; done", session_id=session_id)
    await anext(service.follow(chatty.id))
    while await store.delete_content(lease):
        pass
    await until(lambda: _gone(service, chatty.id))
    with pytest.raises(NotFound):
        await store.command(running.id)


async def _gone(service: ShellService, command_id: str) -> bool:
    return command_id not in service._running


async def test_closing_ends_everything(store: Store):
    async with ShellService(store) as service:
        quiet = await service.start("sleep 100")
        stubborn = await service.start("trap '' TERM; echo up; sleep 100 & wait; sleep 100")
        await anext(service.follow(stubborn.id))
    for command in (quiet, stubborn):
        ended = await store.command(command.id)
        assert (ended.state, ended.exit_code) == ("killed", -1)
    assert await store.holders() == []
    with pytest.raises(ShellClosed):
        await service.start("ls")
    await service.close()


async def test_closing_waits_for_what_is_being_started(store: Store):
    async with ShellService(store) as service:
        starting = [asyncio.create_task(service.start("sleep 100")) for _ in range(4)]
        await asyncio.sleep(0)
    for outcome in await asyncio.gather(*starting, return_exceptions=True):
        if isinstance(outcome, Command):
            assert (await store.command(outcome.id)).state == "killed"
        else:
            assert isinstance(outcome, ShellClosed)


async def test_a_caller_that_leaves_does_not_stop_a_command(service: ShellService, store: Store):
    executing = asyncio.create_task(service.execute("echo up; sleep 0.3; echo on"))
    await until(lambda: _has_output(store))
    executing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await executing
    (command,) = (await store.commands()).items
    assert (await service.result(command.id)).stdout == "up\non\n"


async def _has_output(store: Store) -> bool:
    return any(command.stdout_bytes for command in (await store.commands()).items)


async def test_a_caller_that_leaves_early_leaves_nothing_unknown(service: ShellService, store: Store):
    for _ in range(10):
        starting = asyncio.create_task(service.start("sleep 0.1"))
        await asyncio.sleep(0.005 * _)
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
    # Each was started and recorded, or neither. One whose id nobody learned is stopped.
    for command in (await store.commands()).items:
        assert (await service.result(command.id)).command.state in {"done", "stopped"}


async def test_a_command_that_kills_its_keeper_ends_as_killed(service: ShellService):
    result = await service.execute("sleep 100 & kill -9 $PPID; sleep 100")
    assert (result.command.state, result.command.exit_code) == ("killed", -1)


async def test_a_signal_is_told_as_shells_do(service: ShellService):
    assert (await service.execute("kill -9 $$")).command.exit_code == 137
    assert (await service.execute("exit 255")).command.exit_code == 255
    assert (await service.execute("no-such-program-here")).command.exit_code == 127


async def test_a_folder_that_goes_away_is_said(service: ShellService, tmp_path: Path):
    folder = tmp_path / "brief"
    folder.mkdir()
    folder.chmod(0o700)
    result = await service.execute("pwd", cwd="brief")
    assert result.stdout == f"{folder}\n"


async def test_a_command_declared_lost_is_ended(service: ShellService, store: Store):
    command = await service.start("while :; do echo x; sleep 0.02; done")
    async for output in service.follow(command.id):
        now = await store.command(command.id)
        try:
            lost = replace(now, state="lost", exit_code=-1)
            await store.write_outputs(lost, [Output(id=new_id(), exit_code=-1)])
        except CommandLost:
            continue  # it was quicker
        assert output.command_id == command.id
        break
    await until(lambda: _gone(service, command.id))
    assert (await store.command(command.id)).state == "lost"


async def test_a_command_without_file_descriptors_is_not_the_fault_of_the_caller(
    service: ShellService, store: Store
):
    """It may be sent again; bad input may not."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        with pytest.raises(ShellUnavailable, match="Too many open files"):
            await service.execute("true")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert not (await store.commands()).items
    assert (await service.execute("echo back")).stdout == "back\n"
