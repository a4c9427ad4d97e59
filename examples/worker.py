"""A worker on the bare store: claims sessions, takes their submissions in order, writes what it did, goes on after a crash.

Start it as often as you like, kill it whenever you like: `python examples/worker.py STORE_URL [--until-idle]`.
Then ask something of a session: `python examples/worker.py STORE_URL --submit SESSION_ID TEXT`.
"""

import asyncio
import json
import os
import sys

from holdfast import Store, open_store
from holdfast.errors import LeaseLost, StoreUnavailable
from holdfast.types import Batch, Holder, Lease, NewEvent, Submission, SubmissionChange

TTL, RENEW, IDLE = 10.0, 3.0, 0.2


async def keep_alive(store: Store, holder: Holder) -> None:
    """Renew our one deadline, which covers every lease we have; and free what dead workers left behind."""
    while True:
        await asyncio.sleep(RENEW)
        await store.renew(holder)  # HolderLost ends the worker: others have its sessions now
        await store.reclaim()


async def serve(store: Store, lease: Lease, submission: Submission | None) -> None:
    """Do what waits in one session. What we leave unfinished is queued again when we release or die."""
    while submission := submission or await store.take(lease):
        text = json.loads(submission.payload)["text"]
        answer = json.dumps({"text": text.upper(), "attempt": submission.attempts})
        # The answer and the end of the submission are one transaction: both are there, or neither.
        await store.write(
            lease,
            Batch(
                events=[NewEvent(kind="answer", payload=answer)],
                submissions=[SubmissionChange(id=submission.id, state="done")],
            ),
        )
        submission = None


async def work(store: Store, *, until_idle: bool) -> None:
    holder = await store.join(f"worker {os.getpid()}", ttl=TTL)
    alive = asyncio.create_task(keep_alive(store, holder))
    try:
        await store.reclaim()
        while not alive.done():
            found = await store.next_work(holder)  # a lease, and the first submission of its session
            if not found and until_idle:
                return
            if not found:
                await asyncio.sleep(IDLE)
            for item in found:
                try:
                    await serve(store, item.lease, item.submission)
                except (LeaseLost, StoreUnavailable) as error:
                    print(f"gave up {item.session.id}: {error}", file=sys.stderr)
                finally:
                    # Also a lost one: then it changes nothing, or frees what is still ours.
                    await store.release(item.lease)
        alive.result()
    finally:
        alive.cancel()
        await store.leave(holder)


async def main(url: str, *arguments: str) -> None:
    async with open_store(url) as store:
        if arguments[:1] == ("--submit",):
            session_id, text = arguments[1:]
            await store.create_session(agent="shouter", owner="you", id=session_id, exist_ok=True)
            submission = await store.submit(session_id, "message", json.dumps({"text": text}))
            print(f"{submission.id} is number {submission.position} of {session_id}")
        else:
            await work(store, until_idle="--until-idle" in arguments)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
