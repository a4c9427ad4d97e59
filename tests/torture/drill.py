"""One torture from beginning to end: start everything, hit it, let it come to rest, and judge."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Generator
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.notices.signature import new_secret
from holdfast.store import open_store
from holdfast.subscriptions import NOTICE_KINDS, SubscriptionTerms
from tests.flaky_receiver import FlakyReceiver
from tests.servers import Postgres, free_port, postgres
from tests.torture.app import effects_folder
from tests.torture.clients import Clients
from tests.torture.faults import Driver
from tests.torture.fleet import ROOT, Member, front, worker
from tests.torture.line import Line, line_to
from tests.torture.verdict import NOTICES, Effects, Verdict, judge

_TTL, _RENEW = 3.0, 0.8
_DISK_BYTES = 2 * 1024**3


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How long, how hard, and with what."""

    engine: str = "sqlite"
    duration: float = 600.0
    seed: int = 1
    sessions: int = 300
    workers: int = 3
    fronts: int = 2
    submitters: int = 12
    open: int = 40
    """So many submissions wait or run at once, at most."""
    pace: float = 0.45
    """The mean of the seconds between two faults."""
    rest: float = 120.0
    """Within so many seconds after the last fault everything must have ended."""


@dataclass
class Outcome:
    """What came of it."""

    plan: Plan
    verdict: Verdict
    folder: Path
    facts: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def holds(self) -> bool:
        return self.verdict.holds


async def torture(plan: Plan, folder: Path, say: Callable[[str], None]) -> Outcome:
    """Do it, and return what was found."""
    async with AsyncExitStack() as stack:
        server: Postgres | None = None
        line: Line | None = None
        disk = stack.enter_context(_small_disk(folder))
        if plan.engine == "postgres":
            server = stack.enter_context(postgres(within=disk, options=["max_wal_size=128MB"]))
            line = await stack.enter_async_context(line_to(server.port))
            url = server.url()
        else:
            url = f"sqlite:///{disk or folder}/store.db"
        (folder / "counted").mkdir()
        effects_folder(folder / "effects").mkdir()
        settings = {
            "HOLDFAST_TOKEN": "hf_torture",
            "HOLDFAST_LEASE_TTL_SECONDS": str(_TTL),
            "HOLDFAST_LEASE_RENEW_SECONDS": str(_RENEW),
            "HOLDFAST_STREAM_COMMENT_SECONDS": "1",
        }
        secret = new_secret()
        receiver = await stack.enter_async_context(FlakyReceiver(secret).listening())
        settings["HOLDFAST_WEBHOOK_NETWORKS"] = "127.0.0.0/8"
        async with open_store(url) as store:  # the schema is there before anybody is hit
            terms = SubscriptionTerms(url=f"http://127.0.0.1:{receiver.port}/", kinds=NOTICE_KINDS)
            await store.create_subscription(terms, owner="root", actor="root", secret=secret, everyone=True)
        ports = [free_port() for _ in range(plan.fronts)]
        far = url if server is None or line is None else url.replace(f":{server.port}", f":{line.port}")
        members = [
            *(worker(n + 1, far, folder, settings) for n in range(plan.workers)),
            *(front(n + 1, port, far, folder, settings) for n, port in enumerate(ports)),
        ]
        driver = Driver(plan.seed, members, pace=plan.pace, ttl=_TTL, server=server, line=line, disk=disk)
        clients = Clients(
            plan.seed,
            [f"http://127.0.0.1:{port}" for port in ports],
            "hf_torture",
            [f"s{n}" for n in range(plan.sessions)],
        )
        stack.push_async_callback(clients.close)
        for member in members:
            stack.callback(member.abandon)
            member.start()
        outcome = Outcome(plan, Verdict(), folder)
        try:
            await _hit(plan, members, driver, clients, outcome, say)
        finally:
            (folder / "faults.log").write_text("\n".join(driver.log))
        await _deliver_all(plan, url, outcome)
        await _judge(plan, url, members, driver, clients, receiver, outcome, say)
        if disk is not None and not outcome.holds:
            for file in disk.glob("store.db*"):
                if file.is_file():
                    shutil.copy(file, folder)  # the disk goes
    return outcome


async def _hit(
    plan: Plan,
    members: list[Member],
    driver: Driver,
    clients: Clients,
    outcome: Outcome,
    say: Callable[[str], None],
) -> None:
    await asyncio.gather(*(member.up() for member in members))
    await clients.create(budgets=True)
    say(f"{len(members)} processes serve {plan.sessions} sessions on {plan.engine}; seed {plan.seed}")
    reading = [asyncio.create_task(reader.read()) for reader in clients.readers]
    approving = asyncio.create_task(clients.approve())
    raising = asyncio.create_task(clients.raise_budgets())
    retrying = asyncio.create_task(clients.retry())
    interrupting = asyncio.create_task(clients.interrupt())
    submitting = [asyncio.create_task(clients.submit(at_most_open=plan.open)) for _ in range(plan.submitters)]
    telling = asyncio.create_task(_tell(driver, clients, say))
    background = [*reading, approving, telling, retrying, raising]
    try:
        await driver.run(plan.duration)
        say("no more faults; everything must come to rest")
        clients.stopping.set()
        calm = time.monotonic()
        try:
            async with asyncio.timeout(plan.rest):
                await asyncio.gather(*submitting, interrupting, *(member.up() for member in members))
                await asyncio.gather(*clients.signalling)
                while clients.open:
                    _raise_if_ended(background)
                    await asyncio.sleep(0.05)
        except TimeoutError:
            problem = f"{clients.open} submissions were not seen to end within {plan.rest:g} s"
            outcome.verdict.add("sessions stuck", [problem])
        outcome.facts["seconds to rest"] = round(time.monotonic() - calm, 1)
        await until_quiet(clients)
    finally:
        everyone = (*background, *submitting, *clients.signalling, interrupting)
        for task in everyone:
            task.cancel()
        await asyncio.gather(*everyone, return_exceptions=True)


async def _deliver_all(plan: Plan, url: str, outcome: Outcome) -> None:
    """Wait until every notice has been delivered."""
    async with open_store(url) as store:
        (subscription,) = (await store.subscriptions()).items
        try:
            async with asyncio.timeout(plan.rest):
                while (
                    await store.has_notices()
                    or (await store.deliveries(subscription.id, state="pending", limit=1)).items
                ):
                    await asyncio.sleep(0.5)
        except TimeoutError:
            outcome.verdict.add(NOTICES, [f"some were not delivered within {plan.rest:g} s"])


async def until_quiet(clients: Clients) -> None:
    """Wait until readers have seen nothing new for a while: what comes after an end, and what was approved twice."""
    seen, since = -1, time.monotonic()
    deadline = since + 30
    while time.monotonic() < min(since + 4, deadline):
        now = sum(reader.last for reader in clients.readers)
        if now != seen:
            seen, since = now, time.monotonic()
        await asyncio.sleep(0.1)


def _raise_if_ended(tasks: list[asyncio.Task[None]]) -> None:
    """Clients go on until they are stopped: one that has ended has found something that no client expects."""
    for task in tasks:
        if task.done():
            task.result()


async def _tell(driver: Driver, clients: Clients, say: Callable[[str], None]) -> None:
    while True:
        await asyncio.sleep(15)
        say(
            f"{driver.survived} kills and pauses, {len(clients.sent)} submissions, {clients.open} open,"
            f" {clients.tally.reconnects} reconnects"
        )


async def _judge(
    plan: Plan,
    url: str,
    members: list[Member],
    driver: Driver,
    clients: Clients,
    receiver: FlakyReceiver,
    outcome: Outcome,
    say: Callable[[str], None],
) -> None:
    say("judging")
    verdict = outcome.verdict
    codes = await asyncio.gather(*(member.end(30) for member in members))
    for member, code in zip(members, codes, strict=True):
        if code is None:
            verdict.add("sessions stuck", [f"{member.name} did not stop within 30 s"])
        verdict.add("processes that ended by themselves", member.fell)
    checked = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "holdfast", "db", "check", "--json", "--store", url],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    invariants = "broken invariants (holdfast db check)"
    if checked.returncode:
        verdict.add(invariants, [checked.stdout.strip() or checked.stderr.strip()])
    async with open_store(url) as store:
        await judge(store, clients, Effects(outcome.folder / "effects"), receiver.notices(), verdict)
    tally = clients.tally
    outcome.facts |= {
        "kills and pauses": driver.survived,
        "faults": dict(sorted(driver.counts.items())),
        "starts": {member.name: member.starts for member in members},
        "starts that failed": sum(member.start_failures for member in members),
        "tracebacks": sum(len(member.tracebacks) for member in members),
        "submissions accepted": sum(sent.submission_id is not None for sent in clients.sent),
        "submissions sent again": sum(sent.tries - 1 for sent in clients.sent),
        "submissions sent twice on purpose": tally.duplicates_sent,
        "approvals": tally.approvals,
        "interrupts": tally.interrupts,
        "signals": tally.signals,
        "budgets set": tally.budgets,
        "notices": len(receiver.arrived),
        "attempts to deliver a notice": dict(sorted(receiver.answers.items())),
        "retries": dict(sorted(tally.retries.items())),
        "answers": {str(status): number for status, number in sorted(tally.answers.items())},
        "requests and streams broken": tally.unreachable,
        "reconnects": tally.reconnects,
        **_counted(outcome.folder / "counted"),
        **dict(sorted(verdict.counts.items())),
    }


def _counted(folder: Path) -> dict[str, int]:
    """Return what all workers have counted, also those that were killed."""
    from prometheus_client import CollectorRegistry
    from prometheus_client.multiprocess import MultiProcessCollector

    collector: Any = MultiProcessCollector(CollectorRegistry(), str(folder))
    found = {"stale writes refused": 0, "takeovers": 0}
    for metric in collector.collect():
        for sample in metric.samples:
            if sample.name == "holdfast_refused_writes_total":
                found["stale writes refused"] = int(sample.value)
            elif sample.name == "holdfast_takeovers_total":
                found["takeovers"] = int(sample.value)
    return found


@contextmanager
def _small_disk(folder: Path) -> Generator[Path | None, None, None]:
    """Make a disk of our own that can be filled, if we may; it is synced to the real one like any other."""
    image = folder / "disk.img"
    if os.geteuid() != 0 or shutil.which("mkfs.ext4") is None:
        yield None
        return
    with image.open("wb") as file:
        file.truncate(_DISK_BYTES)
    place = Path(tempfile.mkdtemp(prefix="holdfast-disk-"))  # not in our folder: the server is another user
    try:
        subprocess.run(["mkfs.ext4", "-q", "-m", "0", image], check=True, capture_output=True)
        subprocess.run(["mount", "-o", "loop", image, place], check=True, capture_output=True)
        place.chmod(0o711)
    except subprocess.CalledProcessError:
        place.rmdir()
        yield None
        return
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", place], check=False)
        with suppress(OSError):
            image.unlink()
            place.rmdir()


def run(plan: Plan, say: Callable[[str], None]) -> Outcome:
    """Do it in a folder of its own, which is kept if something is broken."""
    folder = Path(tempfile.mkdtemp(prefix="holdfast-torture-"))
    outcome = asyncio.run(_until_told(torture(plan, folder, say)))
    if outcome.holds:
        shutil.rmtree(folder, ignore_errors=True)
    return outcome


async def _until_told(work: Coroutine[Any, Any, Outcome]) -> Outcome:
    """Do it; who is told to stop ends all that it has started."""
    task = asyncio.ensure_future(work)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await task


def report(outcome: Outcome) -> str:
    """Return what a person reads, and a last line for programs."""
    plan, lines = outcome.plan, list[str]()
    lines.append(
        f"torture: {plan.engine}, seed {plan.seed}, {plan.duration:g} s, {plan.workers} workers,"
        f" {plan.fronts} fronts, {plan.sessions} sessions"
    )
    lines.append("")
    for name, value in outcome.facts.items():
        shown = ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else value  # pyright: ignore[reportUnknownVariableType]
        lines.append(f"  {name:<40} {shown}")
    lines.append("")
    for name, problems in outcome.verdict.broken.items():
        lines.append(f"  {name:<60} {len(problems)}")
        lines += [f"      {problem}" for problem in problems[:5]]
    lines.append("")
    if outcome.holds:
        lines.append(f"All promises held through {outcome.facts['kills and pauses']} kills and pauses.")
    else:
        lines.append(f"BROKEN. Logs, effects and faults are in {outcome.folder}.")
    broken = {name: len(problems) for name, problems in outcome.verdict.broken.items()}
    summary = {
        "torture": plan.engine,
        "seed": plan.seed,
        "duration": plan.duration,
        "holds": outcome.holds,
        "facts": outcome.facts,
        "broken": broken,
    }
    return "\n".join([*lines, json.dumps(summary)])
