"""What processes count, for Prometheus: each fact by one metric, in the process where it happens.

The workers of `holdfast serve` leave their numbers in files that its front reads. Others show theirs on a port.
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
"""The variable that names the folder of those files; prometheus-client reads it when it is imported."""
FRONT: Final = {
    "submissions": ("Submissions that were accepted here.", ("kind",)),
    "retention": ("Sessions that were exported, cleaned, rehydrated or erased here.", ("action",)),
}
WORKER: Final = {
    "runs": ("Runs that ended on a worker, by how.", ("outcome",)),
    "takeovers": ("Sessions that were taken over from a holder that was gone.", ()),
    "refused_writes": ("Writes that were refused because their lease was not the newest.", ()),
}
_PAUSE_SECONDS = 0.5
_SILENT_SECONDS = 10.0
SIZES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Counts:
    """Counts facts in a registry. Facts that it has no metric for are none of its business."""

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
        """Count it."""
        if fact == "commit_batches" and self._batches is not None:
            self._batches.observe(amount)
        elif (counter := self._counters.get(fact)) is not None:
            (counter.labels(**labels) if labels else counter).inc(amount)


class OfWorkers(Collector):
    """What the workers of this command have counted, also those that are gone."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def collect(self) -> Iterable[Metric]:
        """Return it, added up."""
        of_files: Any = MultiProcessCollector(CollectorRegistry(), str(self._folder))
        return of_files.collect()


def show(registry: CollectorRegistry, host: str, port: int) -> WSGIServer:
    """Serve a registry to Prometheus, on a thread.

    A client that sends nothing is dropped. While no file descriptors are left, the thread tries again from time to time; the
    server of prometheus-client would try without a pause.
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
