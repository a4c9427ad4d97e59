"""The TypeScript client: `make client-test` installs its compiler and runs these tests."""

from pathlib import Path

import pytest

PACKAGES = Path(__file__).parents[2] / "build" / "typescript"
collect_ignore_glob = [] if (PACKAGES / "ready").exists() else ["test_client.py"]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if collect_ignore_glob:
        terminalreporter.section("The TypeScript client was not tested")
        terminalreporter.line("Its compiler is not installed. `make client-test` installs it.")
