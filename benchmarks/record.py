"""What recording a run costs per step, side by side with no recording and with a peer: each claim is a bar that must hold.

An agent calls one tool per step; a step is the time from one call of its model to the next. The model takes 20 ms for each
response. The overhead of a recorder is the median of its steps less the median of the same steps without any, in the same
process. Runs take turns, so that all sides are affected alike by other load on the machine.

Pydantic AI itself goes through the whole history several times per step, so that a long run takes minutes. It is made
once with recording and once without, and how the cost grows is read inside of it: the time from entering the
recorder's hooks to leaving them, less the time in what they wrap. What else on the loop runs meanwhile counts as well.
The difference of the two runs is there to be read and is no bar: it is small beside what either takes.

What durability alone costs is measured too: a recorder that does nothing but commit a row to each of seven tables, in
the two places where a step has to be on record.
Run it as `python -m benchmarks.record`.
"""

import argparse
import asyncio
import gc
import json
import sqlite3
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from importlib import import_module
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

from pydantic_ai import Agent, RunContext, Tool
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelResponse,
    TextPart,
    ToolCallPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import RequestUsage, UsageLimits

from benchmarks.report import Report, progress

# A child runs this module in the peer's environment, which has no holdfast: that is imported where it is used.

Steps: TypeAlias = slice
"""Some of the steps of a run."""

ROOT = Path(__file__).parents[1]
PEER = "pydantic-ai-harness"
PEER_VERSION = "0.62.0"
DURABLE = "pydantic-ai-durable"
DURABLE_VERSION = "0.1.0"
MODEL_SECONDS = 0.02
SLOW_MODEL_SECONDS = 0.5
RESULT_BYTES = 2048
PAGES = 7
"""So many pages most commits of ours write."""
EDGE = 50
"""So many steps at each end of a long run are compared."""
USAGE = RequestUsage(input_tokens=1000, output_tokens=10)
"""Told by the model, which otherwise counts the words of the whole history at every step."""

ALL = slice(None)
FIRST = slice(EDGE)
LAST = slice(-EDGE, None)


@dataclass(frozen=True, slots=True)
class Scale:
    """How often everything is done, and how long a long run is."""

    turns: dict[int, int]  # by the number of steps
    peer_turns: dict[int, int]
    long_steps: int


FULL = Scale({10: 20, 50: 10, 200: 5}, {10: 4, 50: 2, 200: 1}, 2000)
QUICK = Scale({10: 4, 50: 3, 200: 2}, {10: 1, 50: 1, 200: 1}, 400)
COMPARED = 200
"""The number of steps of the run that the bars on overhead are about."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One run: the seconds of each step and, of these, in the recorder; those of all threads on a processor; the bytes of its messages and its database."""

    seconds: list[float]
    inside: list[float]
    cpu: list[float]
    content: int
    stored: int


class Child:
    """A process that runs the agent, in an environment of its own, whenever it is asked to."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def run(self, recorder: str, steps: int, model_seconds: float = MODEL_SECONDS) -> Measured:
        """Let it run the agent with this recorder."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps([recorder, steps, model_seconds]), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if not answer:
            message = f"the process that measures {recorder!r} ended"
            raise RuntimeError(message)
        return Measured(**json.loads(answer))


@dataclass(frozen=True, slots=True)
class Duel:
    """The runs of one length with a recorder and, in the same process, without any."""

    recorded: list[Measured] = field(default_factory=list[Measured])
    plain: list[Measured] = field(default_factory=list[Measured])

    def overhead(self, steps: Steps = ALL) -> float:
        """Return the seconds that recording adds to one of these steps."""
        return _step(self.recorded, steps) - _step(self.plain, steps)

    def cpu(self) -> float:
        """Return the seconds on a processor that recording adds to a step."""
        return median(median(run.cpu) for run in self.recorded) - median(
            median(run.cpu) for run in self.plain
        )

    def detail(self, name: str) -> str:
        """Say how long a step takes on each side, and what was stored."""
        last = self.recorded[-1]
        inside = median(median(run.inside) for run in self.recorded)
        return (
            f"{name} {_ms(_step(self.recorded))}, none {_ms(_step(self.plain))},"
            f" in the recorder {_ms(inside) if inside else 'unknown'};"
            f" stored {last.stored / 1024:,.0f} KiB of {last.content / 1024:,.0f} KiB"
        )


def _step(runs: Iterable[Measured], steps: Steps = ALL) -> float:
    """Return the seconds of a step: the median of each run, and of these the median."""
    return median(median(run.seconds[steps]) for run in runs)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.2f} ms"


def _duel(child: Child, recorder: str, steps: int, turns: int, model_seconds: float = MODEL_SECONDS) -> Duel:
    """Let them take turns; the first turn only warms up, unless it is all there is."""
    progress(f"{recorder}: {turns} runs of {steps:,} steps")
    duel = Duel()
    sides = [(recorder, duel.recorded), ("none", duel.plain)]
    for _ in range(turns):
        for name, runs in sides:
            runs.append(child.run(name, steps, model_seconds))
        sides.reverse()  # whoever goes second inherits the caches of the other
    return duel


def _measure(scale: Scale, *, with_peer: bool, peer_venv: Path | None) -> int:
    report = Report("record")
    with ExitStack() as stack:
        child = stack.enter_context(_child(Path(sys.executable)))
        child.run("holdfast", 20)  # imports, and makes the first database
        ours = {steps: _duel(child, "holdfast", steps, turns) for steps, turns in scale.turns.items()}
        for steps, duel in ours.items():
            report.add(
                f"overhead per step of {steps}",
                duel.overhead() * 1e3,
                "ms",
                at_most=1 if steps == COMPARED else None,
                detail=duel.detail("recorded"),
            )
        compared = ours[COMPARED]
        report.add(f"CPU per step of {COMPARED}", compared.cpu() * 1e3, "ms", at_most=1.5)
        readonly = _duel(child, "readonly", COMPARED, scale.turns[COMPARED])
        report.add(
            f"overhead per step of {COMPARED}, tools that change nothing",
            readonly.overhead() * 1e3,
            "ms",
            at_most=0.3,
            detail=readonly.detail("recorded"),
        )
        for seconds, steps in ((0.0, COMPARED), (SLOW_MODEL_SECONDS, 10)):
            duel = _duel(child, "holdfast", steps, scale.turns[COMPARED], seconds)
            title = f"overhead per step of {steps}, a model that takes {seconds * 1e3:.0f} ms"
            report.add(title, duel.overhead() * 1e3, "ms", detail=duel.detail("recorded"))
        floor = _duel(child, "commits", COMPARED, scale.turns[COMPARED])
        report.add(
            f"overhead per step of {COMPARED}, two bare commits",
            floor.overhead() * 1e3,
            "ms",
            detail=floor.detail("committed"),
        )
        _long(report, child, scale)
        if with_peer:
            _against_peers(report, scale, compared, peer_venv, stack)
    return report.finish()


def _long(report: Report, child: Child, scale: Scale) -> None:
    """Measure one long run, against the same run without recording."""
    steps = scale.long_steps
    progress(f"holdfast: a run of {steps:,} steps")
    run = child.run("holdfast", steps)
    progress(f"none: a run of {steps:,} steps")
    plain = child.run("none", steps)
    plain_first, plain_last = _step([plain], FIRST), _step([plain], LAST)
    first, last = median(run.inside[FIRST]), median(run.inside[LAST])
    report.add(
        f"time in the recorder, last {EDGE} of {steps:,} steps / first {EDGE}",
        last / first,
        at_most=1.2,
        detail=f"last {_ms(last)}, first {_ms(first)}",
    )
    whole_first, whole_last = _step([run], FIRST), _step([run], LAST)
    report.add(
        f"whole step, recorded, last {EDGE} / first {EDGE}",
        whole_last / whole_first,
        detail=f"last {_ms(whole_last)}, first {_ms(whole_first)}",
    )
    report.add(
        f"whole step, none, last {EDGE} / first {EDGE}",
        plain_last / plain_first,
        detail=f"last {_ms(plain_last)}, first {_ms(plain_first)}",
    )
    report.add(
        f"recorded less none, last {EDGE} / first {EDGE}",
        (whole_last - plain_last) / (whole_first - plain_first),
        detail=f"last {_ms(whole_last - plain_last)}, first {_ms(whole_first - plain_first)}",
    )
    report.add(
        f"bytes stored of {steps:,} steps / bytes of their messages",
        run.stored / run.content,
        at_most=1.6,
        detail=f"stored {run.stored:,}, messages {run.content:,}",
    )


def _against_peers(report: Report, scale: Scale, ours: Duel, folder: Path | None, stack: ExitStack) -> None:
    name = f"overhead per step of {COMPARED}, {PEER} / ours"
    try:
        child = stack.enter_context(_child(stack.enter_context(_peer_python(folder))))
        child.run("peer", 5)
        peer = {steps: _duel(child, "peer", steps, turns) for steps, turns in scale.peer_turns.items()}
        child.run("durable", 5)
        durable = _duel(child, "durable", COMPARED, scale.turns[COMPARED])
    except (subprocess.CalledProcessError, OSError, RuntimeError) as error:
        output = (
            (error.stderr or "").strip().splitlines()
            if isinstance(error, subprocess.CalledProcessError)
            else []
        )
        report.add(
            name, 0, at_least=100, detail=f"the peer could not be measured: {output[-1] if output else error}"
        )
        return
    for steps, duel in peer.items():
        report.add(
            f"overhead per step of {steps}, {PEER}",
            duel.overhead() * 1e3,
            "ms",
            detail=duel.detail("recorded"),
        )
    theirs = peer[COMPARED]
    report.add(
        name,
        theirs.overhead() / ours.overhead(),
        at_least=100,
        detail=f"{_ms(theirs.overhead())} / {_ms(ours.overhead())};"
        f" of the last {EDGE}: {_ms(theirs.overhead(LAST))} / {_ms(ours.overhead(LAST))}",
    )
    report.add(
        f"overhead per step of {COMPARED}, {DURABLE} with synchronous=FULL / ours",
        durable.overhead() / ours.overhead(),
        at_least=2,
        detail=durable.detail("recorded"),
    )


@contextmanager
def _peer_python(folder: Path | None) -> Generator[Path, None, None]:
    """Install the peers into an environment of their own and hand out its interpreter."""
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as temporary:
        place = folder or Path(temporary)
        python = place / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
        progress(f"installing {PEER} {PEER_VERSION} into {place}")
        if not python.exists():
            venv.create(place, with_pip=True)
        peers = [f"{PEER}=={PEER_VERSION}", f"{DURABLE}=={DURABLE_VERSION}"]
        command = [python, "-m", "pip", "install", "--quiet", *peers]
        subprocess.run(command, check=True, capture_output=True, text=True)
        yield python


@contextmanager
def _child(python: Path) -> Generator[Child, None, None]:
    command = [python, "-m", "benchmarks.record", "--child"]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield Child(process)
        except BaseException:
            process.kill()
            raise


def _be_child() -> None:
    """Run the agent for every line: the name of a recorder, a number of steps and the seconds of a response."""
    for line in sys.stdin:
        recorder, steps, model_seconds = json.loads(line)
        gc.collect()  # what the last run left behind
        with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
            measured = asyncio.run(_run(recorder, Path(folder) / "bench.db", steps, model_seconds))
            stored = sum(file.stat().st_size for file in Path(folder).iterdir())
        print(json.dumps(asdict(replace(measured, stored=stored))), flush=True)


class Stopwatch:
    """Adds up the time in the hooks of a recorder, without what they wrap. Tools must run one at a time."""

    def __init__(self) -> None:
        self.total = 0.0
        self._since = 0.0

    def wrap(self, hook: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        """Return the hook with the time it takes noted."""

        async def timed(ctx: Any, *, handler: Callable[..., Awaitable[Any]], **rest: Any) -> Any:
            async def wrapped(*args: Any) -> Any:
                self._stop()
                try:
                    return await handler(*args)
                finally:
                    self._start()

            self._start()
            try:
                return await hook(ctx, handler=wrapped, **rest)
            finally:
                self._stop()

        return timed

    def _start(self) -> None:
        self._since = time.perf_counter()

    def _stop(self) -> None:
        self.total += time.perf_counter() - self._since


async def _run(recorder: str, database: Path, steps: int, model_seconds: float) -> Measured:
    """Run the agent. The size of the database is not known yet."""
    called: list[float] = []
    inside: list[float] = []
    cpu: list[float] = []
    stopwatch = Stopwatch()

    async def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        del messages, info
        called.append(time.perf_counter())
        inside.append(stopwatch.total)
        cpu.append(time.process_time())
        number = len(called)
        if model_seconds:
            await asyncio.sleep(model_seconds)
        return call(number) if number <= steps else ModelResponse(parts=[TextPart("done")], usage=USAGE)

    async def look_up(number: int) -> str:
        return result(number)

    async with _recording(recorder, database, stopwatch) as capabilities:
        metadata = {"recovery": "readonly"} if recorder == "readonly" else None
        tool = Tool(look_up, metadata=metadata)
        agent = Agent(FunctionModel(model), name="bench", tools=[tool], capabilities=capabilities)
        run = _run_durable if recorder == "durable" else _run_plain
        messages = await run(agent, database)
    content = len(ModelMessagesTypeAdapter.dump_json(messages))
    return Measured(_differences(called), _differences(inside), _differences(cpu), content, stored=0)


async def _run_plain(agent: Agent[None, str], database: Path) -> list[ModelMessage]:
    del database
    result = await agent.run("Look it all up.", usage_limits=UsageLimits(request_limit=None))
    assert result.output == "done"
    return result.all_messages()


async def _run_durable(agent: Agent[None, str], database: Path) -> list[ModelMessage]:
    """Run the agent with pydantic-ai-durable, at our durability and without its limit of 50 requests."""
    durable: Any = import_module("pydantic_ai_durable")
    assert version(DURABLE) == DURABLE_VERSION
    agent.iter = partial(agent.iter, usage_limits=UsageLimits(request_limit=None))
    async with durable.AioSqliteStorage(database) as storage:
        await storage.init_db()
        await (await storage.get_connection()).execute("PRAGMA synchronous = FULL")
        await storage.insert_conversation(
            durable.ConversationRecord(conversation_id="talk", agent_config_json="{}")
        )
        task = {"task_id": "task", "task_type": "turn", "status": "pending", "owner_kind": "conversation"}
        rest = {"owner_id": "talk", "phase": "init", "input_json": "{}", "state_json": "{}"}
        await storage.insert_task(durable.TaskRecord(**task, **rest))
        engine = durable.DurableStepEngine(storage)
        result = await engine.run_turn(agent, "Look it all up.", "talk", "task")
        assert result.output == "done"
        return result.all_messages


def _differences(times: Iterable[float]) -> list[float]:
    return [after - before for before, after in pairwise(times)]


def call(number: int) -> ModelResponse:
    return ModelResponse(parts=[ToolCallPart("look_up", {"number": number}, f"call-{number}")], usage=USAGE)


def result(number: int) -> str:
    return f"The result number {number}. ".ljust(RESULT_BYTES, "x")


class _Commits(AbstractCapability[Any]):
    """Two durable commits per step, of as many pages as ours, with next to nothing in them."""

    def __init__(self, database: Path) -> None:
        self._connection = sqlite3.connect(database, isolation_level=None)
        self._connection.execute("PRAGMA journal_mode = WAL").fetchall()
        self._connection.execute("PRAGMA synchronous = FULL")
        for table in range(PAGES):
            self._connection.execute(f"CREATE TABLE t{table} (number integer PRIMARY KEY, content text)")

    async def wrap_model_request(self, ctx: Any, *, request_context: Any, handler: Any) -> ModelResponse:
        del ctx
        self._commit()
        return await handler(request_context)

    async def wrap_tool_execute(self, ctx: Any, *, call: Any, tool_def: Any, args: Any, handler: Any) -> Any:
        del ctx, call, tool_def
        self._commit()
        return await handler(args)

    def _commit(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")
        for table in range(PAGES):
            self._connection.execute(f"INSERT INTO t{table} (content) VALUES ('x')")
        self._connection.execute("COMMIT")


@asynccontextmanager
async def _recording(
    recorder: str, database: Path, stopwatch: Stopwatch
) -> AsyncGenerator[Sequence[Any], None]:
    """Hand out the capabilities that record a run in this database."""
    if recorder in {"holdfast", "readonly"}:
        from holdfast.record import Holdfast
        from holdfast.store import open_store

        class Timed(Holdfast):
            async def for_run(self, ctx: RunContext[Any]) -> Any:
                recording: Any = await super().for_run(ctx)
                for hook in ("wrap_model_request", "wrap_tool_execute"):
                    setattr(recording, hook, stopwatch.wrap(getattr(recording, hook)))
                return recording

        async with open_store(f"sqlite:///{database}") as store:
            yield [Timed(store)]
    elif recorder == "commits":
        yield [_Commits(database)]
    elif recorder == "peer":
        from pydantic_ai_harness.step_persistence import (  # pyright: ignore[reportMissingImports]
            SqliteStepStore,  # pyright: ignore[reportUnknownVariableType]
            StepPersistence,  # pyright: ignore[reportUnknownVariableType]
        )

        assert version(PEER) == PEER_VERSION
        yield [StepPersistence(store=SqliteStepStore(database=database), capture_frontier=True)]
    else:
        yield []


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.record", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="do little of everything: to see that it runs")
    parser.add_argument(
        "--peer",
        action=argparse.BooleanOptionalAction,
        default=False,
        help=f"compare with {PEER} {PEER_VERSION}",
    )
    parser.add_argument(
        "--peer-venv", type=Path, help="where it is installed, made if missing; else temporary"
    )
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        _be_child()
        return 0
    return _measure(QUICK if given.quick else FULL, with_peer=given.peer, peer_venv=given.peer_venv)


if __name__ == "__main__":
    sys.exit(main())
