"""The adapters are tested where their frameworks are installed: `make frameworks-test` does both."""

from collections.abc import AsyncGenerator, Generator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Engine

PACKAGES = {
    "adk": "google.adk",
    "claude": "claude_agent_sdk",
    "harness": "pydantic_ai_harness",
    "langgraph": "langgraph.checkpoint.conformance",
    "openai_agents": "agents",
}


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:
        return False


MISSING = [name for name, package in PACKAGES.items() if not _is_installed(package)]
collect_ignore_glob = [f"test_{name}*.py" for name in MISSING]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    left_out = [name for name in MISSING if list(Path(__file__).parent.glob(f"test_{name}*.py"))]
    if left_out:
        terminalreporter.section("Some frameworks were not tested")
        terminalreporter.line(f"Not installed: {', '.join(left_out)}. `make frameworks-test` installs them.")


def _adapter(module: str, name: str) -> Any:
    return getattr(import_module(f"holdfast.frameworks.{module}"), name)


@pytest.fixture
def steps(engine: Engine) -> Generator[Any, None, None]:
    store = _adapter("harness", "HoldfastStepStore")(engine.url)
    yield store
    store.close()


@pytest.fixture
def media(engine: Engine) -> Generator[Any, None, None]:
    store = _adapter("harness", "HoldfastMediaStore")(engine.url)
    yield store
    store.close()


@pytest.fixture
async def service(engine: Engine) -> AsyncGenerator[Any, None]:
    async with _adapter("adk", "HoldfastSessionService")(engine.url) as service:
        yield service


@pytest.fixture
async def other(engine: Engine) -> AsyncGenerator[Any, None]:
    """Another service on the same store, as another process has it."""
    async with _adapter("adk", "HoldfastSessionService")(engine.url) as service:
        yield service
