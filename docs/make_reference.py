"""Writes the pages of docs/reference that repeat the code: `python docs/make_reference.py`. A test keeps them equal."""

import ast
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "holdfast"
PAGES = ROOT / "docs" / "reference"
_MEDIA_FUNCTIONS = {"collect", "move", "externalize", "restore", "referenced"}
_MEDIA = {"put", "get", "open", "part", "exists", "metadata", "public_url", "delete", "list"}


_TOPICS = {
    "sessions": "Sessions",
    "tokens": "Tokens",
    "leases": "Holders and leases",
    "work": "Work",
    "submissions": "Submissions",
    "journal": "Events and drafts",
    "history": "History, runs and effects",
    "media": "Media",
    "shell": "Shell commands",
    "archive": "Archives",
    "retention": "Deletion",
    "sweep": "The sweep",
    "check": "Checks",
    "schema": "The schema",
}


def store() -> str:
    """Return the page of the store: how it is opened, then the public methods of each topic."""
    folder = SOURCE / "store"
    package = ast.parse((folder / "__init__.py").read_text())
    (opening,) = [
        node for node in package.body if isinstance(node, ast.FunctionDef) and node.name == "open_store"
    ]
    parts = [
        "# The store\n",
        "One method is one transaction. All raise [errors](errors.md) of the family `HoldfastError`.",
        "Values are the [types](types.md) of `holdfast.types`.\n",
        _function(opening),
        "## Opening and writing\n",
        *_methods(folder / "store.py"),
    ]
    for module, title in _TOPICS.items():
        parts += [f"## {title}\n", *_methods(folder / f"{module}.py")]
    return "\n".join(parts)


def _methods(path: Path) -> list[str]:
    """Return the public methods of the class in a module. A transaction is shown as the coroutine that runs it."""
    (owner,) = [
        node
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef) and node.name.endswith(("Methods", "Store"))
    ]
    shown: list[str] = []
    for method in owner.body:
        if not isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef) or method.name.startswith("_"):
            continue
        method.args.args = method.args.args[1:]
        is_coroutine = isinstance(method, ast.AsyncFunctionDef)
        match method.returns:
            case ast.Subscript(value=ast.Name(id="Tx"), slice=returned):
                method.returns, is_coroutine = returned, True
            case ast.Subscript(value=ast.Name(id="AsyncGenerator")):
                is_coroutine = False
            case _:
                pass
        shown.append(_function(method, is_coroutine=is_coroutine))
    return shown


def media() -> str:
    """Return the page of the media store: how it is opened and collected, and the public methods of the interface."""
    folder = SOURCE / "media"
    classes = {
        n.name: n for n in ast.parse((folder / "base.py").read_text()).body if isinstance(n, ast.ClassDef)
    }
    opening = ast.parse((folder / "__init__.py").read_text()).body
    others = [
        node
        for name in ("collect", "move", "messages")
        for node in ast.parse((folder / f"{name}.py").read_text()).body
    ]
    parts = [
        "# Media\n",
        "`from holdfast.media import …`. All raise [errors](errors.md) of the family `HoldfastError`. A `Blob` is one of the",
        "[types](types.md). How to use it: [how-to](../how-to/media.md).\n",
        *(_function(node) for node in opening if isinstance(node, ast.FunctionDef)),
        *(
            _function(node)
            for node in others
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name in _MEDIA_FUNCTIONS
        ),
        "## MediaContext\n",
        f"{ast.get_docstring(classes['MediaContext'])}\n",
        "```python",
        *(ast.unparse(field) for field in classes["MediaContext"].body if isinstance(field, ast.AnnAssign)),
        "```\n",
        "## MediaStore\n",
    ]
    for method in classes["MediaStore"].body:
        if not isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef) or method.name not in _MEDIA:
            continue
        if ast.get_docstring(method):  # not the overloads
            method.args.args = method.args.args[1:]
            parts.append(_function(method))
    return "\n".join(parts)


def http() -> str:
    """Return the page of the HTTP interface: every route with its rule, from the decorators of the server's modules."""
    parts = [
        "# HTTP\n",
        "JSON, under `/api`. `GET /openapi.json` is the whole document: models, parameters, errors. An error is",
        '`{"error": {"code", "message", "facts"}}`, where `facts` has the values that the message is made of, such as `holder` and `until`,',
        'or `size` and `limit`; a list is `{"items", "next_cursor"}`.\n',
        "The last column names the rule of a route. `public` needs no token. `user` is any principal. `read`, `write` and `delete` are for the",
        "owner of the session or run, and for administrators; for everybody else it does not exist. `admin` is for administrators. Each rule",
        "needs the [scope](../how-to/serve.md#access) of the same name: `user` and `admin` need `read`, or `write` to change something; for `delete`,",
        "`write` is enough if the session was idle.\n",
        "Codes are those of the [errors](errors.md), and of HTTP itself: `bad_request` (400, no request at all), `not_found`,",
        "`method_not_allowed`, `payload_too_large`, `range_not_satisfiable`, `bad_input` (422), `internal` (500).\n",
        "A page of a list ends with its limit, or with the item that reaches 4 MiB. Follow `next_cursor` until it is null; the last page may be empty.\n",
        "A request body is strict JSON in UTF-8. NaN, infinite numbers, lone surrogates, nesting of more than 100 levels and more than",
        "100,000 values are refused with 422. The same limits apply to all JSON that the store accepts, except that it keeps escaped lone",
        "surrogates. The metadata of a session has at most 65,536 characters.\n",
    ]
    constants = {"PATH": "/sockets/bash-events"}
    for module in (
        "sessions",
        "commands",
        "runs",
        "inbox",
        "media",
        "retention",
        "shell",
        "sockets",
        "operation",
    ):
        rows: list[str] = []
        for node in ast.parse((SOURCE / "server" / f"{module}.py").read_text()).body:
            if not isinstance(node, ast.AsyncFunctionDef) or not node.decorator_list:
                continue
            decorator = node.decorator_list[0]
            if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "route":
                method, path, rule = [ast.literal_eval(argument) for argument in decorator.args[1:4]]
                what = " ".join((ast.get_docstring(node) or "").split("\n\n")[0].split())
                rows.append(f"| {method} `{path}` | {rule} | {what} |")
            elif isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "socket":
                where, rule = constants[ast.unparse(decorator.args[1])], ast.literal_eval(decorator.args[2])
                what = " ".join((ast.get_docstring(node) or "").split())
                rows.append(f"| WebSocket `{where}` | {rule} | {what} |")
        if rows:
            parts += [f"## {module.capitalize()}\n", "| route | who may | what |\n|---|---|---|", *rows, ""]
    return "\n".join(parts)


def types() -> str:
    """Return the page of the types: the words that fields may have, then every noun with its fields."""
    tree = ast.parse((SOURCE / "types.py").read_text())
    parts = ["# Types\n", f"{ast.get_docstring(tree)}\n", "## Words\n", "| name | one of |\n|---|---|"]
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Subscript):
            words: list[str] = ast.literal_eval(node.value.slice)
            parts.append(f"| `{ast.unparse(node.target)}` | {', '.join(f'`{word}`' for word in words)} |")
    parts.append("")
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            fields = [ast.unparse(field) for field in node.body if isinstance(field, ast.AnnAssign)]
            code = "\n".join(fields)
            parts.append(f"## {node.name}\n\n{ast.get_docstring(node)}\n\n```python\n{code}\n```\n")
    return "\n".join(parts)


def errors() -> str:
    """Return the page of the errors: each with its code and its message."""
    tree = ast.parse((SOURCE / "errors.py").read_text())
    parts = [
        "# Errors\n",
        "All are subclasses of `holdfast.errors.HoldfastError`. `code` is fixed; the words in braces are in `facts`.\n",
        "| error | code | message |\n|---|---|---|",
    ]
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            (code,) = [f.value for f in node.body if isinstance(f, ast.Assign | ast.AnnAssign) and f.value]
            parts.append(f"| `{node.name}` | `{ast.literal_eval(code)}` | {ast.get_docstring(node)} |")
    return "\n".join([*parts, ""])


def _function(node: ast.FunctionDef | ast.AsyncFunctionDef, *, is_coroutine: bool | None = None) -> str:
    if is_coroutine is None:
        is_coroutine = isinstance(node, ast.AsyncFunctionDef)
    kind = "async " if is_coroutine else ""
    returns = ast.unparse(node.returns) if node.returns else "None"
    signature = f"{kind}{node.name}({ast.unparse(node.args)}) -> {returns}"
    return f"### {node.name}\n\n```python\n{signature}\n```\n\n{ast.get_docstring(node)}\n"


MADE: dict[str, Callable[[], str]] = {
    "store.md": store,
    "media.md": media,
    "types.md": types,
    "errors.md": errors,
    "http.md": http,
}

if __name__ == "__main__":
    for name, make in MADE.items():
        (PAGES / name).write_text(make())
