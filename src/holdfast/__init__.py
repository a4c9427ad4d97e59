"""Durable sessions for AI agents."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from holdfast.errors import HoldfastError

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
    from holdfast.store import Store, open_store

__version__ = "0.1.0"

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
    """Import a name on first use, so that `import holdfast` does not load Pydantic AI."""
    if name in __all__:
        module = "holdfast.store" if name in {"Store", "open_store"} else "holdfast.record"
        return getattr(import_module(module), name)
    message = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(message)
