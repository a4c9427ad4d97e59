"""The declarations of the routes are true: they list every method and command, and each method sends the request of its route."""

import re
from inspect import Parameter, isasyncgen, signature
from typing import Any

import httpx2
import pytest
import typer.main

from holdfast import Client
from holdfast.api.submissions import SubmissionInfo
from holdfast.approval import ApprovalRequest
from holdfast.cli import app
from holdfast.client.http import HttpTransport
from holdfast.client.output import OutputType
from holdfast.client.run import RunHandle
from holdfast.client.schedule import ScheduleHandle
from holdfast.client.session import SessionHandle
from holdfast.client.shell import ShellHandle
from holdfast.client.subscription import SubscriptionHandle
from holdfast.client.transport import Transport
from holdfast.client.turn import TurnHandle
from holdfast.errors import HoldfastError
from holdfast.server.routes import CLIENT, NO_METHOD, RULES
from scripts.make_client_reference import PAGES, PAGES_BY_NAME
from scripts.operations import OTHER_COMMANDS, Row, methods, rows
from tests.test_docs import commands

ROWS = rows()
ARGUMENTS: dict[str, dict[str, Any]] = {
    "Client.session": {"id": "s", "agent": "a"},
    "Client.set_budget": {"per": "owner", "name": "ada", "requests": 1},
    "SessionHandle.export": {"path": "/dev/null"},
}
"""The arguments of methods for which those that `_arguments` derives from the signature are not valid."""


def test_a_route_lists_every_public_method():
    listed = {row.method for row in ROWS}
    missing, unknown = set(methods()) - listed, listed - set(methods())
    assert not missing, (
        f"Add ClientMethod({missing.pop()!r}, …) to the @operation or @route whose request it sends."
    )
    assert not unknown, (
        f"Add the method {unknown.pop()} to its handle in src/holdfast/client/, or remove its ClientMethod."
    )


def test_every_route_has_a_method_or_a_reason_to_have_none():
    routes = set(RULES) - {("POST", "/api/demo/kill")}
    bare = {route for route in routes if not CLIENT[route] and not NO_METHOD.get(route)}
    assert not bare, (
        f"Add a ClientMethod, or `no_method` with the reason, to the declaration of {bare.pop()}."
    )
    both = {route for route in routes if CLIENT[route] and route in NO_METHOD}
    assert not both, f"{both.pop()} has a ClientMethod, and a reason to have none."


def test_every_command_is_that_of_a_method_or_has_a_reason_not_to_be():
    names = {name for name, _ in commands(typer.main.get_command(app))}
    listed = {row.command for row in ROWS if row.command}
    missing, unknown = names - listed - set(OTHER_COMMANDS), (listed | set(OTHER_COMMANDS)) - names
    assert not missing, (
        f"Name the command {missing.pop()!r} in the ClientMethod of the method that it calls, or in OTHER_COMMANDS in scripts/operations.py."
    )
    assert not unknown, (
        f"There is no command {unknown.pop()!r}: add it to src/holdfast/cli/, or correct its ClientMethod."
    )
    assert not listed & set(OTHER_COMMANDS)


def test_a_method_without_a_command_has_a_reason():
    bare = [row.method for row in ROWS if row.command is None and not row.note]
    assert not bare, (
        f"Name the command in ClientMethod({bare[0]!r}, …), or give the reason that there is none as `note`."
    )


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.method)
async def test_a_method_sends_the_request_of_its_route(row: Row):
    assert row.method in methods(), f"There is no method {row.method}; see the test of public methods."
    sent: list[httpx2.Request] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        sent.append(request)
        error = {"code": "bad_input", "message": "recorded"}
        return httpx2.Response(422, json={"error": error})

    async with httpx2.AsyncClient(transport=httpx2.MockTransport(answer), base_url="http://x") as http:
        result = _call(HttpTransport(http), row.method)
        if row.method in {"Client.run", "Client.schedule", "Client.subscription"}:
            result = result.info()
        with pytest.raises(HoldfastError):
            await (anext(result) if isasyncgen(result) else result)
    method, _, path = row.route.partition(" ")
    pattern = re.sub(r"\\{\w+\\}|\{\w+\}", "[^/]+", path)
    assert any(each.method == method and re.fullmatch(pattern, each.url.path) for each in sent), sent


def _call(transport: Transport, method: str) -> Any:
    kind, _, name = method.partition(".")
    text = OutputType[str](str)
    accepted = SubmissionInfo.model_construct(submission_id="t", session_id="s", position=1)
    handles: dict[str, Any] = {
        "Client": Client(transport),
        "SessionHandle": SessionHandle(transport, "s", text),
        "TurnHandle": TurnHandle(transport, accepted, text.parse),
        "RunHandle": RunHandle(transport, "r"),
        "ScheduleHandle": ScheduleHandle(transport, "d"),
        "SubscriptionHandle": SubscriptionHandle(transport, "n"),
        "ShellHandle": ShellHandle(transport),
    }
    call = getattr(handles[kind], name)
    return call(**ARGUMENTS.get(method) or _arguments(call))


def _arguments(call: Any) -> dict[str, Any]:
    """Return an argument for each parameter that has no default."""
    needed = [each for each in signature(call).parameters.values() if each.default is Parameter.empty]
    return {each.name: _argument(str(each.annotation)) for each in needed}


def _argument(kind: str) -> Any:
    if "ApprovalRequest" in kind:
        return ApprovalRequest(call_id="c", tool="pay", arguments={}, digest="0" * 64)
    return 1 if "int" in kind else "0" * 64


@pytest.mark.parametrize("page", PAGES_BY_NAME)
def test_the_reference_pages_are_up_to_date(page: str):
    assert (PAGES / page).read_text() == PAGES_BY_NAME[page](), "run `make generate`"
