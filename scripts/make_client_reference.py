"""Write the reference pages of the client, of the events and of all operations. Run it after a change; a test compares them."""

import ast
import inspect
import re
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from pydantic import BaseModel

from holdfast import approval, events
from holdfast.api import budgets, models, retention, schedules, shell, submissions, subscriptions, usage
from holdfast.api.models import RequestBody
from holdfast.client.connection import connect
from scripts import operations
from scripts.operations import HANDLES

PAGES = Path(__file__).parent.parent / "docs" / "reference"
Function: typing.TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
_COMMON = ("seq", "at", "run_id", "step", "kind")


def client_page() -> str:
    """Return the page of `connect` and the handles."""
    parts = [
        "# The client\n",
        (
            "Open a client with `connect`. It works on a store in this process, or on an API server over HTTP; the same code runs on "
            "both. [Operations](operations.md) lists the HTTP route and the command of each method. Methods raise "
            "[errors](errors.md) of the family `HoldfastError`, with the same classes on both transports.\n"
        ),
        (
            "`connect_sync` is the same for code without asyncio: its handles have the same methods, which block, and generators "
            "instead of asynchronous generators.\n"
        ),
        _entry("holdfast.connect", _function(connect)),
    ]
    for handle in HANDLES:
        parts += [f"## {handle.__name__}\n", f"{inspect.getdoc(handle)}\n"]
        parts += [_entry(name, method, *overloads) for name, method, overloads in _methods(handle)]
    parts += ["## Results\n", "The objects that the methods return, and those within them.\n"]
    parts += [_result(model) for model in _results("\n".join(parts))]
    return "\n".join(parts)


def _results(text: str) -> list[type[BaseModel]]:
    """Return the models of responses that signatures name, and those in their fields, by name."""
    known = {
        name: value
        for module in (
            models,
            retention,
            schedules,
            subscriptions,
            shell,
            submissions,
            usage,
            budgets,
            approval,
        )
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, BaseModel) and not issubclass(value, RequestBody)
    }
    signatures = "\n".join(line for line in text.splitlines() if line.startswith("    "))
    results: dict[str, type[BaseModel]] = {}
    waiting = [signatures]
    while waiting:
        for word in re.findall(r"\w+", waiting.pop()):
            if word in known and word not in results:
                results[word] = known[word]
                waiting += [_kind(field.annotation) for field in known[word].model_fields.values()]
    return [results[name] for name in sorted(results)]


def _result(model: type[BaseModel]) -> str:
    rows = [
        f"| `{name}` | `{_optional(_kind(field.annotation))}` | {field.description or ''} |"
        for name, field in model.model_fields.items()
    ]
    return "\n".join(
        [
            f"### {model.__name__}\n",
            f"{inspect.getdoc(model)}\n",
            "| Field | Type | Meaning |",
            "|---|---|---|",
            *rows,
            "",
        ]
    )


def _methods(handle: type[Any]) -> Iterator[tuple[str, Function, list[Function]]]:
    """Yield the name of each public method, the method, and its overloads."""
    (tree,) = ast.parse(inspect.getsource(handle)).body
    overloads: list[Function] = []
    for node in cast("ast.ClassDef", tree).body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.name.startswith("_"):
            continue
        if any(isinstance(each, ast.Name) and each.id == "overload" for each in node.decorator_list):
            overloads.append(node)
        elif ast.get_docstring(node):
            yield node.name, node, overloads
            overloads = []


def _function(function: Any) -> ast.AsyncFunctionDef:
    (tree,) = ast.parse(inspect.getsource(function)).body
    return cast("ast.AsyncFunctionDef", tree)


def _entry(name: str, node: Function, *overloads: Function) -> str:
    signatures = "\n".join(f"    {_signature(name, each)}" for each in overloads or [node])
    return f"### {name}\n\n{signatures}\n\n{ast.get_docstring(node)}\n"


def _signature(name: str, node: Function) -> str:
    node.args.args = [arg for arg in node.args.args if arg.arg != "self"]
    arguments = re.sub(r": '([^']+)'", r": \1", ast.unparse(node.args))
    arguments = re.sub(r"(?<=[\w\]])=(?=\S)", " = ", arguments)
    returns = ast.unparse(node.returns).strip("'") if node.returns else "None"
    is_awaited = isinstance(node, ast.AsyncFunctionDef) and not returns.startswith("AsyncGenerator")
    returns = f"AsyncContextManager[{returns[15:-7]}]" if name.startswith("holdfast.") else returns
    awaited = "await " if is_awaited else ""
    return f"{awaited}{name}({arguments}) -> {returns}"


def _optional(kind: str) -> str:
    """Return the type of a field that may be None as Python now writes it."""
    inner = kind.removeprefix("Optional[")
    return kind if inner == kind else f"{inner[:-1]} \\| None"


def events_page() -> str:
    """Return the page of the events."""
    parts = [
        "# Events\n",
        _example(inspect.getdoc(events) or ""),
        (
            "Every event has these fields: `seq`, its number in the session; `at`, the time; `run_id` and `step`, if it belongs to a run; "
            "and `kind`. On the wire and in the store, the other fields are in the event's `payload`, under the names in the table; "
            "`message` is beside it.\n"
        ),
        "| Class | Kind | Fields | Meaning |",
        "|---|---|---|---|",
    ]
    parts += [_row(kind, event) for kind, event in events.KINDS.items()]
    parts += [
        (
            "\nAn event of any other kind, such as one that your own code writes with `store.write`, is an `OtherEvent` with `original_kind`, "
            "`payload` and `message`.\n"
        ),
        "## Drafts\n",
        f"{inspect.getdoc(events.DraftText)}\n",
        f"Fields: {_fields(events.DraftText)}.\n",
    ]
    return "\n".join(parts)


def _example(text: str) -> str:
    lines = text.splitlines()
    indented = [number for number, line in enumerate(lines) if line.startswith("    ")]
    first, last = indented[0], indented[-1]
    code = [line.removeprefix("    ") for line in lines[first : last + 1]]
    return "\n".join([*lines[:first], "```python", *code, "```", *lines[last + 1 :]]) + "\n"


def _row(kind: str, event: type[Any]) -> str:
    meaning = " ".join((inspect.getdoc(event) or "").split())
    return f"| `{event.__name__}` | `{kind}` | {_fields(event) or 'none'} | {meaning} |"


def _fields(event: type[Any]) -> str:
    shown: list[str] = []
    for name, field in event.model_fields.items():
        if name in _COMMON and event is not events.DraftText:
            continue
        alias = field.validation_alias
        wire = alias.path[1] if alias is not None and hasattr(alias, "path") else name
        kind = _kind(field.annotation)
        also = "" if wire == name else f" (`{wire}` on the wire)"
        shown.append(f"`{name}: {kind}`{also}")
    return ", ".join(shown)


def _kind(annotation: Any) -> str:
    if annotation is typing.Any:
        return "Any"
    text = (
        annotation.__name__
        if isinstance(annotation, type) and not typing.get_args(annotation)
        else str(annotation)
    )
    if "ModelRequest" in text:
        return "ModelMessage \\| None" if "None" in text.rsplit("|", 1)[-1] else "ModelMessage"
    return re.sub(r"(?:[a-z_]+\.)+(?=[A-Za-z])", "", text).replace("|", "\\|")


PAGES_BY_NAME = {"client.md": client_page, "events.md": events_page, "operations.md": operations.page}

if __name__ == "__main__":
    for page_name, make in PAGES_BY_NAME.items():
        (PAGES / page_name).write_text(make())
