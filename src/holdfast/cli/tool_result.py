"""`holdfast tool-result`: deliver the result of a tool call that ran outside of the agent."""

import json
from typing import Annotated

import typer

from holdfast.cli.options import AsJson, ServerUrl, SessionId, StoreUrl
from holdfast.cli.talk import Wait, submit
from holdfast.errors import BadInput


def tool_result(
    session_id: SessionId,
    call_id: Annotated[str, typer.Argument(help="Id of the tool call.")],
    store: StoreUrl = None,
    url: ServerUrl = None,
    result: Annotated[str | None, typer.Option(metavar="JSON", help="The result of the call.")] = None,
    error: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Why the call failed, instead of a result.")
    ] = None,
    wait: Wait = False,
    as_json: AsJson = False,
) -> None:
    """Deliver the result of a tool call that ran outside.

    Pass its result, or the error with which it failed. `holdfast sessions show` lists the calls that wait. The turn continues when no call waits any longer.

    Examples:
        holdfast tool-result s1 call-7 --result '{"arrived": true}'
        holdfast tool-result s1 call-7 --error "Out of stock."
    """
    if (result is None) == (error is None):
        raise BadInput(problem="pass either --result or --error")
    try:
        value = None if result is None else json.loads(result)
    except ValueError as problem:
        raise BadInput(problem=f"--result is not JSON: {problem}") from problem
    submit(
        session_id,
        lambda session: session.tool_result(call_id, value, error=error),
        store,
        url,
        wait=wait,
        as_json=as_json,
    )
