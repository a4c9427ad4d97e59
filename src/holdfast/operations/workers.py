"""The caller's identity, workers, the audit log, and the health of the service."""

import asyncio
import time
from typing import Annotated

from pydantic import Field

from holdfast.api.models import AuditRecord, Health, Items, Me, ServerInfo, WorkerInfo
from holdfast.errors import HoldfastError
from holdfast.operations.access import Caller, Service
from holdfast.operations.registry import ClientMethod, CursorText, Limit, operation
from holdfast.version import __version__

STORE_SECONDS = 3.0
"""How long `/ready` and `/metrics` wait for the store."""


@operation("GET", "/api/me", "user", ClientMethod("Client.me", note="for programs"), topic="operation")
async def me(caller: Caller) -> Me:
    """Return your identity, and the agents of the server."""
    principal, service = caller.principal, caller.service
    return Me(
        owner=principal.owner,
        role=principal.role,
        scopes=sorted(principal.scopes),
        agents=sorted(service.agents),
        demo=service.demo,
    )


@operation("GET", "/api/workers", "user", ClientMethod("Client.workers", "workers"), topic="operation")
async def workers(caller: Caller) -> Items[WorkerInfo]:
    """List workers and other lease holders, with the number of sessions and the deadline of each."""
    return Items(items=[WorkerInfo.of(holder) for holder in await caller.store.holders()])


@operation("GET", "/api/audit", "admin", ClientMethod("Client.audit", "audit"), topic="operation")
async def audit(
    caller: Caller,
    session_id: Annotated[
        str,
        Field(
            max_length=128,
            pattern=r"^([A-Za-z0-9][A-Za-z0-9._:@=+~-]*)?$",
            description="Only entries of this session.",
        ),
    ] = "",
    cursor: CursorText = None,
    limit: Limit = 50,
) -> Items[AuditRecord]:
    """List the audit log, newest first."""
    page = await caller.store.audit_log(session_id=session_id or None, cursor=cursor, limit=limit)
    return Items[AuditRecord].of(page)


@operation(
    "GET",
    "/alive",
    "public",
    no_method="for clients of other agent servers; `GET /ready` checks more",
    topic="operation",
)
async def alive(caller: Caller) -> Health:
    """Report that the process is alive, as `/health` does."""
    del caller
    return Health(status="ok")


@operation(
    "GET",
    "/server_info",
    "public",
    ClientMethod("Client.server_info", note="for programs"),
    topic="operation",
)
async def server_info(caller: Caller) -> ServerInfo:
    """Return the version and uptime of the server."""
    service, now = caller.service, time.monotonic()
    return ServerInfo(
        version=__version__,
        uptime=round(now - service.started_at, 3),
        idle_time=round(now - service.used_at, 3),
    )


@operation(
    "GET", "/health", "public", no_method="for load balancers; `GET /ready` checks more", topic="operation"
)
async def health(caller: Caller) -> Health:
    """Report that the process is alive."""
    del caller
    return Health(status="ok")


@operation(
    "GET",
    "/ready",
    "public",
    ClientMethod("Client.ready", "doctor"),
    topic="operation",
    responses={503: {"model": Health}},
)
async def ready(caller: Caller) -> Health:
    """Report whether the store is available and its schema is up to date."""
    problem = await _problem(caller.service)
    return Health(status="ok" if problem is None else "unavailable", problem=problem)


async def _problem(service: Service) -> str | None:
    try:
        async with asyncio.timeout(STORE_SECONDS):
            if service.migrated:
                await service.store.token("")  # `schema` counts rows, which is slow
            else:
                schema = await service.store.schema()
                service.migrated = schema.version == schema.latest
    except (HoldfastError, TimeoutError):
        return "The store is not available."
    return None if service.migrated else "The schema is not up to date."
