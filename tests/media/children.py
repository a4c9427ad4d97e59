"""What media tests run in processes of their own: `python -m tests.media.children VERB STORE MEDIA …`."""

import asyncio
import json
import os
import resource
import sys

from holdfast.errors import Conflict, HoldfastError
from holdfast.media import MediaStore, collect, open_media
from holdfast.store import open_store
from holdfast.types import Batch


def say(**facts: object) -> None:
    print(json.dumps(facts), flush=True)


async def put(media: MediaStore, text: str, times: str) -> None:
    """Put the same content, again and again."""
    for _ in range(int(times)):
        say(uri=await media.put(text.encode() * 100_000))


async def hang(media: MediaStore) -> None:
    """Begin to put something, say so, and never come to the end."""
    async with media.open() as writer:
        await writer.write(os.urandom(9_000_000))
        say(begun=True)
        await asyncio.Event().wait()


async def refer(media: MediaStore, session_id: str, times: str) -> None:
    """Put contents that others put as well, and refer to them; say which the session refers to in the end."""
    lease = await media.store.acquire(session_id, await media.store.join("child", ttl=60))
    for number in range(int(times)):
        while True:
            uri = await media.put(b"%d" % (number % 5) * 30_000)
            try:
                await media.store.write(lease, Batch(blobs=[uri.removeprefix("media+sha256://")]))
            except Conflict:
                continue  # collected between the two: put it again
            break
        say(uri=uri)
        if number % 3 == 2:
            while await media.store.delete_content(lease):
                pass
            say(cleaned=True)


async def gather(media: MediaStore) -> None:
    """Collect until told to stop."""
    stop = asyncio.create_task(asyncio.to_thread(sys.stdin.readline))
    total = 0
    while not stop.done():
        done = await collect(media, grace=0, limit=3)
        assert not done.failed, done.failed
        total += done.blobs
    say(blobs=total)


async def fill(media: MediaStore, limit: str) -> None:
    """Put more than there is room for."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), resource.RLIM_INFINITY))
    for attempt in (media.put(os.urandom(3_000_000)), _stream(media)):
        try:
            say(uri=await attempt)
        except HoldfastError as error:
            say(error=error.code, message=str(error))
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    say(uri=await media.put(b"fits"))


async def _stream(media: MediaStore) -> str:
    async with media.open() as writer:
        for _ in range(30):
            await writer.write(os.urandom(100_000))
    return writer.uri


async def main(verb: str, store_url: str, url: str, *arguments: str) -> None:
    verbs = {"put": put, "hang": hang, "refer": refer, "gather": gather, "fill": fill}
    async with open_store(store_url) as store:
        await verbs[verb](open_media(url, store=store), *arguments)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
