import ast
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import holdfast

ROOT = Path(__file__).parent.parent
_NOT_INSTALLED = {"agents": "openai-agents", "google": "google-adk"}
"""Packages that the tests do without, and who provides them if that has another name."""
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_every_import_is_declared():
    groups: list[list[str]] = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    declared = {canonicalize_name(Requirement(text).name) for group in groups for text in group}
    providers = packages_distributions()
    undeclared = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in (ROOT / "src").rglob("*.py")
        for name in imports(ast.parse(path.read_text()))
        if name not in {"holdfast", *sys.stdlib_module_names}
        and not declared
        & {canonicalize_name(provider) for provider in providers.get(name, [_NOT_INSTALLED.get(name, name)])}
    }
    assert undeclared == set()


def imports(tree: ast.AST) -> Iterator[str]:
    """Yield the top-level packages that a module imports, also inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").partition(".")[0]


def test_every_name_of_the_package_can_be_imported():
    assert all(getattr(holdfast, name) for name in holdfast.__all__)
