"""Leases, queue and journal against a simple model: whatever several processes do at once, some order explains it all.

Processes of tests/promises/actors.py do random things to a few sessions; they are paused past their deadline, continued
and killed. What they were told, and what the store has in the end, must fit together.
"""

import asyncio
import json
import random
import signal
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from holdfast.store import Store
from holdfast.types import Batch, Event, Submission, SubmissionChange
from tests.builders import within
from tests.conftest import Engine
from tests.forking import AsyncForked, start_forked
from tests.promises.actors import NEVER, lifetime

pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]


@dataclass
class Deed:
    """One call of the store: when it began and ended, and what it was told. Without an end nobody knows."""

    op: str
    actor: str
    began: float
    facts: dict[str, Any]
    ended: float = float("inf")
    result: Any = None
    error: str | None = None

    @property
    def acknowledged(self) -> bool:
        return self.ended != float("inf") and self.error is None


@dataclass
class Histories:
    """What everybody did, and what the store says of one session."""

    deeds: list[Deed] = field(default_factory=list[Deed])

    def of(self, op: str, session_id: str) -> list[Deed]:
        return [deed for deed in self.deeds if deed.op == op and deed.facts.get("session") == session_id]


async def test_some_order_explains_all_that_was_seen(engine: Engine, store: Store, long: bool):
    seconds, processes, sessions = (60, 6, 6) if long else (5, 4, 3)
    if engine.name == "mongodb":
        seconds *= 10  # for as many deeds as elsewhere
    seed = random.randrange(10**6) if long else 11
    print("seed", seed)
    ids = [(await store.create_session(agent="a", owner="o", id=f"s{n}")).id for n in range(sessions)]
    chance = random.Random(seed)
    histories = Histories()
    until = 0.0
    numbers = iter(range(10_000))

    async def act() -> None:
        """Keep one process going; when it was killed, another takes its place."""
        while (left := until - asyncio.get_running_loop().time()) > 0.3:
            name = f"p{next(numbers)}"
            await _one_actor(engine, name, seed, left, ids, chance, histories)

    number = 0
    for _ in range(5):  # a busy machine needs longer
        until = asyncio.get_running_loop().time() + seconds
        await asyncio.gather(*(act() for _ in range(processes)))
        await _finish_all(store, ids)
        number = sum(deed.acknowledged for deed in histories.deeds)
        if number > 100:
            break
    print(number, "deeds")
    assert number > 100
    for session_id in ids:
        await _check(store, session_id, histories)


async def _one_actor(
    engine: Engine,
    name: str,
    seed: int,
    seconds: float,
    ids: Sequence[str],
    chance: random.Random,
    to: Histories,
) -> None:
    process = await start_forked(
        *(sys.executable, "-m", "tests.promises.actors", engine.url, name, str(seed), str(seconds), *ids),
        stdout=asyncio.subprocess.PIPE,
    )
    hitting = asyncio.create_task(_hit(process, chance, lifetime(engine.name)))
    told: dict[int, Deed] = {}
    try:
        assert process.stdout is not None
        async for line in process.stdout:
            if not line.endswith(b"\n"):
                break  # a kill cut it off: it was never said
            facts = json.loads(line)
            if "end" in facts:
                deed = told[facts["end"]]
                deed.ended, deed.result, deed.error = facts["at"], facts.get("result"), facts.get("error")
            else:
                deed = Deed(facts.pop("op"), name, facts.pop("at"), facts)
                told[facts["n"]] = deed
                to.deeds.append(deed)
        assert await process.wait() in {0, -signal.SIGKILL}, name
    finally:
        hitting.cancel()
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def _hit(process: AsyncForked, chance: random.Random, ttl: float) -> None:
    """Pause it now and then, mostly for longer than its deadline; kill it in the end, perhaps."""
    with suppress(ProcessLookupError):
        while True:
            await asyncio.sleep(chance.uniform(0.4, 2) * ttl)
            if chance.random() < 0.15:
                process.kill()
                return
            process.send_signal(signal.SIGSTOP)
            try:
                await asyncio.sleep(chance.uniform(0.1, 2 * ttl))
            finally:
                process.send_signal(signal.SIGCONT)


async def _finish_all(store: Store, ids: Sequence[str]) -> None:
    """Be the last worker: nobody is left, and whatever was accepted must be there to be taken."""
    holder = await store.join("last", ttl=60)
    async with within(store, 30):
        while any([(await store.session(session_id)).pending for session_id in ids]):
            await store.reclaim()
            for work in await store.next_work(holder, limit=10, max_attempts=NEVER):
                submission = work.submission
                while submission is not None:
                    ended = [SubmissionChange(id=submission.id, state="done")]
                    await store.write(work.lease, Batch(submissions=ended))
                    submission = await store.take(work.lease, max_attempts=NEVER)
                await store.release(work.lease)
            await asyncio.sleep(0.02)
    await store.leave(holder)


async def _check(store: Store, session_id: str, histories: Histories) -> None:
    events: list[Event] = []
    while page := await store.events(session_id, after=events[-1].seq if events else 0):
        events += page
    session = await store.session(session_id)
    assert [event.seq for event in events] == list(range(1, session.seq + 1))
    acquired = [
        (deed, lease)
        for deed in histories.deeds
        if deed.op == "acquire" and deed.acknowledged
        for lease in deed.result or ()
        if lease["session"] == session_id
    ]
    _check_leases(acquired, session.epoch)
    _check_writes(histories.of("write", session_id), acquired, events)
    submissions = list((await store.submissions(session_id, limit=10_000)).items)
    _check_submissions(histories.of("submit", session_id), submissions, events)
    _check_queue(submissions, events)
    _check_ends(histories.of("finish", session_id), acquired, events)


def _check_leases(acquired: list[tuple[Deed, dict[str, Any]]], last: int) -> None:
    """Each epoch has one holder, and later epochs were given later."""
    holders: dict[int, str] = {}
    for _, lease in acquired:
        assert 1 <= lease["epoch"] <= last
        assert holders.setdefault(lease["epoch"], lease["holder"]) == lease["holder"]
    assert len(holders) == len(acquired), "an epoch was given twice"
    in_order = sorted(acquired, key=lambda pair: pair[1]["epoch"])
    latest = 0.0
    for deed, lease in in_order:
        assert deed.ended > latest, f"epoch {lease['epoch']} was given before one that is lower was asked for"
        latest = max(latest, deed.began)


def _check_writes(
    writes: list[Deed], acquired: list[tuple[Deed, dict[str, Any]]], events: list[Event]
) -> None:
    """What was acknowledged is there once, at its number; what is there was written under the newest lease."""
    ticks = [(event.seq, json.loads(event.payload)) for event in events if event.kind == "tick"]
    epochs = [tick["epoch"] for _, tick in ticks]
    assert epochs == sorted(epochs), "a stale write was accepted"
    found: defaultdict[str, list[int]] = defaultdict(list)
    for seq, tick in ticks:
        found[tick["token"]].append(seq)
    holders = {lease["epoch"]: lease["holder"] for _, lease in acquired}
    for _, tick in ticks:
        assert holders.get(tick["epoch"], tick["holder"]) == tick["holder"], "the wrong holder wrote"
    by_token = {deed.facts["token"]: deed for deed in writes}
    assert len(by_token) == len(writes)
    for token, deed in by_token.items():
        seqs, count = found.pop(token, []), deed.facts["count"]
        if deed.acknowledged:
            assert seqs == list(range(deed.result - count + 1, deed.result + 1)), token
            later = [d for d, lease in acquired if lease["epoch"] > deed.facts["epoch"]]
            assert all(deed.began < d.ended for d in later), f"{token} was accepted after a newer lease"
        elif deed.error is not None and deed.error != "store_unavailable":
            assert seqs == [], f"{token} was refused with {deed.error}, and is there"
        else:
            assert len(seqs) in {0, count}, f"{token} is there in part"
    assert not found


def _check_submissions(sent: list[Deed], submissions: list[Submission], events: list[Event]) -> None:
    """What was accepted is there once, and in the order in which it was asked for; in the end all of it is done."""
    by_key = {submission.idempotency_key: submission for submission in submissions}
    assert len(by_key) == len(submissions)
    assert {submission.state for submission in submissions} <= {"done"}
    for deed in sent:
        assert deed.error is None, deed
        if deed.acknowledged:
            there = by_key[deed.facts["token"]]
            assert (there.id, there.position) == (deed.result["id"], deed.result["position"])
    assert set(by_key) <= {deed.facts["token"] for deed in sent}
    first: dict[str, Deed] = {}
    for deed in sent:
        first.setdefault(deed.facts["token"], deed)
    latest = 0.0
    for submission in sorted(submissions, key=lambda s: s.position):
        deed = first[str(submission.idempotency_key)]
        assert deed.ended > latest, f"{deed.facts['token']} stands behind one that was asked for later"
        latest = max(latest, deed.began)
    queued = [json.loads(event.payload) for event in events if event.kind == "submission_queued"]
    assert [fact["submission_id"] for fact in queued] == [s.id for s in submissions]
    assert [e.seq for e in events if e.kind == "submission_queued"] == [s.position for s in submissions]


def _check_queue(submissions: list[Submission], events: list[Event]) -> None:
    """First come, first served, in each lane; and the control lane overtakes."""
    known = {submission.id: submission for submission in submissions}
    unserved: dict[str, list[int]] = {"main": [], "control": []}
    done: Counter[str] = Counter()
    for event in events:
        if not event.kind.startswith("submission_"):
            continue
        submission = known[json.loads(event.payload)["submission_id"]]
        waiting = unserved[submission.lane]
        match event.kind:
            case "submission_queued":
                waiting.append(submission.position)
            case "submission_started":
                assert not done[submission.id], f"{submission.id} was begun after its end"
                if submission.position in waiting:
                    assert waiting[0] == submission.position, "served out of turn"
                    waiting.pop(0)
                    assert submission.lane == "control" or not unserved["control"], "nothing overtook"
            case _:
                done[submission.id] += 1
    assert set(done.values()) <= {1}
    assert set(done) == set(known)


def _check_ends(ends: list[Deed], acquired: list[tuple[Deed, dict[str, Any]]], events: list[Event]) -> None:
    """An end that was acknowledged is at its number, and came before the next lease was in other hands."""
    done = {
        json.loads(event.payload)["submission_id"]: event.seq
        for event in events
        if event.kind == "submission_done"
    }
    for deed in ends:
        if deed.acknowledged:
            assert done[deed.facts["submission"]] == deed.result
            later = [d for d, lease in acquired if lease["epoch"] > deed.facts["epoch"]]
            assert all(deed.began < d.ended for d in later)
