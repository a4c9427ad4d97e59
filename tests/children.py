"""What tests run in processes of their own: `python -m tests.children VERB URL …`. One line out per fact."""

import asyncio
import json
import sys

from holdfast.errors import HoldfastError, SessionBusy
from holdfast.store import Store, open_store
from holdfast.types import Batch, NewEvent


def say(**facts: object) -> None:
    print(json.dumps(facts), flush=True)


def event(token: str) -> Batch:
    return Batch(events=[NewEvent(kind="tick", payload=json.dumps(token))])


async def take_turns(store: Store, session_id: str, name: str, count: str, ttl: str = "60") -> None:
    """Append to a session that others append to as well, each time with a new lease."""
    holder = await store.join(name, ttl=float(ttl))
    for number in range(int(count)):
        while True:
            try:
                lease = await store.acquire(session_id, holder)
            except SessionBusy:
                await asyncio.sleep(0.001)
            else:
                break
        say(seq=await store.write(lease, event(f"{name}-{number}")))
        await store.release(lease)
        await store.renew(holder)


async def append(store: Store, session_id: str, name: str, count: str) -> None:
    """Append to a session of one's own, saying each number once it is acknowledged."""
    lease = await store.acquire(session_id, await store.join(name, ttl=60))
    for number in range(int(count)):
        say(seq=await store.write(lease, event(f"{name}-{number}")))


async def obey(store: Store, session_id: str, ttl: str) -> None:
    """Take the lease, then write once for each line that comes in."""
    lease = await store.acquire(session_id, await store.join("obedient", ttl=float(ttl)))
    say(epoch=lease.epoch)
    while line := await asyncio.to_thread(sys.stdin.readline):
        try:
            say(seq=await store.write(lease, event(line.strip())))
        except HoldfastError as error:
            say(error=error.code)


async def read(store: Store, session_id: str, upto: str) -> None:
    """Watch from the beginning, with a new connection to the stream every few events."""
    after = 0
    while after < int(upto):
        watching = store.watch(session_id, after=after)
        for _ in range(7):
            after = (await anext(watching)).seq
            say(seq=after)
            if after == int(upto):
                break
        await watching.aclose()


async def migrate(store: Store) -> None:
    say(version=(await store.schema()).version)


async def main(verb: str, url: str, *arguments: str) -> None:
    async with open_store(url) as store:
        await {"take_turns": take_turns, "append": append, "obey": obey, "read": read, "migrate": migrate}[
            verb
        ](store, *arguments)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
