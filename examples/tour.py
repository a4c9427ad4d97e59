"""A tour of the store: a writer is killed, another is paused, and nothing is lost, doubled or overwritten.

Run it with `make run`, or `python examples/tour.py [STORE_URL]`. It uses a new SQLite file in a temporary folder
unless you name a store. The agents come later; this is what they will stand on.
"""

import asyncio
import os
import signal
import sys
import tempfile
from pathlib import Path

from holdfast import open_store
from holdfast.errors import LeaseLost, SessionBusy
from holdfast.types import Batch, NewEvent


async def writer(url: str, session_id: str, pause_at: str = "never") -> None:
    """Write events until stopped, naming each one once it is durable; at a chosen one, fall asleep."""
    async with open_store(url) as store:
        holder = await store.join(f"writer {os.getpid()}", ttl=1)
        lease = await store.acquire(session_id, holder)
        try:
            while True:
                seq = await store.write(lease, Batch(events=[NewEvent(kind="step")]))
                print(seq, flush=True)
                if str(seq) == pause_at:
                    os.kill(os.getpid(), signal.SIGSTOP)
        except LeaseLost as lost:
            print(f"refused: {lost}", flush=True)


async def start(*arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, __file__, "writer", *arguments), stdout=asyncio.subprocess.PIPE
    )


async def hear(process: asyncio.subprocess.Process, count: int) -> str:
    assert process.stdout is not None
    for _ in range(count - 1):
        await process.stdout.readline()
    return (await process.stdout.readline()).decode().strip()


async def last_words(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    lines = (await process.stdout.read()).decode().split("\n")
    await process.wait()
    return lines[-2] if len(lines) > 1 else ""


async def tour(url: str) -> None:
    async with open_store(url) as store:
        print(f"1. A session in {store.engine}, and a process that writes to it.")
        session = await store.create_session(agent="demo", owner="you", title="A tour")
        first = await start(url, session.id)
        heard = await hear(first, 200)
        print(f"   It was told that event {heard} is durable. kill -9, now.")
        first.send_signal(signal.SIGKILL)
        acknowledged = int(await last_words(first) or heard)
        kept = (await store.session(session.id)).seq
        assert kept >= acknowledged
        print(f"   Acknowledged: {acknowledged}. In the store: {kept}. Nothing acknowledged is lost.")

        print("2. Its lease still stands until its deadline; nobody else may write before.")
        holder = await store.join("successor")
        while True:
            try:
                lease = await store.acquire(session.id, holder)
            except SessionBusy as busy:
                print(f"   {busy}")
                await asyncio.sleep(0.4)
            else:
                break
        print(
            f"   Taken over, epoch {lease.epoch}; the next event is {await store.write(lease, handover())}."
        )
        await store.release(lease)

        print("3. A writer that is paused past its deadline, while another goes on.")
        second = await start(url, session.id, str((await store.session(session.id)).seq + 50))
        await hear(second, 50)
        while (await store.session(session.id)).holder is not None:
            await asyncio.sleep(0.05)
        lease = await store.acquire(session.id, holder)
        await store.write(lease, handover())
        second.send_signal(signal.SIGCONT)
        print(f"   Paused, taken over by epoch {lease.epoch}, continued. It says:")
        print(f"   {await last_words(second)}")

        print("4. Whoever reads gets 1, 2, 3, … without a hole, from any process.")
        seqs: list[int] = []
        while page := await store.events(session.id, after=len(seqs)):
            seqs += [event.seq for event in page]
        assert seqs == list(range(1, len(seqs) + 1))
        violations = await store.check()
        assert not violations
        print(f"   {len(seqs)} events, dense; every invariant of the store holds.")
        await store.leave(holder)


def handover() -> Batch:
    return Batch(events=[NewEvent(kind="takeover")])


def main() -> None:
    if sys.argv[1:2] == ["writer"]:
        asyncio.run(writer(*sys.argv[2:]))
    elif len(sys.argv) > 1:
        asyncio.run(tour(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            asyncio.run(tour(f"sqlite:///{Path(folder) / 'tour.db'}"))


if __name__ == "__main__":
    main()
