"""Durable sessions for AI agents."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from holdfast.version import __version__ as __version__

if TYPE_CHECKING:
    from holdfast import errors, events
    from holdfast.budgets import Budget
    from holdfast.client.client import Client
    from holdfast.client.connection import connect
    from holdfast.client.run import RunHandle
    from holdfast.client.session import SessionHandle
    from holdfast.client.sync import SyncClient, connect_sync
    from holdfast.client.turn import TurnHandle
    from holdfast.errors import HoldfastError
    from holdfast.record import (
        CompletedStep,
        Done,
        ExternalMedia,
        Holdfast,
        NotDone,
        Retry,
        Undo,
        Unknown,
        Unsettled,
        annotate_effect,
        continue_session,
        fork,
        idempotency_key,
        inspect_run,
        load_history,
        resume,
        rewind,
        signal,
        sleep,
        sleep_until,
        step,
    )
    from holdfast.runtime import (
        AgentSetup,
        Decision,
        FunctionAgent,
        Turn,
        Worker,
        agent,
        current_session,
        settle_effect,
    )
    from holdfast.store import Store, open_store
    from holdfast.types import Checkpoint

_MODULES = {
    "budgets": ("Budget",),
    "client.client": ("Client",),
    "client.connection": ("connect",),
    "client.run": ("RunHandle",),
    "client.session": ("SessionHandle",),
    "client.sync": ("SyncClient", "connect_sync"),
    "client.turn": ("TurnHandle",),
    "errors": ("HoldfastError",),
    "record": (
        "CompletedStep",
        "Done",
        "ExternalMedia",
        "Holdfast",
        "NotDone",
        "Retry",
        "Undo",
        "Unknown",
        "Unsettled",
        "annotate_effect",
        "continue_session",
        "fork",
        "idempotency_key",
        "inspect_run",
        "load_history",
        "resume",
        "rewind",
        "signal",
        "sleep",
        "sleep_until",
        "step",
    ),
    "runtime": (
        "AgentSetup",
        "Decision",
        "FunctionAgent",
        "Turn",
        "Worker",
        "agent",
        "current_session",
        "settle_effect",
    ),
    "store": ("Store", "open_store"),
    "types": ("Checkpoint",),
}
"""The public names, by module."""

__all__ = [
    "AgentSetup",
    "Budget",
    "Checkpoint",
    "Client",
    "CompletedStep",
    "Decision",
    "Done",
    "ExternalMedia",
    "FunctionAgent",
    "Holdfast",
    "HoldfastError",
    "NotDone",
    "Retry",
    "RunHandle",
    "SessionHandle",
    "Store",
    "SyncClient",
    "Turn",
    "TurnHandle",
    "Undo",
    "Unknown",
    "Unsettled",
    "Worker",
    "agent",
    "annotate_effect",
    "connect",
    "connect_sync",
    "continue_session",
    "current_session",
    "errors",
    "events",
    "fork",
    "idempotency_key",
    "inspect_run",
    "load_history",
    "open_store",
    "resume",
    "rewind",
    "settle_effect",
    "signal",
    "sleep",
    "sleep_until",
    "step",
]


def __getattr__(name: str) -> Any:
    """Import a name on first use, so that `import holdfast` does not load Pydantic AI."""
    if name in {"errors", "events"}:
        return import_module(f"holdfast.{name}")
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"holdfast.{module}"), name)
    message = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(message)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
