"""Writes docs/reference/store.md from the interface itself: `python docs/make_reference.py`. A test keeps them equal."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "holdfast" / "store" / "base.py"
PAGE = ROOT / "docs" / "reference" / "store.md"

HEAD = """# The store

`async with open_store(url) as store`. One method is one transaction. All raise errors of the family `HoldfastError`;
every error has a fixed `code` and a message that says what to do. Values are the dataclasses of `holdfast.types`.

Made from `src/holdfast/store/base.py` by `docs/make_reference.py`.
"""


def reference() -> str:
    """Return the page: the public methods in the order of the interface, under its section comments."""
    text = SOURCE.read_text()
    sections = {
        text[: m.start()].count("\n") + 1: m[1] for m in re.finditer(r"^    # (.+)$", text, re.MULTILINE)
    }
    (interface,) = [node for node in ast.parse(text).body if isinstance(node, ast.ClassDef)]
    parts = [HEAD, "## Opening and looking after\n"]
    line = 0
    for method in interface.body:
        if not isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef) or method.name.startswith("_"):
            continue
        parts += [f"## {title}\n" for at, title in sections.items() if line < at < method.lineno]
        line = method.lineno
        method.args.args = method.args.args[1:]
        kind = "async " if isinstance(method, ast.AsyncFunctionDef) else ""
        returns = ast.unparse(method.returns) if method.returns else "None"
        signature = f"{kind}{method.name}({ast.unparse(method.args)}) -> {returns}"
        parts.append(f"### {method.name}\n\n```python\n{signature}\n```\n\n{ast.get_docstring(method)}\n")
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(reference())
