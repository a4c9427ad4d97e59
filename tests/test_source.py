"""The shape of the source: names that are used once, and nothing that grows too large."""

import ast
from collections import defaultdict
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "holdfast"

GENERATED = ["client/sync.py"]
PUBLIC = {
    "client/client.py: create_schedule",
    "client/sync.py: create_schedule",
    "importers/harness.py: import_harness",
    "importers/ml_intern.py: import_ml_intern",
    "operations/usage.py: read_usage",
    "record/capability.py: __init__",
    "retention/clean.py: clean",
    "retention/erase.py: erase",
    "runtime/worker.py: __init__",
    "server/shell.py: search_bash_events",
    "shell/service.py: search",
    "store/shell_log.py: shell_events",
    "store/submissions.py: submit",
}
"""Functions that users call, or whose parameters are those of a route."""
TREES = {str(path.relative_to(SOURCE)): ast.parse(path.read_text()) for path in sorted(SOURCE.rglob("*.py"))}


def test_every_class_has_a_name_of_its_own():
    homes: defaultdict[str, list[str]] = defaultdict(list)
    for path, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(path)
    assert {name: paths for name, paths in homes.items() if len(paths) > 1} == {}


def test_no_module_imports_a_name_from_its_own_package():
    """The package imports its modules, so that this would be a circle, also within a function."""
    modules = {_module(path) for path in TREES}
    found = [
        f"{path}:{node.lineno}"
        for path, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        and f"{_module(path)}.".startswith(f"{node.module}.")
        and not all(f"{node.module}.{each.name}" in modules for each in node.names)
    ]
    assert found == []


def _module(path: str) -> str:
    return f"holdfast.{path.removesuffix('.py').replace('/', '.')}".removesuffix(".__init__")


def test_no_file_is_long():
    lengths = {path: len((SOURCE / path).read_text().splitlines()) for path in TREES if path not in GENERATED}
    assert {path: length for path, length in lengths.items() if length > 500} == {}


def test_no_class_is_long():
    lengths = {
        f"{path}: {node.name}": (node.end_lineno or 0) - node.lineno + 1
        for path, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }
    assert {name: length for name, length in lengths.items() if length > 300} == {}


def test_only_what_users_call_has_many_parameters():
    found = {
        f"{path}: {node.name}"
        for path, tree in TREES.items()
        if not path.startswith(("cli/", "store/mongo/"))  # options of a command, and columns of a statement
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and len(parameters(node.args)) > 8
    }
    assert found == PUBLIC


def parameters(arguments: ast.arguments) -> list[str]:
    """Return the names of the parameters, without the object of a method."""
    names = [each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return names[1:] if names[:1] in (["self"], ["cls"]) else names
