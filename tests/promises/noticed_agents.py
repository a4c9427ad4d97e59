"""The agent of the drill of notices. Its message is what it does: fail, ask, or answer."""

from datetime import timedelta

from holdfast import Turn, agent

SOON = timedelta(seconds=0.5)


@agent("obedient")
async def obedient(turn: Turn) -> str:
    """Do as told."""
    if turn.text == "fail":
        message = "as told"
        raise RuntimeError(message)
    if turn.text == "ask":
        return str(bool(await turn.ask("May I?", deadline=SOON, default="deny")))
    return turn.text
