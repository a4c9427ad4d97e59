"""Open a client: on a store in this process, or on an API server."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import httpx2

from holdfast.client.client import Client
from holdfast.client.transport import Transport, new_http
from holdfast.config import Settings, load_settings
from holdfast.errors import BadInput
from holdfast.store import Store, open_store

if TYPE_CHECKING:
    from holdfast.runtime.agents import Agents


@asynccontextmanager
async def connect(
    url: str | Store | None = None,
    *,
    token: str | None = None,
    agents: "Agents | None" = None,
    timeout: float = 30.0,  # noqa: ASYNC109 - of each request
) -> AsyncGenerator[Client, None]:
    """Connect to a store (`sqlite:///file.db`, `postgresql://…`, `mongodb://…`) or to an API server (`https://…`).

    Without a URL, use the one of the settings: `HOLDFAST_URL`, else `HOLDFAST_STORE`. An open `Store` works as well. `token` is for
    an API server; by default it is `HOLDFAST_TOKEN`. A request fails after `timeout` seconds without a response.

    On a store, `agents` are served in this process, by a worker, while the client is open. Without them, sessions run on
    other workers, such as `holdfast worker app:agent`. On a store this process has all rights, and needs the extra `server`.
    """
    settings = load_settings()
    target = url or settings.url or settings.store
    async with AsyncExitStack() as stack:
        if isinstance(target, str) and target.startswith(("http://", "https://")):
            if agents is not None:
                raise BadInput(
                    problem="agents cannot be served on an API server; start a worker on its store"
                )
            token = token or (settings.token.get_secret_value() if settings.token else None)
            http = new_http(target, token, timeout=timeout)
        else:
            store = target
            if isinstance(store, str):
                store = await stack.enter_async_context(open_store(store))
            http = await stack.enter_async_context(_in_process(store, settings, timeout))
            if agents is not None:
                await stack.enter_async_context(_served(store, agents))
        yield Client(Transport(await stack.enter_async_context(http)))


@asynccontextmanager
async def _in_process(
    store: Store,
    settings: Settings,
    timeout: float,  # noqa: ASYNC109
) -> AsyncGenerator[httpx2.AsyncClient, None]:
    """Run the application of the API server in this process, where every caller is the local administrator."""
    from holdfast.client.asgi import AsgiTransport
    from holdfast.server import create_app

    trusted = {"auth": "none", "max_body_bytes": settings.max_payload_bytes}
    app = create_app(settings.model_copy(update=trusted), store)
    async with app.router.lifespan_context(app):
        yield httpx2.AsyncClient(base_url="http://localhost", transport=AsgiTransport(app), timeout=timeout)


@asynccontextmanager
async def _served(store: Store, agents: "Agents") -> AsyncGenerator[None, None]:
    from holdfast.runtime.worker import Worker

    worker = Worker(store, agents)
    serving = asyncio.create_task(worker.run())
    try:
        yield
    finally:
        worker.stop()
        await serving
