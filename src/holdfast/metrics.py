"""Count facts for Prometheus, one metric per fact, in the process where they happen.

The workers of `holdfast serve` write their counts to files that the API server reads. Other processes serve theirs on a port.
"""

import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, Counter, Histogram, start_http_server
from prometheus_client.metrics_core import Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

FOLDER: Final = "PROMETHEUS_MULTIPROC_DIR"
"""The variable that names the folder of those files; prometheus-client reads it on import."""
SIZES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)
MOST_VALUES: Final = 100
"""How many values of a label one process exports. All others are counted as `other`: a tool server may invent names without end."""
_PAUSE_SECONDS = 0.5
_SILENT_SECONDS = 10.0


class Fact(NamedTuple):
    """The metric of a fact: a histogram if it has buckets, otherwise a counter."""

    text: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


SERVER: Final = {
    "submissions": Fact("Submissions accepted by this server.", ("kind",)),
    "limited": Fact(
        "Requests, submissions and streams that this server refused by a limit per owner.", ("what",)
    ),
    "retention": Fact("Sessions exported, cleaned, rehydrated or erased by this server.", ("action",)),
}
WORKER: Final = {
    "runs": Fact("Runs that ended on a worker, by outcome.", ("agent", "outcome")),
    "deliveries": Fact("Attempts to deliver notices, by outcome.", ("kind", "outcome")),
    "mirrored": Fact("Events written to the files of the mirror."),
    "takeovers": Fact("Sessions taken over from a dead holder."),
    "refused_writes": Fact("Writes refused because their lease was not the newest."),
    "commit_batches": Fact("Batches that shared a commit.", buckets=SIZES),
    "model_requests": Fact("Model requests that ended on a worker.", ("agent", "model", "outcome")),
    "model_tokens": Fact("Tokens of model requests.", ("agent", "model", "direction")),
    "model_cost_usd": Fact("Cost of model requests with a known price.", ("agent", "model")),
    "model_seconds": Fact(
        "Duration of model requests.", ("agent", "model"), buckets=(0.5, 1, 2, 5, 10, 30, 60, 300)
    ),
    "tool_calls": Fact("Tool calls that ended on a worker.", ("agent", "tool", "outcome")),
    "tool_seconds": Fact("Duration of tool calls.", ("agent", "tool"), buckets=(0.1, 1, 10, 60, 600)),
}


class Counts:
    """Counts facts in a registry. Facts without a metric are ignored."""

    def __init__(self, registry: CollectorRegistry, facts: dict[str, Fact]) -> None:
        self._metrics = {
            name: Histogram(
                f"holdfast_{name}", fact.text, fact.labels, buckets=fact.buckets, registry=registry
            )
            if fact.buckets
            else Counter(f"holdfast_{name}", fact.text, fact.labels, registry=registry)
            for name, fact in facts.items()
        }
        self._values: defaultdict[str, set[str]] = defaultdict(set)

    def __call__(self, fact: str, amount: float, labels: dict[str, str]) -> None:
        """Count a fact."""
        metric = self._metrics.get(fact)
        if metric is None:
            return
        if labels:
            metric = metric.labels(**{name: self._bounded(name, value) for name, value in labels.items()})
        if isinstance(metric, Histogram):
            metric.observe(amount)
        else:
            metric.inc(amount)

    def _bounded(self, label: str, value: str) -> str:
        """Return the value, or `other` if the label has had too many."""
        values = self._values[label]
        if value not in values and len(values) >= MOST_VALUES:
            return "other"
        values.add(value)
        return value


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
