"""The routes for those who run it: who am I, health, readiness, workers, audit, metrics."""

import asyncio
import json

from fastapi import Request, Response
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from holdfast.errors import HoldfastError
from holdfast.server.routes import channels_of, new_router, principal_of, route, store_of
from holdfast.server.sessions import CursorText, Limit
from holdfast.server.wire import AuditOut, Health, Items, Me, WorkerOut

router = new_router("operation")


class Metrics:
    """What this process counts."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "holdfast_http_requests",
            "Requests by route and status.",
            ["method", "route", "status"],
            registry=self.registry,
        )
        self.seconds = Histogram(
            "holdfast_http_seconds", "How long answers take.", ["method", "route"], registry=self.registry
        )
        self.streams = Gauge("holdfast_streams", "Event streams that are open here.", registry=self.registry)
        self._dropped = Counter(
            "holdfast_streams_dropped", "Streams whose client did not read.", registry=self.registry
        )
        self._gauges = {
            name: Gauge(f"holdfast_{name}", text, registry=self.registry)
            for name, text in (
                ("sessions", "Sessions in the store."),
                ("events", "Events in the store."),
                ("pending", "Submissions that have not ended."),
                ("holders", "Workers and bare runs that are registered."),
                ("expired_holders", "Holders past their deadline that nobody has removed yet."),
            )
        }

    def dropped(self) -> None:
        """Count a stream that was dropped."""
        self._dropped.inc()

    def set_store(self, facts: object) -> None:
        """Note how much is in the store."""
        for name, gauge in self._gauges.items():
            gauge.set(getattr(facts, name))


@route(router, "GET", "/api/me", "user")
async def me(request: Request) -> Me:
    """Say who you are to the server, and which agents it has."""
    principal = principal_of(request)
    return Me(
        owner=principal.owner,
        role=principal.role,
        scopes=sorted(principal.scopes),
        agents=sorted(request.app.state.agents),
        demo=request.app.state.demo,
    )


@route(router, "GET", "/api/workers", "user")
async def workers(request: Request) -> Items[WorkerOut]:
    """List who holds sessions, until when, and how many."""
    return Items(items=[WorkerOut.of(holder) for holder in await store_of(request).holders()])


@route(router, "GET", "/api/audit", "admin")
async def audit(request: Request, cursor: CursorText = None, limit: Limit = 50) -> Items[AuditOut]:
    """Read the audit, newest first."""
    page = await store_of(request).audit_log(cursor=cursor, limit=limit)
    items = [
        AuditOut(
            id=entry.id,
            at=entry.at,
            actor=entry.actor,
            action=entry.action,
            session_id=entry.session_id,
            detail=json.loads(entry.detail),
        )
        for entry in page.items
    ]
    return Items(items=items, next_cursor=page.next_cursor)


@route(router, "GET", "/health", "public")
async def health() -> Health:
    """Say that the process lives."""
    return Health(status="ok")


@route(router, "GET", "/ready", "public", responses={503: {"model": Health}})
async def ready(request: Request, response: Response) -> Health:
    """Say whether the store answers and has the schema that this code needs."""
    try:
        async with asyncio.timeout(3):
            schema = await store_of(request).schema()
    except (HoldfastError, TimeoutError):
        response.status_code = 503
        return Health(status="unavailable", problem="The store does not answer.")
    if schema.version != schema.latest:
        response.status_code = 503
        return Health(status="unavailable", problem="The schema is not up to date.")
    return Health(status="ok")


@route(
    router,
    "GET",
    "/metrics",
    "user",
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "Metrics."}},
)
async def metrics(request: Request) -> Response:
    """Give Prometheus its numbers."""
    counted: Metrics = request.app.state.metrics
    counted.streams.set(channels_of(request).clients)
    counted.set_store(await store_of(request).schema())
    return Response(generate_latest(counted.registry), media_type="text/plain; version=0.0.4")
