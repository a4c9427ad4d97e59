"""The agent of the drill with many timers. A message is its plan: how long it sleeps, and which signals it waits for."""

import json

from holdfast import Turn, agent


def noted(what: str) -> str:
    return what


@agent("sleeper")
async def sleeper(turn: Turn) -> str:
    """Sleep and wait as the message says, with a step between, and return what was received."""
    plan = json.loads(turn.text)
    for number, seconds in enumerate(plan.get("sleeps", [])):
        await turn.sleep(seconds=seconds)
        await turn.step(f"awake-{number}", noted, "awake", recovery="retry")
    received = [await turn.signal(name) for name in plan.get("signals", [])]
    return json.dumps(received)
