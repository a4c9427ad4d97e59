"""Count facts for Prometheus, one metric per fact, in the process where they happen.

The workers of `holdfast serve` write their counts to files that the API server reads. Other processes serve theirs on a port.
"""

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, Counter, Histogram, start_http_server
from prometheus_client.metrics_core import Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

FOLDER: Final = "PROMETHEUS_MULTIPROC_DIR"
"""The variable that names the folder of those files; prometheus-client reads it on import."""
SERVER: Final = {
    "submissions": ("Submissions accepted by this server.", ("kind",)),
    "retention": ("Sessions exported, cleaned, rehydrated or erased by this server.", ("action",)),
}
WORKER: Final = {
    "runs": ("Runs that ended on a worker, by outcome.", ("outcome",)),
    "takeovers": ("Sessions taken over from a dead holder.", ()),
    "refused_writes": ("Writes refused because their lease was not the newest.", ()),
}
_PAUSE_SECONDS = 0.5
_SILENT_SECONDS = 10.0
SIZES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Counts:
    """Counts facts in a registry. Facts without a metric are ignored."""

    def __init__(self, registry: CollectorRegistry, facts: dict[str, tuple[str, tuple[str, ...]]]) -> None:
        self._counters = {
            name: Counter(f"holdfast_{name}", text, labels, registry=registry)
            for name, (text, labels) in facts.items()
        }
        self._batches: Histogram | None = None
        if facts is WORKER:
            self._batches = Histogram(
                "holdfast_commit_batches", "Batches that shared a commit.", buckets=SIZES, registry=registry
            )

    def __call__(self, fact: str, amount: float, labels: dict[str, str]) -> None:
        """Count a fact."""
        if fact == "commit_batches" and self._batches is not None:
            self._batches.observe(amount)
        elif (counter := self._counters.get(fact)) is not None:
            (counter.labels(**labels) if labels else counter).inc(amount)


class WorkerCollector(Collector):
    """Collects the counts of this command's workers, including those that have exited."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def collect(self) -> Iterable[Metric]:
        """Return the sums of all workers."""
        of_files: Any = MultiProcessCollector(CollectorRegistry(), str(self._folder))
        return of_files.collect()


def start_server(registry: CollectorRegistry, host: str, port: int) -> WSGIServer:
    """Serve a registry to Prometheus, on a thread.

    Drop clients that send nothing. While no file descriptors are left, retry with a pause, which the server of
    prometheus-client does not do.
    """
    server: Any = start_http_server(port, host, registry)[0]
    server.RequestHandlerClass = type("Handler", (server.RequestHandlerClass,), {"timeout": _SILENT_SECONDS})
    accept = server.get_request

    def get_request() -> tuple[Any, Any]:
        try:
            return accept()
        except OSError:
            time.sleep(_PAUSE_SECONDS)
            raise

    server.get_request = get_request
    return server
