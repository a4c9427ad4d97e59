"""The table of operations: which handle method, HTTP route and command do the same. It becomes docs/reference/operations.md.

The declarations of the routes list the methods, with `ClientMethod`. The methods of the handles give the order.
"""

from dataclasses import dataclass
from inspect import isfunction
from typing import Any

from holdfast.client.client import Client
from holdfast.client.run import RunHandle
from holdfast.client.schedule import ScheduleHandle
from holdfast.client.session import SessionHandle
from holdfast.client.shell import ShellHandle
from holdfast.client.subscription import SubscriptionHandle
from holdfast.client.turn import TurnHandle
from holdfast.server.routes import CLIENT, NO_METHOD  # the package imports all routes

HANDLES: tuple[type[Any], ...] = (
    Client,
    SessionHandle,
    TurnHandle,
    RunHandle,
    ScheduleHandle,
    SubscriptionHandle,
    ShellHandle,
)


@dataclass(frozen=True, slots=True)
class Row:
    """A method with its route and its command. A missing command has a reason."""

    method: str
    route: str
    command: str | None
    note: str


def methods() -> list[str]:
    """Return the public methods of the handles, in the order in which they are defined."""
    return [
        f"{handle.__name__}.{name}"
        for handle in HANDLES
        for name, method in vars(handle).items()
        if isfunction(method) and not name.startswith("_")
    ]


def rows() -> list[Row]:
    """Return a row for each method that a route lists, in the order of the methods."""
    listed = [
        Row(each.name, f"{method} {path}", each.command, each.note)
        for (method, path), client in CLIENT.items()
        for each in client
    ]
    order = {name: number for number, name in enumerate(methods())}
    return sorted(listed, key=lambda row: order.get(row.method, len(order)))


def other_routes() -> dict[str, str]:
    """Return the routes that no method uses, with the reason."""
    return {f"{method} {path}": reason for (method, path), reason in sorted(NO_METHOD.items(), key=_by_path)}


def _by_path(item: tuple[tuple[str, str], str]) -> tuple[str, str]:
    (method, path), _ = item
    return path, method


OTHER_COMMANDS = {
    "serve": "runs the API server itself",
    "worker": "runs a worker; `connect(agents=…)` runs one in your process",
    "demo": "starts its own server",
    "copy": "needs two databases",
    "runs resume": "runs an agent in the terminal; `holdfast.resume` is its function",
    "replay": "runs the code of an agent; `holdfast.replay.replay` is its function",
    "runs fork": "works on a store without a worker; `holdfast.fork` is its function",
    "archive verify": "needs no store",
    "archive show": "needs no store",
    "archive build": "needs no store",
    "archive import": "needs the database",
    "media list": "needs the database",
    "media show": "needs the database",
    "media gc": "needs the database",
    "media move": "needs the database",
    "media verify": "needs the database",
    "import harness": "needs the database",
    "import agentex": "needs the database",
    "import ml-intern": "needs the database",
    "import openhands": "needs the database",
    "mirror list": "needs the database",
    "mirror forget": "needs the database",
    "db upgrade": "needs the database",
    "db status": "needs the database",
    "db stats": "needs the database",
    "db check": "needs the database",
    "token create": "tokens are created where the database is",
    "token list": "tokens are created where the database is",
    "token revoke": "tokens are created where the database is",
}
"""The commands that no handle method matches, with the reason."""


def page() -> str:
    """Return the page of all operations."""
    lines = [
        "# Operations\n",
        (
            "Every operation has one name in the client, in the HTTP API and on the command line. "
            "This page is generated from the declarations of the routes; a test compares them with the methods and the commands.\n"
        ),
        "| Client | HTTP | Command |",
        "|---|---|---|",
    ]
    for row in rows():
        command = f"`holdfast {row.command}`" if row.command else "none"
        note = f" ({row.note})" if row.note else ""
        lines.append(f"| `{row.method}` | `{row.route}` | {command}{note} |")
    lines += ["\n## Routes without a method\n", "| Route | Reason |", "|---|---|"]
    lines += [f"| `{route}` | {reason} |" for route, reason in other_routes().items()]
    lines += ["\n## Commands without a method\n", "| Command | Reason |", "|---|---|"]
    lines += [f"| `holdfast {command}` | {reason} |" for command, reason in OTHER_COMMANDS.items()]
    return "\n".join(lines) + "\n"
