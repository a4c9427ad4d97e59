"""Ending tasks that would go on for ever."""

import asyncio
from typing import Any

_AGAIN_SECONDS = 1.0


async def end(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks and wait until they have ended, whatever with.

    They are asked again and again: up to Python 3.11 a wait with a time limit that ends in the same moment swallows it.
    """
    left = set(tasks)
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=_AGAIN_SECONDS)
    await asyncio.gather(*tasks, return_exceptions=True)
