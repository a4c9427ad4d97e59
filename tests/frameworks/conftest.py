"""The adapters are tested where their frameworks are installed: `make frameworks-test` does both."""

from importlib.util import find_spec
from pathlib import Path

import pytest

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
