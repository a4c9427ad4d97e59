"""The HTTP API. Any API server serves any session, regardless of the worker that runs it."""

from holdfast.errors import MissingExtra

try:
    from holdfast.server.app import create_app
except ModuleNotFoundError as error:
    if error.name not in {"fastapi", "starlette", "uvicorn", "prometheus_client", "jwt"}:
        raise
    raise MissingExtra(extra="server") from error

__all__ = ["create_app"]
