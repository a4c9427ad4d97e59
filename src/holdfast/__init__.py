"""Durable sessions for AI agents."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from holdfast.errors import HoldfastError
from holdfast.store import Store, open_store

if TYPE_CHECKING:
    from holdfast.record import (
        ExternalMedia,
        Holdfast,
        annotate_effect,
        continue_session,
        fork,
        idempotency_key,
        inspect_run,
        is_provider_valid,
        load_history,
        resume,
        rewind,
        settle_effect,
    )

__all__ = [
    "ExternalMedia",
    "Holdfast",
    "HoldfastError",
    "Store",
    "annotate_effect",
    "continue_session",
    "fork",
    "idempotency_key",
    "inspect_run",
    "is_provider_valid",
    "load_history",
    "open_store",
    "resume",
    "rewind",
    "settle_effect",
]


def __getattr__(name: str) -> Any:
    """Import the recorder, and Pydantic AI with it, when it is asked for: the command line starts without."""
    if name in __all__:
        return getattr(import_module("holdfast.record"), name)
    message = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(message)
