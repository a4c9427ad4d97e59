"""A process that does random things to a store, and says before and after each what it does and what came of it.

`python -m tests.promises.actors URL NAME SEED SECONDS SESSION…` prints lines of JSON for tests/promises/test_model.py. Times are
of the clock that all processes of a machine share.
"""

import asyncio
import json
import random
import sys
import time
from dataclasses import replace
from typing import Any

from holdfast.errors import HolderLost, HoldfastError, LeaseLost
from holdfast.store import Store, open_store
from holdfast.types import Batch, Holder, Lease, NewEvent, Submission, SubmissionChange

NEVER = 1_000_000
"""Attempts: nothing is given up here, so that what is lost is lost."""


def lifetime(engine: str) -> float:
    """Return how long a holder lives: a few of its calls, which take longer where the server may run in an emulator."""
    return 3.0 if engine == "mongodb" else 0.7


def say(**facts: object) -> None:
    print(json.dumps(facts), flush=True)


class Actor:
    """One holder and what it believes to hold."""

    def __init__(self, store: Store, name: str, seed: str, sessions: list[str]) -> None:
        self._store = store
        self._name = name
        self._chance = random.Random(f"{seed} {name}")
        self._sessions = sessions
        self._count = 0
        self._holder: Holder | None = None
        self._leases: list[Lease] = []
        self._taken: list[tuple[Lease, Submission]] = []
        self._stale: list[Lease] = []

    async def run(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        deeds = {
            self._submit: 5,
            self._interrupt: 1,
            self._acquire: 3,
            self._next_work: 4,
            self._take: 6,
            self._write: 8,
            self._finish: 6,
            self._release: 3,
            self._renew: 6,
            self._reclaim: 2,
            self._write_stale: 3,
            self._leave: 0.3,
        }
        while time.monotonic() < until:
            (deed,) = self._chance.choices(list(deeds), list(deeds.values()))
            self._count += 1
            if self._holder is None:
                self._holder = await self._store.join(self._name, ttl=lifetime(self._store.engine))
            try:
                await deed(self._holder)
            except HolderLost:
                self._forget_all()
            except LeaseLost as error:
                self._forget(str(error.facts["session_id"]))
            except HoldfastError:
                pass  # it was said; what it means is for the model to know
            if self._chance.random() < 0.1:
                await asyncio.sleep(self._chance.uniform(0, 0.02))
        if self._holder is not None:
            await self._store.leave(self._holder)

    async def _said(self, op: str, work: Any, **facts: Any) -> Any:
        number = self._count
        say(op=op, n=number, at=time.monotonic(), **facts)
        try:
            result = await work
        except HoldfastError as error:
            say(end=number, at=time.monotonic(), error=error.code)
            raise
        say(end=number, at=time.monotonic(), result=_shown(result))
        return result

    async def _submit(self, holder: Holder) -> None:
        session = self._chance.choice(self._sessions)
        token = f"{self._name}-{self._count}"
        for _ in range(self._chance.choice([1, 1, 2])):  # the same again makes no second one
            sending = self._store.submit(session, "message", json.dumps(token), idempotency_key=token)
            await self._said("submit", sending, session=session, token=token)
            self._count += 1

    async def _interrupt(self, holder: Holder) -> None:
        session = self._chance.choice(self._sessions)
        token = f"{self._name}-{self._count}"
        sending = self._store.submit(
            session, "interrupt", json.dumps(token), lane="control", idempotency_key=token
        )
        await self._said("submit", sending, session=session, token=token)

    async def _acquire(self, holder: Holder) -> None:
        session = self._chance.choice(self._sessions)
        lease: Lease = await self._said("acquire", self._store.acquire(session, holder))
        self._leases.append(lease)

    async def _next_work(self, holder: Holder) -> None:
        limit = self._chance.randint(1, 3)
        asking = self._store.next_work(holder, limit=limit, max_attempts=NEVER)
        for work in await self._said("acquire", asking):
            self._leases.append(work.lease)
            if work.submission is not None:
                self._taken.append((work.lease, work.submission))

    async def _take(self, holder: Holder) -> None:
        if self._leases:
            lease = self._chance.choice(self._leases)
            taking = self._store.take(lease, max_attempts=NEVER)
            taken = await self._said("take", taking, session=lease.session_id, epoch=lease.epoch)
            if taken is not None:
                self._taken.append((lease, taken))

    async def _write(self, holder: Holder) -> None:
        if self._leases:
            await self._write_under(self._chance.choice(self._leases))

    async def _write_stale(self, holder: Holder) -> None:
        """Try what was lost, as one would who does not know that it is."""
        if self._stale:
            stale = replace(self._chance.choice(self._stale), lost=False, released=False)
            await self._write_under(stale)

    async def _write_under(self, lease: Lease) -> None:
        token = f"{self._name}-{self._count}"
        count = self._chance.randint(1, 3)
        payload = {"epoch": lease.epoch, "holder": lease.holder, "token": token}
        events = [NewEvent(kind="tick", payload=json.dumps(payload | {"part": n})) for n in range(count)]
        writing = self._store.write(lease, Batch(events=events))
        facts = {"session": lease.session_id, "epoch": lease.epoch, "token": token, "count": count}
        await self._said("write", writing, **facts)

    async def _finish(self, holder: Holder) -> None:
        if not self._taken:
            return
        lease, submission = self._taken.pop(self._chance.randrange(len(self._taken)))
        release = self._chance.random() < 0.3
        batch = Batch(
            submissions=[SubmissionChange(id=submission.id, state="done")],
            status="idle" if release else None,
            release=release,
        )
        facts = {"session": lease.session_id, "epoch": lease.epoch, "submission": submission.id}
        await self._said("finish", self._store.write(lease, batch), **facts)
        if release:
            self._forget(lease.session_id)

    async def _release(self, holder: Holder) -> None:
        if self._leases:
            lease = self._chance.choice(self._leases)
            await self._said("release", self._store.release(lease), session=lease.session_id)
            self._forget(lease.session_id)

    async def _renew(self, holder: Holder) -> None:
        await self._store.renew(holder)

    async def _reclaim(self, holder: Holder) -> None:
        await self._store.reclaim()

    async def _leave(self, holder: Holder) -> None:
        await self._store.leave(holder)
        self._forget_all()

    def _forget(self, session_id: str) -> None:
        """Note that a session is not ours any more."""
        self._stale += [lease for lease in self._leases if lease.session_id == session_id]
        self._leases = [lease for lease in self._leases if lease.session_id != session_id]
        self._taken = [pair for pair in self._taken if pair[0].session_id != session_id]

    def _forget_all(self) -> None:
        self._holder = None
        for lease in list(self._leases):
            self._forget(lease.session_id)


def _shown(result: Any) -> Any:
    match result:
        case Lease():
            return [{"session": result.session_id, "epoch": result.epoch, "holder": result.holder}]
        case Submission():
            return {"id": result.id, "position": result.position}
        case list():
            return [shown for work in result for shown in _shown(work.lease)]  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
        case _:
            return result


async def main(url: str, name: str, seed: str, seconds: str, *sessions: str) -> None:
    async with open_store(url) as store:
        await Actor(store, name, seed, list(sessions)).run(float(seconds))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
