"""The client: handles on sessions, on a store in this process or on an API server.

Names are imported on first use. The transport does not need Pydantic AI, which takes a second to import.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.client.client import Client
    from holdfast.client.connection import connect
    from holdfast.client.run import RunHandle
    from holdfast.client.schedule import ScheduleHandle
    from holdfast.client.session import SessionHandle
    from holdfast.client.shell import ShellHandle
    from holdfast.client.subscription import SubscriptionHandle
    from holdfast.client.turn import TurnHandle

_MODULES = {
    "Client": "client",
    "RunHandle": "run",
    "ScheduleHandle": "schedule",
    "SessionHandle": "session",
    "ShellHandle": "shell",
    "SubscriptionHandle": "subscription",
    "TurnHandle": "turn",
    "connect": "connection",
}
__all__ = [
    "Client",
    "RunHandle",
    "ScheduleHandle",
    "SessionHandle",
    "ShellHandle",
    "SubscriptionHandle",
    "TurnHandle",
    "connect",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"holdfast.client.{_MODULES[name]}"), name)
    message = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(message)
