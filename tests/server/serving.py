"""An application on a real port, and a worker, in this process."""

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, nullcontext
from typing import Any

import uvicorn

from holdfast import Store, Worker
from holdfast.server.protocol import MAX_HEAD_BYTES, Protocol, SocketProtocol


@asynccontextmanager
async def serving(app: Any, http: Any = Protocol, *, keep_alive: int = 5) -> AsyncGenerator[str, None]:
    """Serve an application as `holdfast serve` does; yield its URL."""
    config = uvicorn.Config(
        app,
        http=http,
        ws=SocketProtocol,
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        log_config=None,
        lifespan="on",
        timeout_graceful_shutdown=2,
        timeout_keep_alive=keep_alive,
    )
    server = uvicorn.Server(config)
    setattr(server, "capture_signals", nullcontext)  # noqa: B010 - typed as a method
    with socket.create_server(("127.0.0.1", 0)) as listening:
        task = asyncio.create_task(server.serve(sockets=[listening]))
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            app.state.channels.close()
            server.should_exit = True
            await task


@asynccontextmanager
async def working(store: Store, agents: Any) -> AsyncGenerator[None, None]:
    """Run a worker for these agents until the end of the block."""
    worker = Worker(store, agents)
    running = asyncio.create_task(worker.run())
    try:
        yield
    finally:
        worker.stop()
        await running
