"""The table of operations is true: every method, route and command is in it, and each method sends the request it names."""

import re
from inspect import isasyncgen, isfunction
from typing import Any

import httpx2
import pytest
import typer.main

from holdfast import Client
from holdfast.api.submissions import SubmissionInfo
from holdfast.cli import app
from holdfast.client.http import HttpTransport
from holdfast.client.output import OutputType
from holdfast.client.run import RunHandle
from holdfast.client.session import SessionHandle
from holdfast.client.shell import ShellHandle
from holdfast.client.transport import Transport
from holdfast.client.turn import TurnHandle
from holdfast.errors import HoldfastError
from holdfast.server import create_app
from holdfast.server.routes import RULES
from scripts.make_client_reference import PAGES, PAGES_BY_NAME
from scripts.operations import OPERATIONS, OTHER_COMMANDS, OTHER_ROUTES, Operation
from tests.test_docs import commands

HANDLES: tuple[type[Any], ...] = (Client, SessionHandle, TurnHandle, RunHandle, ShellHandle)
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "Client.session": ("s",),
    "Client.run": ("r",),
    "Client.media": ("0" * 64,),
    "SessionHandle.send": ("hello",),
    "SessionHandle.turn": ("t",),
    "SessionHandle.records": ("item",),
    "SessionHandle.rewind": ("c",),
    "SessionHandle.set_state": ({},),
    "SessionHandle.set_cursor": ("reader", 1),
    "SessionHandle.command_output": ("c",),
    "SessionHandle.set_credential": ("key", "value"),
    "SessionHandle.delete_credential": ("key",),
    "SessionHandle.export": ("/dev/null",),
    "RunHandle.settle": ("call",),
    "ShellHandle.start": ("true",),
    "ShellHandle.run": ("true",),
    "ShellHandle.info": ("c",),
    "ShellHandle.stop": ("c",),
    "ShellHandle.output": ("c",),
}
NAMED: dict[str, dict[str, Any]] = {
    "Client.session": {"agent": "a"},
    "SessionHandle.set_state": {"expected_version": 0},
}


def test_every_public_method_is_an_operation():
    methods = {
        f"{handle.__name__}.{name}"
        for handle in HANDLES
        for name, method in vars(handle).items()
        if isfunction(method) and not name.startswith("_")
    }
    assert {operation.method for operation in OPERATIONS} == methods


def test_every_route_is_an_operation_or_has_a_reason_not_to_be():
    assert create_app is not None  # its import declares the routes
    routes = {f"{method} {path}" for (method, path) in RULES} - {"POST /api/demo/kill"}
    assert {operation.route for operation in OPERATIONS} | set(OTHER_ROUTES) == routes


def test_every_command_is_an_operation_or_has_a_reason_not_to_be():
    names = {name for name, _ in commands(typer.main.get_command(app))}
    assert {each.command for each in OPERATIONS if each.command} | set(OTHER_COMMANDS) == names


def test_an_operation_without_a_command_has_a_reason():
    assert [each.method for each in OPERATIONS if each.command is None and not each.reason] == []


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda each: each.method)
async def test_a_method_sends_the_request_that_the_table_names(operation: Operation):
    sent: list[httpx2.Request] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        sent.append(request)
        error = {"code": "bad_input", "message": "recorded"}
        return httpx2.Response(422, json={"error": error})

    async with httpx2.AsyncClient(transport=httpx2.MockTransport(answer), base_url="http://x") as http:
        result = _call(HttpTransport(http), operation)
        if operation.method == "Client.run":
            result = result.info()
        with pytest.raises(HoldfastError):
            await (anext(result) if isasyncgen(result) else result)
    method, _, path = operation.route.partition(" ")
    pattern = re.sub(r"\\{\w+\\}|\{\w+\}", "[^/]+", path)
    assert any(each.method == method and re.fullmatch(pattern, each.url.path) for each in sent), sent


def _call(transport: Transport, operation: Operation) -> Any:
    kind, _, name = operation.method.partition(".")
    text = OutputType[str](str)
    accepted = SubmissionInfo.model_construct(submission_id="t", session_id="s", position=1)
    handles: dict[str, Any] = {
        "Client": Client(transport),
        "SessionHandle": SessionHandle(transport, "s", text),
        "TurnHandle": TurnHandle(transport, accepted, text.parse),
        "RunHandle": RunHandle(transport, "r"),
        "ShellHandle": ShellHandle(transport),
    }
    if name in {"approve", "deny"}:
        return getattr(handles[kind], name)(_request())
    return getattr(handles[kind], name)(
        *ARGUMENTS.get(operation.method, ()), **NAMED.get(operation.method, {})
    )


def _request() -> Any:
    from holdfast.approval import ApprovalRequest

    return ApprovalRequest(call_id="c", tool="pay", arguments={}, digest="0" * 64)


@pytest.mark.parametrize("page", PAGES_BY_NAME)
def test_the_reference_pages_are_up_to_date(page: str):
    assert (PAGES / page).read_text() == PAGES_BY_NAME[page](), "run `make generate`"
