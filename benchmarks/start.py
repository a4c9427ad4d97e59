"""How long the commands take to start: the help, an API server until it is ready, a worker until it serves.

Each is started several times as a process, next to a bare `python -c pass` and to the imports that it cannot do without.
"""

import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from benchmarks.report import Report
from tests.servers import free_port

if TYPE_CHECKING:
    from collections.abc import Callable

TIMES = 7
AGENT = """
from pydantic_ai import Agent
from pydantic_ai.models.test import TestModel

agent = Agent(TestModel(), name="agent")
"""


def ended(*command: str) -> float:
    """Return the seconds that a command takes."""
    began = time.perf_counter()
    subprocess.run([sys.executable, *command], check=True, capture_output=True)
    return time.perf_counter() - began


def api_server(folder: Path) -> float:
    """Return the seconds until an API server is ready."""
    port = free_port()
    began = time.perf_counter()
    command = ["serve", "--role", "api", "--port", str(port), "--store", f"sqlite:///{folder}/api.db"]
    environment = os.environ | {"HOLDFAST_AUTH": "none"}
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast", *command],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        while process.poll() is None:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=5):
                    return time.perf_counter() - began
            except OSError:
                time.sleep(0.005)
        raise RuntimeError("the server ended")
    finally:
        process.terminate()
        process.wait()


def worker(folder: Path) -> float:
    """Return the seconds until a worker serves its agent."""
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast", "worker", "app:agent", "--store", f"sqlite:///{folder}/worker.db"],
        cwd=folder,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if " serves " in line:
                return time.perf_counter() - began
        raise RuntimeError("the worker ended")
    finally:
        process.terminate()
        process.wait()


def main() -> int:
    """Start everything in turns."""
    report = Report("start")
    with tempfile.TemporaryDirectory(prefix="holdfast-start-") as place:
        folder = Path(place)
        (folder / "app.py").write_text(AGENT)
        started: dict[str, tuple[Callable[[], float], float | None]] = {
            "python -c pass": (lambda: ended("-c", "pass"), None),
            "import typer": (lambda: ended("-c", "import typer"), None),
            "holdfast --help": (lambda: ended("-m", "holdfast", "--help"), 0.15),
            "import fastapi, uvicorn": (lambda: ended("-c", "import fastapi, uvicorn"), None),
            "an API server is ready": (lambda: api_server(folder), 0.7),
            "import pydantic_ai": (lambda: ended("-c", "import pydantic_ai"), None),
            "a worker serves": (lambda: worker(folder), 1.5),
        }
        times: dict[str, list[float]] = {name: [] for name in started}
        for _ in range(TIMES):
            for name, (start, _) in started.items():
                times[name].append(start())
    for name, (_, limit) in started.items():
        report.add(name, median(times[name]), "s", at_most=limit)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
