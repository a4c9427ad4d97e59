"""The metrics of a process and of its store, in Prometheus format."""

import asyncio
import json
import logging
from pathlib import Path
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from holdfast.errors import HoldfastError
from holdfast.metrics import SERVER, Counts, WorkerCollector
from holdfast.operations.workers import STORE_SECONDS
from holdfast.policy import Result
from holdfast.retention.sweep import DUTY
from holdfast.store import Store
from holdfast.types import Duty

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
