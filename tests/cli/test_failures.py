"""A turn whose effects are undone: the commands show what became of them, and name the command that continues."""

from pathlib import Path

import holdfast
from holdfast import CompletedStep, Turn, open_store
from tests.cli.test_url import Shell
from tests.runtime.agents import working


async def test_an_undo_that_stopped_is_continued_and_then_no_longer_shown_as_stopped(tmp_path: Path):
    broken = [True]

    async def pay() -> str:
        return "paid"

    async def refund(step: CompletedStep[str]) -> None:
        if broken:
            message = "the bank is down."
            raise ConnectionError(message)

    @holdfast.agent("shop", undo=[refund], on_failure="undo")
    async def shop(turn: Turn) -> None:
        await turn.step("pay", pay, undo=refund)
        message = "Out of stock."
        raise RuntimeError(message)

    path = f"sqlite:///{tmp_path}/s.db"
    shell = Shell({"HOLDFAST_STORE": path, "COLUMNS": "200"})
    async with open_store(path) as store, working(store, shop):
        failed = await shell.holdfast("send", "s", "buy", "--agent", "shop", "--wait")
        (turn,) = [each.id for each in (await store.submissions("s")).items]
        command = f"holdfast undo-effects s {turn} --wait"
        assert failed.stderr.endswith(f"\nContinue the undo of its effects with: {command}\n")
        assert "Out of stock; Conflict: The undo stopped at step 'pay' (turn/pay)" in failed.stderr
        assert "the bank is down. Undo the effects again" in failed.stderr
        shown = await shell.text("sessions", "show", "s")
        assert f"last turn   {turn} failed: RuntimeError: Out of stock.\n" in shown
        assert "effects     the undo has stopped: Conflict: The undo stopped" in shown
        assert f"undo        {command}\n" in shown
        assert "holdfast retry" not in shown
        again = await shell.holdfast("undo-effects", "s", "--wait")
        assert (again.exit_code, "the bank is down" in again.stderr) == (1, True)
        assert f"undo        {command}\n" in await shell.text("sessions", "show", "s")
        broken.clear()
        assert "undone: turn/pay by refund\n" in await shell.text("undo-effects", "s", "--wait")
        assert "Nothing was left to undo.\n" in await shell.text("undo-effects", "s", "--wait")
        shown = await shell.text("sessions", "show", "s")
        assert f"last turn   {turn} failed: RuntimeError: Out of stock.\n" in shown
        assert "effects     undone\n" in shown
        assert "stopped" not in shown
        assert "undo_failed" in (told := await shell.text("tail", "s", "--no-follow"))
        assert "turn/pay by refund: ConnectionError: the bank is down." in told
