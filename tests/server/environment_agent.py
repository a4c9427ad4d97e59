"""An agent that returns the names of the settings in the environment of its worker."""

import os

from holdfast import Turn
from holdfast import agent as function_agent


@function_agent("agent")
async def agent(turn: Turn) -> list[str]:
    del turn
    return sorted(name for name in os.environ if name.startswith("HOLDFAST_"))
