from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave these tests out unless `-m` names them: they take minutes and need a package index."""
    if "release" in str(config.getoption("markexpr")):
        return
    dropped = [item for item in items if HERE in item.path.parents]
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = [item for item in items if HERE not in item.path.parents]
