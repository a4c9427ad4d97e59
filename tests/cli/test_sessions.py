"""`holdfast sessions show`: what waits in a session, and what has ended."""

from pathlib import Path

import holdfast
from holdfast import Turn, open_store
from tests.cli.test_url import Shell
from tests.runtime.agents import working


async def test_a_message_for_later_a_kept_signal_and_the_last_turn_are_shown(tmp_path: Path):
    @holdfast.agent("bot")
    async def bot(turn: Turn) -> str:
        return f"read {turn.text}"

    path = f"sqlite:///{tmp_path}/s.db"
    shell = Shell({"HOLDFAST_STORE": path})
    async with open_store(path) as store, working(store, bot):
        await shell.text("send", "s", "hi", "--agent", "bot", "--wait")
        (turn,) = [each.id for each in (await store.submissions("s")).items]
        await shell.text("signal", "s", "paid", "--data", '{"amount": 5}', "--wait")
        later = (await shell.text("send", "s", "later", "--at", "2036-01-01T09:00:00+01:00")).strip()
        shown = (await shell.text("sessions", "show", "s")).splitlines()
        assert f"queued      {later} message, not before 2036-01-01 08:00:00Z" in shown
        assert 'signal      paid {"amount": 5}' in shown
        assert f"last turn   {turn} done" in shown
        shown = await shell.json("sessions", "show", "s")
        assert shown["signals"] == [{"name": "paid", "data": {"amount": 5}}]
        assert (shown["last_turn"]["id"], shown["last_turn"]["state"]) == (turn, "done")


async def test_a_schedule_for_an_agent_without_a_worker_is_created_with_a_warning(tmp_path: Path):
    @holdfast.agent("reporter")
    async def reporter(turn: Turn) -> str:
        return turn.text

    path = f"sqlite:///{tmp_path}/s.db"
    shell = Shell({"HOLDFAST_STORE": path})
    create = ("schedule", "create", "--cron", "0 9 * * *", "--text", "go")
    async with open_store(path) as store, working(store, reporter):
        created = await shell.holdfast(*create, "--agent", "reportr")
        assert (created.exit_code, "agent       reportr" in created.stdout) == (0, True)
        assert created.stderr.startswith(
            "warning: No live worker serves agent 'reportr'. Did you mean 'reporter'?"
        )
        assert (await shell.holdfast(*create, "--agent", "reporter")).stderr == ""
        empty = await shell.holdfast(
            "schedule", "create", "--cron", "0 9 * * *", "--text", "", "--agent", "reporter"
        )
        assert "the message is empty" in str(empty.exception)
        naive = await shell.holdfast("send", "s", "hi", "--at", "2036-01-01T09:00:00")
        assert "has no time zone. Append Z" in str(naive.exception)
