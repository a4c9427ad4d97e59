"""Usage: what sessions used, by day, owner, agent, model or session. An owner sees only its own."""

from datetime import date
from typing import Annotated, cast

from pydantic import Field

from holdfast.api.models import Id, Items
from holdfast.api.usage import UsageInfo
from holdfast.errors import Forbidden
from holdfast.operations.access import Caller
from holdfast.operations.registry import NO_NUL, ClientMethod, CursorText, Limit, operation
from holdfast.usage import USAGE_GROUPS, UsageFilter, UsageGroup

_GROUPS = "|".join(USAGE_GROUPS)
_Groups = Annotated[
    str,
    Field(
        max_length=100,
        pattern=rf"^(({_GROUPS})(,({_GROUPS}))*)?$",
        description="What to group by, separated by commas: day, owner, agent, model, session_id. Empty: one sum of all.",
    ),
]
_Text = Annotated[str | None, Field(max_length=200, pattern=NO_NUL)]


@operation("GET", "/api/usage", "user", ClientMethod("Client.usage", "usage"), topic="usage")
async def read_usage(
    caller: Caller,
    by: _Groups = "day",
    first: Annotated[date | None, Field(description="The first day, in UTC.")] = None,
    last: Annotated[date | None, Field(description="The last day, included.")] = None,
    owner: Annotated[
        _Text, Field(description="Only this owner. Only administrators may name another one than themselves.")
    ] = None,
    agent: Annotated[_Text, Field(description="Only this agent.")] = None,
    model: Annotated[_Text, Field(description="Only this model.")] = None,
    session_id: Annotated[Id | None, Field(description="Only this session.")] = None,
    cursor: CursorText = None,
    limit: Limit = 100,
) -> Items[UsageInfo]:
    """Add up requests, tokens, cost, tool calls and working time. The sums remain when sessions are cleaned or erased."""
    principal = caller.principal
    if owner not in {None, principal.owner} and not principal.is_admin:
        raise Forbidden(required="the role admin to see the usage of others", principal=principal.owner)
    groups = cast("list[UsageGroup]", [group for group in USAGE_GROUPS if group in by.split(",")])
    page = await caller.store.usage(
        groups,
        UsageFilter(
            first=first,
            last=last,
            owner=owner if principal.is_admin else principal.owner,
            agent=agent,
            model=model,
            session_id=session_id,
        ),
        cursor=cursor,
        limit=limit,
    )
    return Items[UsageInfo](
        items=[UsageInfo.of_usage(each) for each in page.items], next_cursor=page.next_cursor
    )
