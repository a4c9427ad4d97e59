"""The shape of the source: names that are used once, and nothing that grows too large."""

import ast
from collections import defaultdict
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "holdfast"
LEFT_OUT = ["store"]
TREES = {
    str(path.relative_to(SOURCE)): ast.parse(path.read_text())
    for path in sorted(SOURCE.rglob("*.py"))
    if path.relative_to(SOURCE).parts[0] not in LEFT_OUT
}


def test_every_class_has_a_name_of_its_own():
    homes: defaultdict[str, list[str]] = defaultdict(list)
    for path, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(path)
    assert {name: paths for name, paths in homes.items() if len(paths) > 1} == {}
