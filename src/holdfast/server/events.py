"""The route of a session's events: as pages, as a live stream, or in the protocol of a front end."""

from functools import partial
from typing import Annotated

from fastapi import Header, Query, Request, Response

from holdfast.api.models import FORMAT_HEADERS, ErrorBody, EventInfo, Format, Items
from holdfast.operations.channel import Channel
from holdfast.operations.events import check_event, grace_of, read_events
from holdfast.operations.registry import ClientMethod, SessionId
from holdfast.server.long_responses import EventStream
from holdfast.server.routes import access_of, caller_of, channels_of, new_router, route

router = new_router("sessions")


@route(
    router,
    "GET",
    "/api/sessions/{session_id}/events",
    "read",
    ClientMethod("SessionHandle.events", "tail"),
    ClientMethod("SessionHandle.journal", "tail"),
    ClientMethod("TurnHandle.events", "tail"),
    ClientMethod("TurnHandle.result", "send", note="`holdfast send --wait`"),
    responses={
        200: {
            "model": Items[EventInfo],
            "description": "A page of events; with `Accept: text/event-stream`, a stream of all events and new ones.",
            "content": {"text/event-stream": {"schema": {"type": "string"}}},
        },
        204: {"description": "With `follow=false`: nothing is running, and there are no new events."},
        501: {"model": ErrorBody, "description": "The server is installed without this format."},
    },
)
async def events(
    request: Request,
    session_id: SessionId,
    after: Annotated[int, Query(ge=0, lt=2**63, description="The number of the last event you have.")] = 0,
    limit: Annotated[
        int, Query(ge=1, le=1000, description="Maximum number of events; not for streams.")
    ] = 500,
    last_event_id: Annotated[
        str | None, Header(pattern="^[0-9]{0,18}$", description="Overrides `after`.")
    ] = None,
    format: Annotated[
        Format | None, Query(description="Stream in another protocol, regardless of `Accept`.")
    ] = None,
    follow: Annotated[
        bool, Query(description="With `format`: continue the stream after the run has ended.")
    ] = True,
) -> Response:
    """Read the events of a session, as pages or as a stream that starts after your last event and follows new ones."""
    caller, state = caller_of(request), request.app.state
    if last_event_id:
        after = int(last_event_id)
    if format is None and "text/event-stream" not in request.headers.get("accept", ""):
        text = await read_events(caller, session_id, after, limit)
        return Response(text, media_type="application/json")
    session = await check_event(caller, after)
    join = partial(channels_of(request).join, session_id, session.seq, grace_of(caller, session))
    watch = access_of(request)
    if format is not None:
        from holdfast.server.formats import StreamFormatter, stream_factory  # imports Pydantic AI

        formatter = StreamFormatter(caller.store, session_id, stream_factory(format, session_id), follow)
        if not follow and after == session.seq and session.status not in {"queued", "running"}:
            return Response(status_code=204)
        feed = partial(formatter.feed, after=after)
        return EventStream(
            join, feed, watch=watch, dropped=state.metrics.dropped, headers=FORMAT_HEADERS[format]
        )
    return EventStream(join, partial(Channel.feed, after=after), watch=watch, dropped=state.metrics.dropped)
