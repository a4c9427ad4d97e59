"""A database that goes away in the middle of a run: the run stops with our error, and is resumed when it is back."""

import asyncio
import os
import subprocess
from collections.abc import Generator
from pathlib import Path

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from holdfast import Holdfast, Store, inspect_run, load_history, open_store, resume
from holdfast.errors import HoldfastError, LeaseLost, SessionBusy, StoreFull, StoreUnavailable
from holdfast.record import is_provider_valid
from holdfast.types import Batch, Lease
from tests.record.agents import call
from tests.servers import Postgres, postgres


class World:
    """An agent that calls `step` three times, and something that happens at one point of its run."""

    def __init__(self) -> None:
        self.ran: list[int] = []
        self.point: str | None = None
        self.reached, self.go = asyncio.Event(), asyncio.Event()

    async def here(self, name: str) -> None:
        if name == self.point:
            self.point = None
            self.reached.set()
            await self.go.wait()

    def agent(self, store: Store, size: int = 10) -> Agent[None, str]:
        async def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
            asked = sum(isinstance(message, ModelResponse) for message in messages)
            await self.here(f"model {asked}")
            if asked < 3:
                return ModelResponse(parts=[call("step", f"call-{asked}", x=asked)])
            found = [p.content for m in messages for p in m.parts if isinstance(p, ToolReturnPart)]
            return ModelResponse(parts=[TextPart(f"{len(found)} answers")])

        async def step(x: int) -> str:
            self.ran.append(x)
            await self.here(f"after {x}")
            return f"{x}" * size

        return Agent(FunctionModel(model), tools=[step], capabilities=[Holdfast(store, lease_ttl=1.0)])


async def reached(world: World, store: Store) -> None:
    """Wait for the point, and until the calls that ended before it are on record: the model is asked while they are written."""
    is_asked = world.point is not None and world.point.startswith("model")
    await world.reached.wait()
    while is_asked and any(call.state != "completed" for call in (await store.effects("talk")).items):
        await asyncio.sleep(0.005)


async def resumed(world: World, store: Store) -> tuple[str, str]:
    """Resume the last run as soon as its lease has run out; return the output, and the whole history as text."""
    (run,) = (await store.runs(session_id="talk")).items
    while True:
        try:
            result = await resume(world.agent(store), store, run.id)
        except SessionBusy:
            await asyncio.sleep(0.05)
        else:
            break
    (latest,) = (await store.checkpoints(session_id="talk", limit=1)).items
    history = await load_history(store, latest)
    assert history == result.all_messages()
    assert is_provider_valid(history)
    assert await store.check() == []
    return result.output, str(history)


@pytest.fixture
def server() -> Generator[Postgres, None, None]:
    with postgres() as server:
        yield server


@pytest.mark.thorough("after 1")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("point", ["model 1", "after 1"])
async def test_postgres_is_killed_and_comes_back(server: Postgres, point: str):
    world = World()
    world.point = point
    async with open_store(server.url()) as store:
        running = asyncio.create_task(world.agent(store).run("hi", conversation_id="talk"))
        await reached(world, store)
        await asyncio.to_thread(server.kill)
        world.go.set()
        with pytest.raises((StoreUnavailable, LeaseLost)):  # on a slow machine, its lease expires first
            await running
        # What ran before is not lost, and what followed the failure did not happen.
        assert world.ran == list(range({"model 1": 1, "after 1": 2}[point]))
        await asyncio.to_thread(server.start)
        output, text = await resumed(world, store)
    assert output == "3 answers"
    # The one whose end could not be written is unknown; no call ran twice.
    assert world.ran == [0, 1, 2]
    assert ("it is unknown whether it took effect" in text) == (point == "after 1")


@pytest.fixture
def small_disk(tmp_path: Path) -> Generator[Path, None]:
    if os.geteuid() != 0:
        if os.environ.get("CI") == "true":
            pytest.fail("this needs root to mount a small disk")
        pytest.skip("only root can mount a small disk")
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)], check=True)
    try:
        yield disk
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.parametrize("point", ["after 1", "model 1"])
async def test_the_disk_fills_up_and_has_room_again(small_disk: Path, point: str):
    world = World()
    world.point = point
    async with open_store(f"sqlite:///{small_disk}/store.db") as store:
        running = asyncio.create_task(world.agent(store, 100_000).run("hi", conversation_id="talk"))
        await reached(world, store)
        with (small_disk / "ballast").open("wb", buffering=0) as ballast:
            for size in (65536, 512):
                try:
                    while True:
                        ballast.write(b"\x01" * size)
                except OSError:
                    continue
        world.go.set()
        with pytest.raises(StoreFull):
            await running
        (small_disk / "ballast").unlink()
        assert await store.check() == []
        (run,) = (await store.runs(session_id="talk")).items
        assert (await inspect_run(store, run.id)).latest is not None
        output, text = await resumed(world, store)
    assert output == "3 answers"
    assert world.ran == [0, 1, 2]
    assert ("it is unknown whether it took effect" in text) == (point == "after 1")


async def test_a_late_write_that_fails_stops_the_run(memory: Store):
    """Nothing may be written on top of what was not: here the beginning of the run, and what it was given."""
    world, failed, write = World(), asyncio.Event(), memory.write

    async def failing(lease: Lease, batch: Batch) -> int:
        if not failed.is_set():
            failed.set()
            raise StoreFull(url=memory.url)
        return await write(lease, batch)

    memory.write = failing
    agent = world.agent(memory)

    @agent.instructions
    async def slow() -> str:  # pyright: ignore[reportUnusedFunction]
        await failed.wait()
        return ""

    with pytest.raises(StoreFull):
        await agent.run("hi", conversation_id="talk")
    assert world.ran == []
    (run,) = (await memory.runs(session_id="talk")).items
    assert run.status == "failed"
    assert (await memory.checkpoints(session_id="talk")).items == []


async def test_no_call_runs_beside_one_that_could_not_be_written(memory: Store):
    """Two calls of one response: the first brings the response to the store. Without it the second is nobody's."""
    ran: list[str] = []
    write = memory.write

    async def failing(lease: Lease, batch: Batch) -> int:
        if batch.effects and not ran:
            await asyncio.sleep(0)  # the other call comes meanwhile
            raise StoreFull(url=memory.url)
        return await write(lease, batch)

    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        return ModelResponse(parts=[call("step", "one", x=1), call("step", "two", x=2)])

    agent = Agent(FunctionModel(model), capabilities=[Holdfast(memory)])

    @agent.tool_plain
    async def step(x: int) -> str:  # pyright: ignore[reportUnusedFunction]
        ran.append(str(x))
        return "done"

    memory.write = failing
    with pytest.raises(StoreFull):
        await agent.run("hi", conversation_id="talk")
    assert ran == []
    assert await memory.check() == []
    (run,) = (await memory.runs(session_id="talk")).items
    assert run.status == "failed"


async def test_a_file_that_is_taken_away(tmp_path: Path):
    """The folder is renamed under a running agent, and put back."""
    world = World()
    world.point = "after 1"
    place, away = tmp_path / "here", tmp_path / "away"
    place.mkdir()
    url = f"sqlite:///{place}/store.db"
    async with open_store(url) as store:
        running = asyncio.create_task(world.agent(store).run("hi", conversation_id="talk"))
        await world.reached.wait()
        await store.close()
        place.rename(away)
        world.go.set()
        with pytest.raises(HoldfastError):
            await running
    away.rename(place)
    async with open_store(url) as store:
        output, _ = await resumed(world, store)
    assert (output, world.ran) == ("3 answers", [0, 1, 2])
