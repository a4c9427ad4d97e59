"""Front ends of others, as their packages have them: `make stock-test` installs the packages and runs these tests."""

from pathlib import Path

import pytest

from tests.browser.conftest import browser, missing, site

__all__ = ["browser", "site"]  # fixtures
PACKAGES = Path(__file__).parent.parent.parent / "build" / "stock"
_installed = (PACKAGES / "ready").exists()
collect_ignore_glob = [] if _installed else ["test_*.py"]
if _installed and missing() is not None:
    collect_ignore_glob.append("test_browser.py")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not _installed:
        terminalreporter.section("Stock front ends were not tested")
        terminalreporter.line("Their packages are not installed. `make stock-test` installs them.")
    elif collect_ignore_glob:
        terminalreporter.section("Stock front ends were tested in node only, not in a browser")
        terminalreporter.line(f"{missing()}.")
