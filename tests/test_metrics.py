"""The server that shows the metrics of a worker."""

import errno
import socket
import time
import urllib.request
from collections.abc import Generator
from typing import Any
from wsgiref.simple_server import WSGIServer

import pytest
from prometheus_client import CollectorRegistry, Counter

from holdfast import metrics


class Listener:
    """A listening socket for whose connections no file descriptors may be left."""

    def __init__(self, listening: socket.socket) -> None:
        self._listening = listening
        self.is_full = True
        self.refused = 0

    def accept(self) -> Any:
        if self.is_full:
            self.refused += 1
            raise OSError(errno.EMFILE, "Too many open files")
        return self._listening.accept()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._listening, name)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Generator[WSGIServer, None, None]:
    monkeypatch.setattr(metrics, "_SILENT_SECONDS", 0.2)
    registry = CollectorRegistry()
    Counter("seen", "Something.", registry=registry)
    server = metrics.start_server(registry, "127.0.0.1", 0)
    yield server
    server.shutdown()
    server.server_close()


def test_without_file_descriptors_it_does_not_use_a_core(server: WSGIServer):
    listener = Listener(server.socket)
    setattr(server, "socket", listener)  # noqa: B010 - typed as a socket
    with socket.create_connection(("127.0.0.1", server.server_port)):
        while not listener.refused:
            time.sleep(0.01)
        time.sleep(0.2)
        assert listener.refused <= 2
    listener.is_full = False
    with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/metrics", timeout=10) as answer:
        assert b"seen_total 0.0" in answer.read()


def test_a_client_that_sends_nothing_is_dropped(server: WSGIServer):
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=10) as client:
        assert client.recv(1) == b""


def test_the_values_of_a_label_are_bounded():
    registry = CollectorRegistry()
    count = metrics.Counts(registry, metrics.WORKER)
    for number in range(metrics.MOST_VALUES + 5):
        count("tool_calls", 1, {"agent": "a", "tool": f"tool-{number}", "outcome": "completed"})
    count("tool_calls", 1, {"agent": "a", "tool": "tool-0", "outcome": "completed"})

    def calls(tool: str) -> float | None:
        labels = {"agent": "a", "tool": tool, "outcome": "completed"}
        return registry.get_sample_value("holdfast_tool_calls_total", labels)

    assert (calls("tool-0"), calls("other"), calls(f"tool-{metrics.MOST_VALUES}")) == (2, 5, None)
