"""Generate pages of docs/reference from the code: `python docs/make_reference.py`. A test fails if one is out of date."""

import ast
import inspect
import json
import re
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

from holdfast import errors as error_classes

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "holdfast"
PAGES = ROOT / "docs" / "reference"
_LONG_LINE = 90
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
        "# Python API: store\n",
        "Each method is one transaction. Methods raise [errors](errors.md), which are subclasses of `HoldfastError`. Arguments and results are the",
        "[types](types.md) in `holdfast.types`. How to open a store: [databases](../how-to/stores.md).\n",
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
        n.name: n
        for n in ast.parse((folder / "media_store.py").read_text()).body
        if isinstance(n, ast.ClassDef)
    }
    opening = ast.parse((folder / "__init__.py").read_text()).body
    others = [
        node
        for name in ("collect", "move", "messages")
        for node in ast.parse((folder / f"{name}.py").read_text()).body
    ]
    parts = [
        "# Python API: media\n",
        "`from holdfast.media import …`. Functions and methods raise [errors](errors.md), which are subclasses of `HoldfastError`. A `Blob` is one of the",
        "[types](types.md). Examples: [store large content](../how-to/media.md).\n",
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


_AGENTS: dict[str, tuple[str, ...]] = {
    "Record a run": ("Holdfast", "ExternalMedia", "idempotency_key", "annotate_effect"),
    "Steps and probes": ("step", "Retry", "Unsettled", "Done", "NotDone", "Unknown"),
    "Time and signals": ("sleep", "sleep_until", "signal"),
    "Undo effects": ("Undo", "CompletedStep"),
    "Plain agents": ("agent", "Turn", "Decision"),
    "Continue a run or a session": ("resume", "continue_session", "fork", "rewind", "settle_effect"),
    "Inspect": ("inspect_run", "RunReport", "load_history", "is_provider_valid"),
    "Run sessions on a worker": ("Worker", "AgentSetup", "Attachment", "current_session", "SessionContext"),
}
_MODULES = (
    "holdfast",
    "holdfast.record",
    "holdfast.runtime",
    "holdfast.runtime.attachment",
    "holdfast.runtime.context",
)


def agents() -> str:
    """Return the page of the functions and classes that take an agent: signatures and docstrings."""
    parts = [
        "# Python API: record and run agents\n",
        "Functions and classes that record and run agents. How to use them: [record an agent](../how-to/record.md),",
        "[steps and probes](../how-to/steps.md), [sleep and wait for signals](../how-to/time.md), [undo the effects of a turn](../how-to/undo.md), [bring your own loop](../how-to/plain-agents.md), [run sessions in the background](../how-to/worker.md). They raise the [errors](errors.md) of Holdfast; values such as",
        "`Checkpoint` and `Effect` are [types](types.md).\n",
    ]
    for title, names in _AGENTS.items():
        parts += [f"## {title}\n", *(_public(name) for name in names)]
    return "\n".join(parts)


def _public(name: str) -> str:
    """Return a function or class with the line that imports it."""
    module = next(module for module in _MODULES if hasattr(import_module(module), name))
    value: Any = getattr(import_module(module), name)
    tree = ast.parse(Path(inspect.getfile(value)).read_text())
    *_, node = [
        n
        for n in tree.body
        if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and n.name == name
    ]
    imported = f"from {module} import {name}"
    if not isinstance(node, ast.ClassDef):
        return _function(node, imported=imported)
    methods = {
        n.name: n for n in node.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)
    }  # the last overload
    init = methods.get("__init__")
    if name == "Turn":  # workers make it
        shape = "class Turn"
    elif init:
        init.args.args = init.args.args[1:]
        shape = _signature(name, init.args)
    else:
        fields = [field for field in node.body if isinstance(field, ast.AnnAssign)]
        shape = "\n".join([f"class {name}:", *(f"    {ast.unparse(field)}" for field in fields)])
    parts = [f"### {name}\n\n```python\n{imported}\n\n{shape}\n```\n\n{ast.get_docstring(node)}\n"]
    if documented := [f"- `{field}`: {text}" for field, text in _field_docs(node) if not init]:
        parts.append("\n".join([*documented, ""]))
    for method in methods.values():
        if method.name.startswith("_") or name in {"Holdfast", "ExternalMedia", "AgentSetup"}:
            continue  # what Pydantic AI and workers call, not users
        method.args.args = method.args.args[1:]
        parts.append(_function(method, heading=f"#### {name}.{method.name}"))
    return "\n".join(parts)


def _field_docs(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """Yield the fields of a class that have a docstring."""
    for field, text in pairwise(node.body):
        if (
            isinstance(field, ast.AnnAssign)
            and not (name := ast.unparse(field.target)).startswith("_")
            and isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant)
        ):
            yield name, str(text.value.value)


_EXAMPLES = """\
Set the address of your server and a token first: `URL=http://127.0.0.1:8350`, `AUTH="Authorization: Bearer $TOKEN"`. The tests run all examples on this page.

Create a session, and send a message:

```sh
curl "$URL/api/sessions" -H "$AUTH" --json '{"agent": "bot", "id": "s1", "title": "First talk"}'
curl "$URL/api/sessions/s1/submissions" -H "$AUTH" --json '{"text": "hello", "idempotency_key": "m-1"}'
```

Send text with an image:

```sh
curl "$URL/api/sessions/s1/submissions" -H "$AUTH" --json '{
  "content": [
    "What is in this picture?",
    {"kind": "binary", "media_type": "image/gif", "data": "R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7"}
  ]}'
```

Read the events as pages, or as a stream that resumes after a number:

```sh
curl "$URL/api/sessions/s1/events?after=0&limit=50" -H "$AUTH"
curl -N "$URL/api/sessions/s1/events" -H "$AUTH" -H 'Accept: text/event-stream' -H 'Last-Event-ID: 2'
```

Interrupt the running turn, undo the last message, and copy the history into a new session:

```sh
curl -X POST "$URL/api/sessions/s1/interrupt" -H "$AUTH"
curl -X POST "$URL/api/sessions/s1/undo" -H "$AUTH"
curl "$URL/api/sessions/s1/fork" -H "$AUTH" --json '{"session_id": "copy-of-s1"}'
```

Approve a tool call. `call_id` and `digest` are in `approvals` of the session:

```sh
curl "$URL/api/sessions/s1" -H "$AUTH"
curl "$URL/api/sessions/s1/approvals" -H "$AUTH" --json "{\\"call_id\\": \\"c1\\", \\"digest\\": \\"$DIGEST\\", \\"approved\\": true}"
```

Store state, change the title, export an archive, and erase a session:

```sh
curl -X PUT "$URL/api/sessions/s1/state" -H "$AUTH" --json '{"body": {"step": 3}, "expected_version": 0}'
curl -X PATCH "$URL/api/sessions/s1" -H "$AUTH" --json '{"title": "Renamed", "metadata": {"case": 12}}'
curl "$URL/api/sessions/s1/export" -H "$AUTH" -o talk.ndjson
curl "$URL/api/sessions" -H "$AUTH" --json '{"agent": "bot", "id": "s2"}'
curl -X DELETE "$URL/api/sessions/s2" -H "$AUTH"
```
"""


_DESCRIPTIONS = {
    "kind": "Selects this form of the body.",
    "type": "Selects this form of the part.",
    "text": "The text.",
    "content": "The text.",
    "url": "A public HTTP or HTTPS address.",
    "data": "The bytes of the file in base64.",
    "media_type": "Such as `image/png`. For a URL it is derived from the address if it is missing.",
    "identifier": "A name for the file, which the model can refer to.",
    "vendor_metadata": "Options for the model provider; at most 2,000 characters of JSON.",
    "force_download": "Only `false` is accepted.",
    "ttl": "How long the provider keeps the cached prompt.",
}
"""Descriptions of fields that have none in the OpenAPI document."""


@cache
def _app() -> Any:
    """Return a server that has all routes."""
    from holdfast.config import load_settings
    from holdfast.server.app import create_app
    from holdfast.shell import ShellService
    from holdfast.store import open_store

    store = open_store("sqlite://:memory:")
    return create_app(load_settings(), store, shell=ShellService(store))


def _document() -> dict[str, Any]:
    """Return the OpenAPI document, which the server keeps."""
    return _app().openapi()


def _bodies() -> dict[str, list[str]]:
    """Return the schemas that request bodies have, also as parts of others, and the routes that each is the body of."""
    schemas = _document()["components"]["schemas"]
    used: dict[str, list[str]] = {}
    for path, operations in _document()["paths"].items():
        for method, operation in operations.items():
            for name in _references(operation.get("requestBody", {})):
                used.setdefault(name, []).append(f"{method.upper()} `{path}`")
    for name in list(used):
        for part in _references(schemas[name]):
            used.setdefault(part, [])
    return used


def _references(schema: Any) -> Iterator[str]:
    """Yield the names of the schemas that a schema refers to, in order."""
    yield from dict.fromkeys(re.findall(r'"\$ref": "#/components/schemas/(\w+)"', json.dumps(schema)))


def _body(name: str, routes: list[str]) -> str:
    """Return a request body: its fields with type, default and description."""
    schema = _document()["components"]["schemas"][name]
    where = f" Body of {', '.join(routes)}." if routes else ""
    lines = [f"### {name}\n", f"{schema.get('description', '')}{where}\n"]
    lines += [f"Example: `{json.dumps(example)}`\n" for example in schema.get("examples", ())]
    lines.append("| field | type | default | description |\n|---|---|---|---|")
    for field, kind in schema["properties"].items():
        description = kind.get("description") or _DESCRIPTIONS[field]
        lines.append(f"| `{field}` | {_type(kind)} | {_default(schema, field)} | {description} |")
    return "\n".join([*lines, ""])


def _parameters() -> Iterator[str]:
    """Yield a row for each parameter of a route that is not in its path."""
    for path, operations in _document()["paths"].items():
        for method, operation in operations.items():
            for parameter in operation.get("parameters", ()):
                if parameter["in"] == "path":
                    continue
                kind = parameter["schema"]
                default = f"`{json.dumps(kind['default'])}`" if "default" in kind else ""
                name = f"`{parameter['name']}`" + (" (header)" if parameter["in"] == "header" else "")
                described = parameter.get("description", "")
                yield f"| {method.upper()} `{path}` | {name} | {_type(kind)} | {default} | {described} |"


def _default(schema: dict[str, Any], field: str) -> str:
    if field in schema.get("required", ()):
        return "required"
    kind = schema["properties"][field]
    if "default" in kind:
        return f"`{json.dumps(kind['default'])}`"
    return "`{}`" if kind.get("type") == "object" else "`null`"


def _type(schema: dict[str, Any]) -> str:
    """Return a JSON schema as a short phrase."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if choices := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(_type(choice) for choice in choices)
    if "const" in schema:
        return f"`{json.dumps(schema['const'])}`"
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    kind = schema.get("type", "any JSON")
    if kind == "array":
        most = schema.get("maxItems")
        size = f" of {schema.get('minItems', 0)} to {most}" if most else ""
        return f"list{size}: {_type(schema['items'])}"
    low, high = schema.get("minLength", 0), schema.get("maxLength")
    if kind == "string" and high:
        return f"string, {low} to {high:,} characters" if low != high else f"string, {high} characters"
    return kind


def http() -> str:
    """Return the page of the HTTP interface: every route with its rule, examples, and the fields of request bodies."""
    bodies = _bodies()
    body_of: dict[str, list[str]] = {}
    for name, routes in bodies.items():
        for route in routes:
            body_of.setdefault(route, []).append(name)
    parts = [
        "# HTTP API\n",
        "The API is JSON below `/api`. `GET /openapi.json` is the whole document with models, parameters and errors; `/docs` shows it.\n",
        "## Examples\n",
        _EXAMPLES,
        "## Conventions\n",
        '**Errors** are `{"error": {"code", "message", "facts"}}`. `code` is one of the [error codes](errors.md), or of HTTP itself: `bad_request` (400),',
        "`not_found`, `method_not_allowed`, `payload_too_large`, `range_not_satisfiable`, `bad_input` (422), `internal` (500). `facts` has the values in the",
        "message, such as `holder` and `until`, or `size` and `limit`.\n",
        '**Lists** are `{"items", "next_cursor"}`. A page ends at its limit, or with the item that reaches 4 MiB. Follow `next_cursor` until it is null; the last',
        "page may be empty.\n",
        "**Access**: each route has a rule. `public` needs no token. `user` is any principal. `read`, `write` and `delete` are for the owner of the session or",
        "run, and for administrators; for other principals it does not exist. `admin` is for administrators. Each rule needs the",
        "[scope](../how-to/serve.md#access) of the same name: `user` and `admin` need `read`, or `write` to change something; for `delete`, `write` is enough if the",
        "session was idle.\n",
        "**Request bodies** are strict JSON in UTF-8. The server rejects NaN, infinite numbers, lone surrogates, more than 100 levels of nesting and more than",
        "100,000 values with 422. The same limits apply to all JSON that the store accepts, except that it keeps escaped lone surrogates. The metadata of a",
        "session has at most 65,536 characters.\n",
    ]
    for topic, rows in _routes(body_of).items():
        head = "| route | access | description | body |\n|---|---|---|---|"
        parts += [f"## {topic.capitalize()}\n", head, *rows, ""]
    parts += [
        "## Query parameters and headers\n",
        "| route | parameter | type | default | description |\n|---|---|---|---|---|",
        *_parameters(),
        "",
    ]
    parts += ["## Fields of request bodies\n", *(_body(name, routes) for name, routes in bodies.items())]
    return "\n".join(parts)


def _routes(body_of: dict[str, list[str]]) -> dict[str, list[str]]:
    """Return a row for each route, by topic."""
    from fastapi.routing import APIRoute, APIWebSocketRoute

    from holdfast.server.routes import RULES

    topics: dict[str, list[str]] = {
        topic: []
        for topic in (
            *("sessions", "schedules", "subscriptions", "chat", "streams", "commands", "credentials", "runs"),
            *("inbox", "usage", "budgets", "media", "retention", "shell", "operation"),
        )
    }
    for route in _app().routes:
        if isinstance(route, APIWebSocketRoute):
            what = " ".join((route.endpoint.__doc__ or "").split())
            topics["shell"].append(
                f"| WebSocket `{route.path}` | {RULES['WEBSOCKET', route.path]} | {what} | |"
            )
        elif isinstance(route, APIRoute) and route.include_in_schema:
            method = next(iter(route.methods or ()))
            path = route.path_format
            what = " ".join((route.endpoint.__doc__ or "").split("\n\n")[0].split())
            names = ", ".join(f"[{name}](#{name.lower()})" for name in body_of.get(f"{method} `{path}`", ()))
            row = f"| {method} `{path}` | {RULES[method, path]} | {what} | {names} |"
            topics[str(route.tags[0])].append(row)
    return topics


_TYPES = ("types", "commands", "diagnostics", "schedules", "subscriptions", "usage", "budgets")


def types() -> str:
    """Return the page of the types: the values of literals, then every noun with its fields."""
    trees = {name: ast.parse((SOURCE / f"{name}.py").read_text()) for name in _TYPES}
    nodes = [node for tree in trees.values() for node in tree.body]
    parts = [
        "# Python API: types\n",
        f"{ast.get_docstring(trees['types'])}\n",
        "Types of shell commands are in `holdfast.commands`, those of schedules in `holdfast.schedules`, those of subscriptions in `holdfast.subscriptions`, those of usage in `holdfast.usage`, those of budgets in `holdfast.budgets`, and those that describe a store in `holdfast.diagnostics`.\n",
        "## Literals\n",
        "| name | values |\n|---|---|",
    ]
    for node in nodes:
        if isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Subscript):
            words: list[str] = ast.literal_eval(node.value.slice)
            parts.append(f"| `{ast.unparse(node.target)}` | {', '.join(f'`{word}`' for word in words)} |")
    parts.append("")
    for node in nodes:
        if isinstance(node, ast.ClassDef):
            fields = [ast.unparse(field) for field in node.body if isinstance(field, ast.AnnAssign)]
            code = "\n".join(fields)
            parts.append(f"## {node.name}\n\n{ast.get_docstring(node)}\n\n```python\n{code}\n```\n")
    return "\n".join(parts)


def errors() -> str:
    """Return the page of the errors: each with its code and its message."""
    parts = [
        "# Errors and error codes\n",
        "All errors are subclasses of `holdfast.errors.HoldfastError`. `code` never changes. The values in braces are in `facts`.\n",
        "| error | code | message |\n|---|---|---|",
    ]
    kinds = [kind for kind in vars(error_classes).values() if isinstance(kind, type)]
    for kind in kinds:
        if issubclass(kind, error_classes.HoldfastError):
            parts.append(f"| `{kind.__name__}` | `{kind.code}` | {inspect.getdoc(kind)} |")
    return "\n".join([*parts, ""])


def _function(
    node: ast.FunctionDef | ast.AsyncFunctionDef,
    *,
    is_coroutine: bool | None = None,
    imported: str = "",
    heading: str = "",
) -> str:
    if is_coroutine is None:
        is_coroutine = isinstance(node, ast.AsyncFunctionDef)
    kind = "async " if is_coroutine else ""
    returns = ast.unparse(node.returns) if node.returns else "None"
    signature = f"{kind}{_signature(node.name, node.args)} -> {returns}"
    code = f"{imported}\n\n{signature}" if imported else signature
    return f"{heading or f'### {node.name}'}\n\n```python\n{code}\n```\n\n{ast.get_docstring(node)}\n"


def _signature(name: str, arguments: ast.arguments) -> str:
    """Return a call on one line; on one line per argument if it is long."""
    text = ast.unparse(arguments)
    if len(name) + len(text) <= _LONG_LINE:
        return f"{name}({text})"
    items = _split(text)
    return "\n".join([f"{name}(", *(f"    {item}," for item in items), ")"])


def _split(text: str) -> list[str]:
    """Split a list of arguments at its outermost commas."""
    items, depth = [""], 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            items.append("")
        else:
            items[-1] += character
    return [item.strip() for item in items]


MADE: dict[str, Callable[[], str]] = {
    "agents.md": agents,
    "store.md": store,
    "media.md": media,
    "types.md": types,
    "errors.md": errors,
    "http.md": http,
}

if __name__ == "__main__":
    for name, make in MADE.items():
        (PAGES / name).write_text(make())
