"""The route of `holdfast demo` that kills a worker."""

from collections.abc import Callable

from fastapi import APIRouter, Request

from holdfast.api.models import KillRequest, KillResult
from holdfast.errors import Conflict
from holdfast.server.routes import new_router, route, store_of


def demo_router(kill: Callable[[int | None], int | None]) -> APIRouter:
    """Return the routes of the demo."""
    router = new_router("demo")

    @route(router, "POST", "/api/demo/kill", "admin", include_in_schema=False)
    async def kill_worker(request: Request, body: KillRequest) -> KillResult:  # pyright: ignore[reportUnusedFunction]
        """Send SIGKILL to the worker that holds a session, or to any worker if none does."""
        pid = None
        if body.session_id is not None:
            holder = (await store_of(request).session(body.session_id)).holder or ""
            number = holder.rpartition(":")[2]
            pid = int(number) if number.isdecimal() else None
        killed = kill(pid)
        if killed is None:
            raise Conflict(problem="no worker is running at the moment; try again")
        return KillResult(pid=killed)

    return router
