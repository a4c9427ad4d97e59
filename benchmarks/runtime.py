"""What running sessions costs, on real worker processes: each claim is a bar that must hold.

A user in a process of its own submits and watches, as a server's front does; workers are `holdfast worker` processes,
killed, frozen and stopped by signals. Job queues (`--peer`) do one job for each submission of ours, in turns with us,
on the same PostgreSQL, with as many processes. Run it as `python -m benchmarks.runtime`.
"""

import argparse
import asyncio
import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

import asyncpg

from benchmarks import runtime_peers
from benchmarks.peers import ROOT, peer_python, process, ready
from benchmarks.report import Report, progress
from benchmarks.runtime_app import agent
from holdfast.runtime import Worker
from holdfast.store import Store, open_store
from holdfast.types import Event, Submission
from tests.promises.workers import WorkerProcess, worker
from tests.servers import mongo, mongod, postgres

APP = "benchmarks.runtime_app:agent"
PEERS = {"dbos": "dbos==3.3.0", "procrastinate": "procrastinate==3.10.0"}
COUNTED = {
    "holdfast": "SELECT count(*) FROM holdfast.submissions WHERE state = 'done'",
    "dbos": "SELECT count(*) FROM dbos.workflow_status WHERE status = 'SUCCESS'",
    "procrastinate": "SELECT count(*) FROM procrastinate_jobs WHERE status = 'succeeded'",
}
TTL = 3.0
"""The time to live of a holder that is frozen here: shorter than the default, since it is waited for."""
SHORT: dict[str, Any] = {"lease_ttl_seconds": TTL, "lease_renew_seconds": 1}
WORKERS = 2
_numbers = count(1)


@dataclass(frozen=True, slots=True)
class Scale:
    """How often everything is done."""

    latencies: int
    deaths: int
    freezes: int
    interrupts: int
    jobs: int
    rounds: int
    sessions: int


FULL = Scale(latencies=100, deaths=3, freezes=1, interrupts=10, jobs=1000, rounds=3, sessions=200)
QUICK = Scale(latencies=20, deaths=1, freezes=1, interrupts=3, jobs=60, rounds=1, sessions=40)


class User:
    """Submits to sessions and watches them, in this process."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def new_session(self) -> str:
        """Return a new session of the agent."""
        return (await self._store.create_session(agent="bench", owner="bench")).id

    async def send(self, session: str, text: str) -> Submission:
        """Say something."""
        return await self._store.submit(session, "message", json.dumps({"text": text}))

    async def interrupt(self, session: str) -> Submission:
        """Stop what runs."""
        return await self._store.submit(session, "interrupt", lane="control")

    async def sees(self, session: str, kind: str, *, after: int = 0) -> Event:
        """Wait for the first event of a kind, and return it."""
        async with asyncio.timeout(60):
            async for event in self._store.watch(session, after=after):
                if event.kind == kind:
                    return event
        raise AssertionError

    async def starts(self, text: str, kind: str) -> tuple[str, int]:
        """Begin a turn in a new session and wait until it is in its tool, or its model request."""
        session = await self.new_session()
        await self.send(session, text)
        return session, (await self.sees(session, kind)).seq


def _bar(engine: str, limit: float) -> float | None:
    """Return the bar; none for MongoDB, whose server may be anywhere from native to emulated."""
    return None if engine == "mongodb" else limit


async def _latency(report: Report, name: str, url: str, scale: Scale) -> None:
    """Measure the time from the call of `submit` to the first event of the worker in the user's hands."""
    async with open_store(url) as store:
        user = User(store)
        async with worker(url, app=APP):
            apart = await _latencies(user, scale.latencies)
        serving = Worker(store, agent)
        task = asyncio.create_task(serving.run())
        try:
            within = await _latencies(user, scale.latencies)
        finally:
            serving.stop()
            await task
    for where, found in (("another process", apart), ("the same process", within)):
        report.add(
            f"{name}: idle submission to first event, worker in {where}, p50",
            median(found) * 1e3,
            "ms",
            at_most=_bar(name, 10),
            detail=f"p90 {sorted(found)[int(len(found) * 0.9)] * 1e3:.1f} ms",
        )


async def _latencies(user: User, times: int) -> list[float]:
    session = await user.new_session()
    found: list[float] = []
    after = 0
    for number in range(times + 5):
        started: asyncio.Future[float] = asyncio.get_running_loop().create_future()

        async def watch(after: int = after, started: "asyncio.Future[float]" = started) -> None:
            await user.sees(session, "submission_started", after=after)
            started.set_result(time.perf_counter())

        watching = asyncio.create_task(watch())
        await asyncio.sleep(0.002)  # it watches
        sent = time.perf_counter()
        position = (await user.send(session, "hello")).position
        await watching
        if number >= 5:  # the first ones warm up
            found.append(started.result() - sent)
        after = (await user.sees(session, "submission_done", after=position)).seq
        await asyncio.sleep(0.01)  # the session is let go and the worker sleeps
    return found


async def _take_over(report: Report, name: str, url: str, scale: Scale) -> None:
    """Measure how long a session stands still when its worker is killed, frozen or stopped."""
    async with open_store(url) as store:
        user = User(store)
        killed = [await _pause_after(user, url, signal.SIGKILL) for _ in range(scale.deaths)]
        report.add(
            f"{name}: take-over after SIGKILL, worst of {len(killed)}",
            max(killed),
            "s",
            at_most=_bar(name, 1),
            detail=f"median {median(killed):.2f} s",
        )
        frozen = [await _pause_after(user, url, signal.SIGSTOP, **SHORT) for _ in range(scale.freezes)]
        report.add(
            f"{name}: take-over from a frozen holder, TTL {TTL:.0f} s, worst of {len(frozen)}",
            max(frozen),
            "s",
            at_most=_bar(name, TTL + 2),
        )
        stopped = [await _pause_of_stop(user, url) for _ in range(scale.deaths)]
        report.add(
            f"{name}: from hand-over to the next worker's start, worst of {len(stopped)}",
            max(stopped),
            "s",
            at_most=_bar(name, 0.2),
            detail=f"median {median(stopped) * 1e3:.1f} ms",
        )


async def _pause_after(user: User, url: str, number: signal.Signals, **settings: Any) -> float:
    """Return the seconds from the signal to the take-over, seen by the user."""
    async with _workers(url, **settings) as (first, start_second):
        session, seq = await user.starts("hold", "tool_call_started")
        await start_second()
        sent = time.perf_counter()
        first.signal(number)
        with suppress(TimeoutError):  # then the time that was waited for it is what is reported
            await user.sees(session, "takeover", after=seq)
        return time.perf_counter() - sent


async def _pause_of_stop(user: User, url: str) -> float:
    """Return the seconds from the hand-over to when the next worker has taken the turn, on the database's clock."""
    async with _workers(url) as (first, start_second):
        session, seq = await user.starts("step", "tool_call_started")
        await start_second()
        first.signal(signal.SIGTERM)
        handed_over = await user.sees(session, "handover", after=seq)
        taken = await user.sees(session, "submission_started", after=handed_over.seq)
        await user.interrupt(session)
        return (taken.at - handed_over.at).total_seconds()


@asynccontextmanager
async def _workers(url: str, **settings: Any) -> AsyncGenerator[tuple[WorkerProcess, Any], None]:
    """Start a worker, and a way to start another one once the first has the session."""
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(worker(url, app=APP, **settings))
        yield first, lambda: stack.enter_async_context(worker(url, app=APP, **settings))


async def _interrupts(report: Report, name: str, url: str, scale: Scale) -> None:
    """Measure the time from the call of `submit` to the record of the run's interruption."""
    async with open_store(url) as store, worker(url, app=APP):
        user = User(store)
        for text, kind, where in (
            ("hold", "tool_call_started", "a tool"),
            ("think", "model_request_started", "a model request"),
        ):
            found: list[float] = []
            for _ in range(scale.interrupts):
                session, seq = await user.starts(text, kind)
                await asyncio.sleep(0.05)  # it is inside, and the worker sleeps
                sent = time.perf_counter()
                stopped = asyncio.create_task(user.sees(session, "run_interrupted", after=seq))
                await user.interrupt(session)
                await stopped
                found.append(time.perf_counter() - sent)
            report.add(
                f"{name}: an interrupt reaches {where}, worst of {len(found)}",
                max(found) * 1e3,
                "ms",
                at_most=_bar(name, 100),
                detail=f"median {median(found) * 1e3:.1f} ms",
            )


# Submissions per second


@dataclass(frozen=True, slots=True)
class Rate:
    """How many jobs are done in a second, and the milliseconds on a processor that each takes, in the workers and in the submitting process."""

    per_second: float
    in_workers: float
    in_client: float


async def _throughput(report: Report, python: Path | None, new_url: Any, scale: Scale) -> None:
    sides = ["holdfast", *(PEERS if python else ())]
    jobs = {"holdfast": ["agent"], "dbos": ["agent", "nothing"], "procrastinate": ["agent", "nothing"]}
    rates: dict[tuple[str, str], list[Rate]] = {}
    for number in range(scale.rounds):
        for side in sides:
            for job in jobs[side][: 2 if number == 0 else 1]:
                rate = await _rate(side, python or Path(), await new_url(), scale.jobs, job)
                rates.setdefault((side, job), []).append(rate)
                progress(f"  {side}, {job}: {rate}")
        sides.reverse()
    measured = rates.pop(("holdfast", "agent"))
    ours = median(rate.per_second for rate in measured)
    report.add(f"submissions per second, {WORKERS} workers on PostgreSQL", ours, "/s", at_least=200)
    for (side, job), found in rates.items():
        theirs = median(rate.per_second for rate in found)
        report.add(
            f"submissions per second, ours / {side} with a job that {_does(job)}",
            ours / theirs,
            at_least=1.4 if job == "agent" else None,
            detail=f"ours {ours:,.0f}/s, {side} {theirs:,.0f}/s",
        )
    own = await _agent_milliseconds()
    in_workers = median(rate.in_workers for rate in measured)
    in_client = median(rate.in_client for rate in measured)
    detail = f"{in_workers:.1f} ms, of which {own:.1f} ms for the agent"
    report.add(
        "processor time of a submission in the workers", in_workers - own, "ms", at_most=2.5, detail=detail
    )
    report.add("processor time of a submission in the process that submits", in_client, "ms", at_most=1)
    for workers in (1, 2, 4):
        rate = await _rate("holdfast", Path(), await new_url(), scale.jobs, "agent", workers)
        report.add(f"submissions per second, workers: {workers}", rate.per_second, "/s")


async def submissions_per_second(url: str, jobs: int) -> float:
    """Return how many submissions two workers complete in a second."""
    return (await _rate("holdfast", Path(), url, jobs, "agent")).per_second


async def _agent_milliseconds() -> float:
    """Return the processor time of the agent alone."""
    times = 100
    await agent.run("hello")
    before = time.process_time()
    for _ in range(times):
        await agent.run("hello")
    return (time.process_time() - before) / times * 1e3


def _does(job: str) -> str:
    return "runs the same agent, unrecorded" if job == "agent" else "does nothing"


async def _rate(side: str, python: Path, url: str, jobs: int, job: str, workers: int = WORKERS) -> Rate:
    """Return how fast jobs are done from the first enqueued to the last done."""
    with ExitStack() as stack:
        if side == "holdfast":
            ours = [sys.executable, "-m", "benchmarks.runtime", "--client", url, str(jobs)]
            async with open_store(url):
                pass
            async with AsyncExitStack() as started:
                pids = [
                    (await started.enter_async_context(worker(url, app=APP))).process.pid
                    for _ in range(workers)
                ]
                await _warm_up(url)
                return await _clocked(side, stack.enter_context(process(*ours)), pids, url, jobs)
        peer = [str(python), "-m", "benchmarks.runtime_peers", side]
        subprocess.run([*peer, "schema", url], check=True, capture_output=True, cwd=ROOT)
        peers = [stack.enter_context(process(*peer, "worker", url)) for _ in range(workers)]
        for each in peers:
            await asyncio.to_thread(ready, each)
        client = stack.enter_context(process(*peer, "client", url, str(jobs), job))
        return await _clocked(side, client, [each.pid for each in peers], url, jobs)


async def _warm_up(url: str) -> None:
    """Have every worker run the agent: what is imported on the way is not what is measured."""
    async with open_store(url) as store:
        user = User(store)
        sessions = [await user.new_session() for _ in range(5 * WORKERS)]
        sent = [await user.send(session, "hello") for session in sessions]
        for submission in sent:
            await user.sees(submission.session_id, "submission_done")


def _processor_seconds(pids: Sequence[int]) -> float:
    """Return the time of these processes on a processor so far, where the system tells."""
    total = 0.0
    for pid in pids:
        with suppress(OSError):
            user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
            total += (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
    return total


async def _clocked(
    side: str, client: "subprocess.Popen[str]", workers: Sequence[int], url: str, jobs: int
) -> Rate:
    await asyncio.to_thread(ready, client)
    connection = await asyncpg.connect(url)
    try:
        assert client.stdin is not None
        assert client.stdout is not None
        before = await connection.fetchval(COUNTED[side])
        in_workers = _processor_seconds(workers)
        started = time.perf_counter()
        print("go", file=client.stdin, flush=True)
        async with asyncio.timeout(120):
            while await connection.fetchval(COUNTED[side]) < before + jobs:
                await asyncio.sleep(0.02)
        seconds = time.perf_counter() - started
        in_workers = _processor_seconds(workers) - in_workers
        in_client = float(await asyncio.to_thread(client.stdout.readline))
        return Rate(jobs / seconds, in_workers / jobs * 1e3, in_client / jobs * 1e3)
    finally:
        await connection.close()


async def _be_client(url: str, jobs: int) -> None:
    """Submit to as many sessions, when told to."""
    async with open_store(url) as store:
        user = User(store)

        sessions = iter([await user.new_session() for _ in range(jobs)])

        async def submit() -> None:
            await user.send(next(sessions), "hello")

        await runtime_peers.enqueue_all(submit, jobs)


# Memory


def _memory(report: Report, scale: Scale) -> None:
    """Measure, each in a fresh process, what sessions and bare runs of the same agent add."""
    found = {
        what: json.loads(
            subprocess.run(
                [sys.executable, "-m", "benchmarks.runtime", "--memory", what, str(scale.sessions)],
                check=True,
                capture_output=True,
                text=True,
                cwd=ROOT,
            ).stdout
        )
        for what in ("idle", "running", "bare")
    }
    report.add(
        "memory that an idle session leaves in a worker",
        found["idle"],
        "KB",
        at_most=0.1,
        detail=f"after {5 * scale.sessions} sessions, Python's own count",
    )
    report.add(
        "memory of a running session beyond the agent's own",
        found["running"] - found["bare"],
        "KB",
        at_most=200,
        detail=f"resident: {found['running']:.0f} KB a session, {found['bare']:.0f} KB a bare run",
    )


async def _be_measured(what: str, sessions: int) -> None:
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        async with open_store(f"sqlite:///{folder}/bench.db") as store:
            user = User(store)
            serving = Worker(store, agent, concurrency=10_000)
            working = asyncio.create_task(serving.run())
            try:
                print(await _MEASURES[what](user, sessions), flush=True)
            finally:
                working.cancel()
                await asyncio.gather(working, return_exceptions=True)


async def _idle_memory(user: User, sessions: int) -> float:
    """Return the KB that are still there for each session that was served and is idle."""
    await _serve(user, 2 * sessions)
    tracemalloc.start()
    await _serve(user, sessions)
    before = _traced()
    await _serve(user, 5 * sessions)
    return max(0.0, _traced() - before) / (5 * sessions) / 1024


async def _serve(user: User, sessions: int) -> None:
    for _ in range(sessions):
        session = await user.new_session()
        await user.send(session, "hello")
        await user.sees(session, "submission_done")
    await asyncio.sleep(0.2)  # the last one is let go


def _traced() -> float:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


async def _running_memory(user: User, sessions: int) -> float:
    async def start(n: int) -> None:
        found = [await user.new_session() for _ in range(n)]
        for session in found:
            await user.send(session, "hold")
        for session in found:
            await user.sees(session, "tool_call_started")

    await start(20)
    before = _resident()
    await start(sessions)
    return (_resident() - before) / sessions


async def _bare_memory(user: User, sessions: int) -> float:
    del user
    running: list[asyncio.Task[Any]] = []

    async def start(n: int) -> None:
        running.extend(asyncio.create_task(agent.run("hold")) for _ in range(n))
        await asyncio.sleep(0.5 + n * 0.01)  # they are inside of the tool

    await start(20)
    before = _resident()
    await start(sessions)
    after = _resident()
    for task in running:
        task.cancel()
    with suppress(asyncio.CancelledError):
        await asyncio.gather(*running, return_exceptions=True)
    return (after - before) / sessions


def _resident() -> float:
    """Return the resident memory of this process in KB."""
    gc.collect()
    status = Path("/proc/self/status").read_text()
    return float(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS")))


_MEASURES: dict[str, Any] = {"idle": _idle_memory, "running": _running_memory, "bare": _bare_memory}


# All of it


def _packages() -> list[str]:
    """Return the peers, and the framework of the agent that they run."""
    return [*PEERS.values(), f"pydantic-ai-slim=={version('pydantic-ai-slim')}"]


async def _measure(scale: Scale, topics: Sequence[str], *, with_peer: bool, peer_venv: Path | None) -> int:
    report = Report("runtime")
    with ExitStack() as stack:
        server = stack.enter_context(postgres())
        engines = ["sqlite", "postgres"]
        third = stack.enter_context(mongo()) if mongod() else None
        if third is None:
            progress("MongoDB is left out: there is no mongod on the path")
        else:
            engines.append("mongodb")
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-bench-"))

        async def new_url(engine: str = "postgres") -> str:
            name = f"bench_{next(_numbers)}"
            if engine == "sqlite":
                return f"sqlite:///{folder}/{name}.db"
            if engine == "mongodb" and third is not None:
                return third.url(name)
            return await server.create_database(name)

        for topic in (_latency, _take_over, _interrupts):
            if topic.__name__.strip("_") in topics:
                for engine in engines:
                    progress(f"{engine}: {topic.__name__.strip('_').replace('_', ' ')}")
                    await topic(report, engine, await new_url(engine), scale)
        if "throughput" in topics:
            progress("throughput")
            python = stack.enter_context(peer_python(peer_venv, _packages())) if with_peer else None
            await _throughput(report, python, new_url, scale)
        if "memory" in topics:
            progress("memory")
            await asyncio.to_thread(_memory, report, scale)
    return report.finish()


TOPICS = ("latency", "take_over", "interrupts", "throughput", "memory")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.runtime", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="do little of everything: to see that it runs")
    parser.add_argument("--topic", choices=TOPICS, action="append", help="measure only this")
    parser.add_argument(
        "--peer",
        action=argparse.BooleanOptionalAction,
        default=False,
        help=f"compare with {' and '.join(PEERS)}",
    )
    parser.add_argument(
        "--peer-venv", type=Path, help="where they are installed, made if missing; else temporary"
    )
    parser.add_argument("--client", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--memory", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.client:
        asyncio.run(_be_client(given.client[0], int(given.client[1])))
        return 0
    if given.memory:
        asyncio.run(_be_measured(given.memory[0], int(given.memory[1])))
        return 0
    scale = QUICK if given.quick else FULL
    topics = given.topic or TOPICS
    return asyncio.run(_measure(scale, topics, with_peer=given.peer, peer_venv=given.peer_venv))


if __name__ == "__main__":
    sys.exit(main())
