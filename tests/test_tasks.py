import asyncio

from holdfast.tasks import end


async def test_who_does_not_hear_it_is_asked_again():
    heard: list[int] = []

    async def deaf() -> None:
        while len(heard) < 2:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                heard.append(1)

    async def fails() -> None:
        raise ValueError

    tasks = [asyncio.create_task(work()) for work in (deaf, fails)]
    await asyncio.sleep(0)
    await end(*tasks)
    assert len(heard) == 2
    assert all(task.done() for task in tasks)
    await end()
