"""Open a client: on a store in this process, or on an API server."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

from holdfast.client.client import Client
from holdfast.config import load_settings
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
    actor: str = "",
    upgrade: bool = True,
    timeout: float = 30.0,  # noqa: ASYNC109 - of each request
) -> AsyncGenerator[Client, None]:
    """Connect to a store (`sqlite:///file.db`, `postgresql://…`, `mongodb://…`) or to an API server (`https://…`).

    Without a URL, uses `HOLDFAST_URL`, or else `HOLDFAST_STORE`. You can also pass an open `Store`. `token` is for an API
    server; the default is `HOLDFAST_TOKEN`. Requests to a server fail after `timeout` seconds without a response.

    On a store, `agents` are served in this process, by a worker, while the client is open. Without them, sessions run on other
    workers, such as `holdfast worker app:agent`. On a store, this process has all rights, and `actor` is its name in the audit
    log, by default `local`. With `upgrade=False`, the store's schema is not changed.
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
            from holdfast.client.http import HttpTransport, new_http

            http = await stack.enter_async_context(new_http(target, token, timeout=timeout))
            yield Client(HttpTransport(http))
            return
        from holdfast.client.local import LocalTransport
        from holdfast.operations.access import Service

        store = target
        if isinstance(store, str):
            store = await stack.enter_async_context(open_store(store, upgrade=upgrade))
        transport = LocalTransport(Service(store=store, settings=settings), actor=actor)
        if agents is not None:
            await stack.enter_async_context(_served(store, agents))
        yield Client(transport)


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
