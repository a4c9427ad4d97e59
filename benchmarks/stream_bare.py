"""What Holdfast's stream is measured against: a bare Starlette stream of the same bytes, and nothing else."""

import asyncio
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route


def main(port: int, file: Path, pace: float) -> None:
    """Serve the blocks of a file to whoever comes, once the file is there: all at once, or one in `pace` seconds."""
    said: list[bytes] = []
    bell = asyncio.Event()

    async def say() -> None:
        nonlocal bell
        while not file.exists():
            await asyncio.sleep(0.01)
        for block in file.read_bytes().split(b"\n\n")[:-1]:
            said.append(block + b"\n\n")
            if pace:
                ringing, bell = bell, asyncio.Event()
                ringing.set()
                await asyncio.sleep(pace)
        bell.set()

    async def blocks() -> AsyncGenerator[bytes, None]:
        yield b": waiting\n\n"
        sent = 0
        while True:
            while sent < len(said):
                yield said[sent]
                sent += 1
            waiting = bell
            await (asyncio.sleep(3600) if waiting.is_set() else waiting.wait())

    async def stream(request: Request) -> StreamingResponse:
        del request
        return StreamingResponse(blocks(), media_type="text/event-stream")

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncGenerator[None, None]:
        del app
        saying = asyncio.create_task(say())
        yield
        saying.cancel()

    app = Starlette(routes=[Route("/", stream)], lifespan=lifespan)
    uvicorn.run(app, port=port, log_level="error", backlog=2048)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3]))
