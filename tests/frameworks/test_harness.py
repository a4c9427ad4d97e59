"""Runs of pydantic-ai-harness: compared with its own stores, in real runs, with kills and retention."""

import asyncio
import json
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pydantic_ai import Agent
from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    TextPart,
    ToolCallPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.tools import RunContext
from pydantic_ai_harness.conversation_search import SnapshotHistorySource
from pydantic_ai_harness.media import (
    MediaStore,
)
from pydantic_ai_harness.step_persistence import (
    ContinuableSnapshot,
    InMemoryStepStore,
    RunRecord,
    SqliteStepStore,
    StepEvent,
    StepPersistence,
    StepStore,
    ToolEffectRecord,
    annotate_tool_effect,
    continue_run,
    fork_run,
)
from pydantic_ai_harness.step_persistence.recovery import inspect_recovery

from holdfast.errors import BadInput
from holdfast.frameworks.harness import HoldfastMediaStore, HoldfastStepStore
from tests import forking
from tests.conftest import Engine
from tests.frameworks.harness_children import EVENTS, KILLS, TALK, brief, clerk, expected, newest
from tests.frameworks.harness_snapshots import NOON, said, snapshot

ROOT = Path(__file__).parents[2]
MARK = "mark-of-content-93ad"
LARGE = (MARK * 10_000)[:150_000]
pytestmark = pytest.mark.processes


# Compared with the stores of the harness

_RUNS = st.sampled_from(["a", "b"])
_STATES = st.sampled_from(["complete", "complete", "interrupted"])
_OPERATIONS = st.one_of(
    st.tuples(st.just("register"), _RUNS, st.sampled_from([None, "talk"]), st.sampled_from([None, "a"])),
    st.tuples(st.just("event"), _RUNS, st.integers(0, 3), st.booleans()),
    st.tuples(st.just("snapshot"), _RUNS, _STATES, st.sampled_from(["new", "new", "first", "last", "none"])),
    st.tuples(
        st.just("effect"), _RUNS, st.integers(0, 2), st.sampled_from(["started", "completed", "failed"])
    ),
)
_numbers = count()


class Scenario:
    """Does the same on several stores: ours, and those of the harness."""

    def __init__(self, stores: dict[str, Any]) -> None:
        self.stores = stores
        self.times = (NOON + timedelta(seconds=number) for number in count())
        self.started: dict[tuple[str, int], datetime] = {}
        self.registered: set[str] = set()
        self.keys: dict[str, list[str]] = {}
        self.history: list[ModelMessage] = []

    async def do(self, what: str, run: str, *given: Any) -> None:
        await getattr(self, f"_{what}")(run, *given)

    async def _each(self, work: Callable[[Any], Any]) -> None:
        for store in self.stores.values():
            await work(store)

    async def _register(self, run: str, talk: str | None, parent: str | None) -> None:
        record = RunRecord(
            run_id=run,
            conversation_id=talk,
            parent_run_id=parent,
            agent_name="ä",
            metadata={"a": "b"},
            started_at=next(self.times),
        )
        if run in self.registered:
            for name in ("ours", "sqlite"):  # the one in memory would replace it
                with pytest.raises(Exception, match=r"registered already|UNIQUE"):
                    await self.stores[name].register_run(record)
        else:
            self.registered.add(run)
            await self._each(lambda store: store.register_run(record))

    async def _event(self, run: str, key: int, has_key: bool) -> None:
        event = StepEvent(
            run_id=run,
            kind="tool_call_failed",
            step_index=key,
            timestamp=next(self.times),
            tool_call_id="call",
            tool_name="tool",
            error="error",
            metadata={"a": "\ud800"},
            idempotency_key=f"{key}:" if has_key else None,
        )
        await self._each(lambda store: store.append_event(event))

    async def _snapshot(self, run: str, state: Any, how: str) -> None:
        """Save a snapshot with a new key, with one that the run had before, or with none."""
        keys = self.keys.setdefault(run, [])
        if how == "new":
            keys.append(f"{len(keys)}:{state}")
        self.history = (
            said("shorter") if len(self.history) > 4 else [*self.history, *said(f"{next(self.times)}")]
        )
        saved = ContinuableSnapshot(
            run_id=run,
            step_index=1,
            messages=self.history,
            timestamp=next(self.times),
            state=state,
            idempotency_key=None if how == "none" or not keys else keys[0 if how == "first" else -1],
        )
        await self._each(lambda store: store.save_snapshot(saved))

    async def _effect(self, run: str, call: int, status: Any) -> None:
        at = self.started.setdefault((run, call), next(self.times))
        record = ToolEffectRecord(
            tool_call_id=f"call/{call}",
            tool_name="tool",
            run_id=run,
            status=status,
            started_at=at,
            ended_at=None if status == "started" else next(self.times),
            idempotency_key=f"{len(self.started)}",
            effect_summary=status,
        )
        await self._each(lambda store: store.record_tool_effect(record))

    async def state(self, store: Any) -> list[Any]:
        """Return everything that a store has."""
        found: list[Any] = [
            await store.list_runs(),
            await store.list_runs(conversation_id="talk"),
            await store.list_runs(parent_run_id="a"),
            await store.list_runs(parent_run_id="a", conversation_id="talk"),
        ]
        for run in ("a", "b", "none"):
            found += [await store.get_run(run_id=run), await store.list_events(run_id=run)]
            for interrupted in (False, True):
                options = {"run_id": run, "include_interrupted": interrupted}
                found += [await store.latest_snapshot(**options), await store.list_snapshots(**options)]
            found += [
                await store.get_tool_effect(run_id=run, tool_call_id=f"call/{call}") for call in range(3)
            ]
            found.append(sorted(map(repr, await store.list_unresolved_tool_effects(run_id=run))))
        return found


@given(operations=st.lists(_OPERATIONS, min_size=5, max_size=25), most=st.sampled_from([None, 1, 2]))
@settings(
    max_examples=25,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    database=None,
)
async def test_it_does_what_the_stores_of_the_harness_do(
    engine: Engine, tmp_path: Path, operations: list[Any], most: int | None
):
    number = next(_numbers)
    ours = HoldfastStepStore(engine.url, owner=f"owner-{number}", max_snapshots_per_run=most)
    stores: dict[str, Any] = {
        "ours": ours,
        "sqlite": SqliteStepStore(database=tmp_path / f"{number}.db", max_snapshots_per_run=most),
        "memory": InMemoryStepStore(max_snapshots_per_run=most),
    }
    try:
        scenario = Scenario(stores)
        for operation in operations:
            await scenario.do(*operation)
        state = await scenario.state(ours)
        assert state == await scenario.state(stores["sqlite"])
        assert state == await scenario.state(stores["memory"])
        for run in ("a", "b"):  # the one in memory has an order
            unresolved = [
                await store.list_unresolved_tool_effects(run_id=run) for store in (ours, stores["memory"])
            ]
            assert unresolved[0] == unresolved[1]
    finally:
        ours.close()


def test_it_has_the_protocols_of_the_harness(steps: HoldfastStepStore, media: HoldfastMediaStore):
    typed: tuple[StepStore, MediaStore] = steps, media  # pyright checks the signatures
    assert isinstance(typed[0], StepStore)
    assert isinstance(typed[1], MediaStore)


# Real runs


def without_times(found: list[Any]) -> str:
    """Return the text of records without what differs from run to run."""
    text = re.sub(r"datetime\.datetime\((?:[^()]|\([^()]*\))*\)", "time", repr(found))
    return re.sub(r"(run_id|conversation_id|registration_id)='[^']*'", r"\1", text)


def scripted(*steps: list[Any]) -> FunctionModel:
    """Return a model that gives these parts one after the other, by the number of responses in the history."""

    def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        del info
        return ModelResponse(
            parts=steps[sum(isinstance(one, ModelResponse) for one in messages) % len(steps)]
        )

    return FunctionModel(respond)


async def work(store: Any, capture_frontier: bool) -> list[Any]:
    """Do runs that succeed, fail, delegate and annotate, and return everything that they stored."""
    delegate = Agent(
        scripted([TextPart("delegated")]), capabilities=[StepPersistence(store=store)], name="delegate"
    )

    async def ask(ctx: RunContext[Any]) -> str:
        await annotate_tool_effect(store, ctx, idempotency_key="once", effect_summary="asked")
        return (await delegate.run("help", conversation_id="delegated")).output

    def fail() -> str:
        message = "it fails"
        raise RuntimeError(message)

    persistence = StepPersistence[Any](store=store, run_id="main", capture_frontier=capture_frontier)
    calls = [ToolCallPart("ask", {}, tool_call_id="1")], [ToolCallPart("fail", {}, tool_call_id="2")]
    agent = Agent(scripted(*calls), tools=[ask, fail], capabilities=[persistence], name="main")
    with pytest.raises(RuntimeError, match="it fails"):
        await agent.run("go", conversation_id="talk")
    with pytest.raises(ValueError, match="already in the store"):
        await agent.run("go", conversation_id="talk")
    found: list[Any] = [await inspect_recovery(store=store, run_id="main")]
    for run in await store.list_runs():
        found += [run, await store.list_events(run_id=run.run_id)]
        found.append(await store.list_snapshots(run_id=run.run_id, include_interrupted=True))
        found += [await store.get_tool_effect(run_id=run.run_id, tool_call_id=call) for call in "12"]
    assert [run.parent_run_id for run in await store.list_runs()] == [None, "main"]
    return found


@pytest.mark.parametrize("capture_frontier", [False, True])
async def test_runs_store_what_they_store_in_a_store_of_the_harness(
    steps: HoldfastStepStore, tmp_path: Path, capture_frontier: bool
):
    ours = await work(steps, capture_frontier)
    theirs = await work(SqliteStepStore(database=tmp_path / "theirs.db"), capture_frontier)
    assert without_times(ours) == without_times(theirs)


async def test_a_run_is_continued_and_forked(steps: HoldfastStepStore):
    agent = clerk(steps)
    await agent.run("question 1", conversation_id=TALK)
    (run,) = await steps.list_runs(conversation_id=TALK)
    history = await continue_run(steps, run_id=run.run_id)
    assert [brief(message) for message in history] == expected(1)
    assert (await agent.run("question 2", message_history=history, conversation_id=TALK)).output == "answer 2"
    fork = await fork_run(steps, run_id=run.run_id)
    assert fork == history
    await agent.run("question 3", message_history=fork, conversation_id="fork")
    assert [brief(message) for message in await newest(steps)] == expected(1) + expected(2)
    (forked,) = await steps.list_runs(conversation_id="fork")
    history = await continue_run(steps, run_id=forked.run_id)
    assert [brief(message) for message in history] == expected(1) + expected(3)
    with pytest.raises(LookupError):
        await continue_run(steps, run_id="none")
    searched = await SnapshotHistorySource(steps).run_history(run_id=forked.run_id)
    assert [brief(message) for message in searched] == expected(1) + expected(3)


# Processes


async def test_it_needs_only_a_path_or_a_url(tmp_path: Path):
    path = tmp_path / "store.db"
    for where in (path, str(path), f"sqlite:///{path}"):
        steps, media = HoldfastStepStore(where), HoldfastMediaStore(where)
        await steps.save_snapshot(snapshot("1"))
        assert (
            len(await steps.list_snapshots(run_id="r"))
            == [path, str(path), f"sqlite:///{path}"].index(where) + 1
        )
        assert await media.get(await media.put(b"1")) == b"1"
        steps.close()
        media.close()
        with pytest.raises(BadInput, match="closed"):
            await steps.list_runs()
    with pytest.raises(BadInput, match="max_snapshots_per_run"):
        HoldfastStepStore(path, max_snapshots_per_run=0)


@pytest.mark.parametrize("installed", ["0.61.2", "0.63.0", "1.0"])
def test_a_version_that_is_not_supported_is_named(installed: str):
    program = f"""
import importlib.metadata as metadata
found = metadata.version
metadata.version = lambda name: {installed!r} if name == "pydantic-ai-harness" else found(name)
import holdfast.frameworks.harness
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert f"BadInput: Invalid input: pydantic-ai-harness {installed} is installed" in done.stderr
    assert "supports 0.62 or later, below 0.63" in done.stderr
    assert "holdfast[harness]" in done.stderr


async def test_a_process_waits_while_another_one_writes_to_the_run(engine: Engine, steps: HoldfastStepStore):
    event = StepEvent(run_id="r", kind="run_started", step_index=1)
    other = HoldfastStepStore(engine.url)
    holding, over = threading.Event(), threading.Event()

    async def hold() -> None:
        async with other._store.writing(await other._store.ensure_id("r")):
            holding.set()
            while not over.is_set():
                await asyncio.sleep(0.01)

    try:
        held = asyncio.create_task(other._store.call(hold()))
        assert await asyncio.to_thread(holding.wait, 30)
        waiting = asyncio.create_task(steps.append_event(event))
        await asyncio.wait([waiting], timeout=0.5)
        assert not waiting.done()
        over.set()
        await asyncio.gather(held, waiting)
        assert await other.list_events(run_id="r") == [event]
    finally:
        over.set()
        other.close()


async def test_two_processes_write_to_one_run_at_once(engine: Engine, steps: HoldfastStepStore):
    command = [sys.executable, "-m", "tests.frameworks.harness_children", "append", engine.url]
    children = [forking.Forked([*command, name], cwd=ROOT) for name in ("one", "two")]
    assert [await asyncio.to_thread(child.wait, 60) for child in children] == [0, 0]
    events = await steps.list_events(run_id="shared")
    assert len(events) == 2 * EVENTS
    for name in ("one", "two"):
        assert [event.step_index for event in events if event.agent_name == name] == list(range(EVENTS))


def test_runs_that_are_killed_lose_and_repeat_nothing(tmp_path: Path):
    path = tmp_path / "store.db"
    command = [sys.executable, "-m", "tests.frameworks.harness_children", "drill", str(path), "1"]
    ran = forking.run(command, cwd=ROOT, timeout=110)
    assert ran.returncode == 0, ran.stderr
    processes: list[list[str]] = json.loads(ran.stdout)
    assert len(processes) == KILLS + 1
    done = 0
    for first, *others in processes:
        found = int(first.removeprefix("found "))
        assert found in {done, done + 1}  # the last turn may be stored, but not acknowledged
        assert others == [f"did {found + number}" for number in range(1, len(others) + 1)]
        done = found + len(others)
    assert done >= 5
    asyncio.run(check_runs(path, done))


async def check_runs(path: Path, done: int) -> None:
    """Check that the last history has every turn once, and that no run has a gap in its events and snapshots."""
    store = HoldfastStepStore(path)
    history = [brief(message) for message in await newest(store)]
    assert history == [message for number in range(1, done + 1) for message in expected(number)]
    for run in await store.list_runs():
        events = await store.list_events(run_id=run.run_id)
        snapshots = await store.list_snapshots(run_id=run.run_id)
        for keys in ([one.idempotency_key for one in events], [one.idempotency_key for one in snapshots]):
            assert [int(str(key).partition(":")[0]) for key in keys] == list(range(len(keys)))
        unresolved = await store.list_unresolved_tool_effects(run_id=run.run_id)
        for event in events:
            if event.tool_call_id is not None:
                effect = await store.get_tool_effect(run_id=run.run_id, tool_call_id=event.tool_call_id)
                assert effect is not None
                assert event.kind == "tool_call_started" or effect not in unresolved
    store.close()


def test_the_example_of_the_page_runs(tmp_path: Path):
    (example,) = re.findall(
        r"```python\n(.*?)```", (ROOT / "docs" / "how-to" / "harness.md").read_text(), re.DOTALL
    )
    done = forking.run([sys.executable, "-c", example], cwd=tmp_path)
    assert done.stdout == "Sunny.\nSunny. 6\n", done.stderr
