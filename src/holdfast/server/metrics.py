"""The route of the metrics."""

from typing import TYPE_CHECKING

from fastapi import Request, Response

from holdfast.operations.registry import ClientMethod
from holdfast.server.routes import channels_of, new_router, route, store_of

if TYPE_CHECKING:
    from holdfast.operations.metrics import Metrics

router = new_router("operation")


@route(
    router,
    "GET",
    "/metrics",
    "user",
    ClientMethod("Client.metrics", "top"),
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "Metrics."}},
)
async def metrics(request: Request) -> Response:
    """Return the metrics for Prometheus. While the store is down, `holdfast_store_up` is 0, and its numbers are left out."""
    counted: Metrics = request.app.state.metrics
    counted.streams.set(channels_of(request).clients)
    return Response(await counted.text(store_of(request)), media_type="text/plain; version=0.0.4")
