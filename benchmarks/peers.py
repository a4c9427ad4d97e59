"""Processes of a benchmark, and the environments in which peers are installed."""

import subprocess
import sys
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.report import progress

ROOT = Path(__file__).parents[1]


@contextmanager
def peer_python(folder: Path | None, packages: Sequence[str]) -> Generator[Path, None, None]:
    """Install packages into an environment of their own and yield its interpreter. Without a folder it is temporary."""
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as temporary:
        place = folder or Path(temporary) / "peers"
        python = place / "bin" / "python"
        progress(f"installing {', '.join(packages)} into {place}")
        uv = [sys.executable, "-m", "uv"]
        if not python.exists():
            subprocess.run([*uv, "venv", "--quiet", "--python", sys.executable, place], check=True)
        subprocess.run([*uv, "pip", "install", "--quiet", "--python", python, *packages], check=True)
        yield python


@contextmanager
def process(*command: str) -> Generator["subprocess.Popen[str]", None, None]:
    """Start a process with pipes, and kill it at the end."""
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as started:
        try:
            yield started
        finally:
            started.kill()


def ready(started: "subprocess.Popen[str]") -> None:
    """Wait until a process has printed that it is ready."""
    assert started.stdout is not None
    line = started.stdout.readline()
    if line != "ready\n":
        message = f"{started.args} ended"
        raise RuntimeError(message)
