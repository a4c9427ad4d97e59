"""The routes for operators: the caller's identity, health, readiness, workers, audit and metrics."""

import asyncio
import json
import logging
import time
from pathlib import Path
from typing import Annotated, get_args

from fastapi import Query, Request, Response
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from holdfast import __version__
from holdfast.api.models import AuditRecord, Health, Items, Me, ServerInfo, WorkerInfo
from holdfast.errors import HoldfastError
from holdfast.metrics import SERVER, Counts, WorkerCollector
from holdfast.retention.sweep import DUTY, Result
from holdfast.server.routes import channels_of, new_router, principal_of, route, store_of
from holdfast.server.sessions import CursorText, Limit
from holdfast.store import Store
from holdfast.types import Duty

router = new_router("operation")
STORE_SECONDS = 3.0
"""How long `/ready` and `/metrics` wait for the store."""
_log = logging.getLogger(__name__)


class Metrics:
    """The metrics of this process, and those of its workers if there is a folder with them."""

    def __init__(self, workers: Path | None = None) -> None:
        self.registry = CollectorRegistry()
        self.count = Counts(self.registry, SERVER)
        if workers is not None:
            self.registry.register(WorkerCollector(workers))
        self.requests = Counter(
            "holdfast_http_requests",
            "HTTP requests by route and status.",
            ["method", "route", "status"],
            registry=self.registry,
        )
        self.seconds = Histogram(
            "holdfast_http_seconds", "Duration of HTTP requests.", ["method", "route"], registry=self.registry
        )
        self.streams = Gauge(
            "holdfast_streams", "Open event streams of this process.", registry=self.registry
        )
        self._dropped = Counter(
            "holdfast_streams_dropped",
            "Streams closed because the client did not read.",
            registry=self.registry,
        )
        self._store_up = Gauge(
            "holdfast_store_up", "Whether the store answered: 1, or 0.", registry=self.registry
        )
        self._store = CollectorRegistry()  # not exported while the store is down: old numbers would mislead
        self._gauges = {
            name: Gauge(f"holdfast_{metric}", text, registry=self._store)
            for name, metric, text in (
                ("sessions", "sessions", "Sessions in the store."),
                ("events", "events", "Events in the store."),
                ("pending", "pending_submissions", "Submissions that have not ended."),
                ("holders", "holders", "Registered workers and standalone runs."),
                (
                    "expired_holders",
                    "expired_holders",
                    "Holders past their deadline that are not removed yet.",
                ),
                ("leases", "leases", "Sessions with a lease."),
                (
                    "queue_wait",
                    "queue_wait_seconds",
                    "Longest time that a ready session has waited for a worker.",
                ),
            )
        }
        self._swept_at = Gauge(
            "holdfast_sweep_timestamp_seconds",
            "Time at which the last retention sweep ended.",
            registry=self._store,
        )
        self._swept = Gauge(
            "holdfast_sweep_sessions",
            "Sessions of the last sweep by outcome.",
            ["outcome"],
            registry=self._store,
        )
        for outcome in get_args(Result):
            self._swept.labels(outcome)  # export 0 before the first sweep

    def dropped(self) -> None:
        """Count a stream that was dropped."""
        self._dropped.inc()

    async def text(self, store: Store) -> bytes:
        """Return the metrics of the process, and those of the store if it is available."""
        try:
            async with asyncio.timeout(STORE_SECONDS):
                await store.token("")  # `schema` counts rows, which may take longer
            self._set_store(await store.schema())
            self._set_sweep(await store.duty(DUTY))
        except (HoldfastError, TimeoutError) as error:
            _log.warning("/metrics has no numbers of the store: %s", error or "it does not answer")
            self._store_up.set(0)
            return generate_latest(self.registry)
        self._store_up.set(1)
        return generate_latest(self.registry) + generate_latest(self._store)

    def _set_sweep(self, duty: Duty | None) -> None:
        """Set the result of the last sweep, of any worker."""
        if duty is None or duty.done_at is None:
            return
        self._swept_at.set(duty.done_at.timestamp())
        outcomes = json.loads(duty.detail).get("outcomes", {})
        for outcome in get_args(Result):
            self._swept.labels(outcome).set(outcomes.get(outcome, 0))

    def _set_store(self, facts: object) -> None:
        """Set the gauges of the store."""
        for name, gauge in self._gauges.items():
            gauge.set(getattr(facts, name))


@route(router, "GET", "/api/me", "user")
async def me(request: Request) -> Me:
    """Return your identity, and the agents of the server."""
    principal = principal_of(request)
    return Me(
        owner=principal.owner,
        role=principal.role,
        scopes=sorted(principal.scopes),
        agents=sorted(request.app.state.agents),
        demo=request.app.state.demo,
    )


@route(router, "GET", "/api/workers", "user")
async def workers(request: Request) -> Items[WorkerInfo]:
    """List workers and other lease holders: how many sessions each holds, and until when."""
    return Items(items=[WorkerInfo.of(holder) for holder in await store_of(request).holders()])


@route(router, "GET", "/api/audit", "admin")
async def audit(
    request: Request,
    session_id: Annotated[
        str,
        Query(
            max_length=128,
            pattern=r"^([A-Za-z0-9][A-Za-z0-9._:@=+~-]*)?$",
            description="Only entries of this session.",
        ),
    ] = "",
    cursor: CursorText = None,
    limit: Limit = 50,
) -> Items[AuditRecord]:
    """List the audit log, newest first."""
    page = await store_of(request).audit_log(session_id=session_id or None, cursor=cursor, limit=limit)
    return Items[AuditRecord].of(page)


@route(router, "GET", "/alive", "public")
async def alive() -> Health:
    """Report that the process is alive, as `/health` does."""
    return Health(status="ok")


@route(router, "GET", "/server_info", "public")
async def server_info(request: Request) -> ServerInfo:
    """Return the version and uptime of the server."""
    state, now = request.app.state, time.monotonic()
    return ServerInfo(
        version=__version__, uptime=round(now - state.started_at, 3), idle_time=round(now - state.used_at, 3)
    )


@route(router, "GET", "/health", "public")
async def health() -> Health:
    """Report that the process is alive."""
    return Health(status="ok")


@route(router, "GET", "/ready", "public", responses={503: {"model": Health}})
async def ready(request: Request, response: Response) -> Health:
    """Report whether the store is available and its schema is up to date."""
    store, state = store_of(request), request.app.state
    try:
        async with asyncio.timeout(STORE_SECONDS):
            if state.migrated:
                await store.token("")  # `schema` counts rows, which is slow
            else:
                schema = await store.schema()
                state.migrated = schema.version == schema.latest
    except (HoldfastError, TimeoutError):
        response.status_code = 503
        return Health(status="unavailable", problem="The store is not available.")
    if not state.migrated:
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
    """Return the metrics for Prometheus. While the store is down, `holdfast_store_up` is 0, and its numbers are left out."""
    counted: Metrics = request.app.state.metrics
    counted.streams.set(channels_of(request).clients)
    return Response(await counted.text(store_of(request)), media_type="text/plain; version=0.0.4")
