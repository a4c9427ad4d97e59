"""Front ends of others, as their packages have them: `make stock-test` installs the packages and runs these tests."""

from pathlib import Path

import pytest

PACKAGES = Path(__file__).parent.parent.parent / "build" / "stock"
collect_ignore_glob = [] if (PACKAGES / "ready").exists() else ["test_*.py"]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if collect_ignore_glob:
        terminalreporter.section("Stock front ends were not tested")
        terminalreporter.line("Their packages are not installed. `make stock-test` installs them.")
