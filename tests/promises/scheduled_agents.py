"""The agent whose sessions the schedules of test_schedules_on_time.py create."""

from holdfast import Turn, agent


@agent("quick")
async def quick(turn: Turn) -> str:
    return f"did: {turn.text}"
