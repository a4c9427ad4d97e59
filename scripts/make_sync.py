"""Generate `holdfast/client/sync.py`, the blocking client, from the asynchronous one. Run it after a change of a handle."""

import ast
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
CLIENT = ROOT / "src" / "holdfast" / "client"
TARGET = CLIENT / "sync.py"
HANDLES = {
    "turn": "TurnHandle",
    "session": "SessionHandle",
    "run": "RunHandle",
    "schedule": "ScheduleHandle",
    "subscription": "SubscriptionHandle",
    "shell": "ShellHandle",
    "client": "Client",
}
HEAD = '''"""The blocking client. `scripts/make_sync.py` generates this file from the asynchronous client; do not edit it."""

'''
TAIL = '''

@contextmanager
def connect_sync(
    url: str | Store | None = None,
    *,
    token: str | None = None,
    agents: "Agents | None" = None,
    actor: str = "",
    upgrade: bool = True,
    timeout: float = 30.0,
) -> Generator[SyncClient, None, None]:
    """Connect like `holdfast.connect`, for code that does not use asyncio. Every method blocks until it has a result."""
    loop = EventLoop()
    try:
        with loop.entered(connect(url, token=token, agents=agents, actor=actor, upgrade=upgrade, timeout=timeout)) as client:
            yield SyncClient(loop, client)
    finally:
        loop.close()
'''
EXTRA = '''from contextlib import contextmanager
from typing import TYPE_CHECKING, Generic, TypeVar
from collections.abc import Generator
from holdfast.client.connection import connect
from holdfast.event_loop import EventLoop
from holdfast.store import Store

if TYPE_CHECKING:
    from holdfast.runtime.agents import Agents

T = TypeVar("T")
H = TypeVar("H")


class SyncHandle(Generic[H]):
    """A handle whose methods block until they have a result."""

    def __init__(self, loop: EventLoop, handle: H) -> None:
        self._loop = loop
        self._handle = handle

    def __repr__(self) -> str:
        return f"Sync{self._handle!r}"
'''


def text() -> str:
    """Return the generated module, formatted."""
    imports: list[str] = []
    classes: list[str] = []
    for module, name in HANDLES.items():
        tree = ast.parse((CLIENT / f"{module}.py").read_text())
        for node in tree.body:  # also those for the type checker alone
            found = node.body if isinstance(node, ast.If) else [node]
            imports += [ast.unparse(each) for each in found if isinstance(each, ast.Import | ast.ImportFrom)]
        imports.append(f"from holdfast.client.{module} import {name}")
        node = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
        classes.append(_class(node))
    made = HEAD + "\n".join([*imports, EXTRA]) + "\n\n" + "\n\n".join(classes) + TAIL
    return _formatted(made)


def _formatted(source: str) -> str:
    ruff = [str(Path(sys.executable).with_name("ruff")), "--quiet"]
    name = ["--stdin-filename", str(TARGET)]
    rules = "F401,I,F811,UP037,TC"
    for command in (
        [*ruff, "check", "--fix", "--unsafe-fixes", "--select", rules, *name, "-"],
        [*ruff, "format", *name, "-"],
    ):
        source = subprocess.run(
            command, input=source, capture_output=True, text=True, check=False, cwd=ROOT
        ).stdout
    return source


def _class(node: ast.ClassDef) -> str:
    base = f"{node.name}[T]" if any("Generic" in ast.unparse(base) for base in node.bases) else node.name
    generic = ", Generic[T]" if base.endswith("[T]") else ""
    lines = [f"class Sync{node.name}(SyncHandle[{base}]{generic}):", f"    {_doc(node)}", ""]
    lines += _attributes(node, base)
    for method in node.body:
        if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef) and not method.name.startswith("_"):
            lines += _method(method)
    return "\n".join(lines)


def _attributes(node: ast.ClassDef, base: str) -> list[str]:
    """Return the constructor, which copies the public attributes of the handle."""
    init = next(m for m in node.body if isinstance(m, ast.FunctionDef) and m.name == "__init__")
    found: list[str] = []
    for line in init.body:
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Attribute):
            name, kind = line.target.attr, ast.unparse(line.annotation)
            if name.startswith("_"):
                continue
            value = f"Sync{kind}(loop, handle.{name})" if kind in HANDLES.values() else f"handle.{name}"
            found.append(f"        self.{name}: {_sync(kind)} = {value}")
    if not found:
        return []
    head = [f"    def __init__(self, loop: EventLoop, handle: {base}) -> None:"]
    return [*head, "        super().__init__(loop, handle)", *found, ""]


def _method(method: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    returns = ast.unparse(method.returns).strip("'\"") if method.returns else "None"
    is_stream = returns.startswith("AsyncGenerator[")
    kind = _sync(returns)
    signature = f"    def {method.name}({ast.unparse(method.args)}) -> {kind}:"
    if any(ast.unparse(decorator) == "overload" for decorator in method.decorator_list):
        return ["    @overload", f"{signature} ..."]
    given = [arg.arg for arg in method.args.args if arg.arg != "self"]
    given += [f"{arg.arg}={arg.arg}" for arg in method.args.kwonlyargs]
    call = f"self._handle.{method.name}({', '.join(given)})"
    if is_stream:
        call = f"self._loop.iterate({call})"
    elif isinstance(method, ast.AsyncFunctionDef):
        call = f"self._loop.run({call})"
    handle = returns.partition("[")[0]
    if handle in HANDLES.values():
        call = f"Sync{handle}(self._loop, {call})"
    return [signature, f"        {_doc(method)}", f"        return {call}", ""]


def _sync(kind: str) -> str:
    """Return the type of the blocking client for one of the asynchronous client."""
    for handle in HANDLES.values():
        if kind.startswith(handle):
            return f'"Sync{kind}"'
    if kind.startswith("AsyncGenerator["):
        return f"{kind.removeprefix('Async').removesuffix(']')}, None]"
    return kind


def _doc(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    text = ast.get_docstring(node, clean=False) or ""
    return f'"""{text}"""'


if __name__ == "__main__":
    TARGET.write_text(text())
