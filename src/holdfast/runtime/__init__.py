"""Running sessions: workers that claim them, keep their leases, carry out what is asked, and hand over."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.runtime.agents import AgentSetup, load_agents
    from holdfast.runtime.context import current_session
    from holdfast.runtime.worker import Worker

__all__ = ["AgentSetup", "Worker", "current_session", "load_agents"]

_HOMES = {"AgentSetup": "agents", "Worker": "worker", "current_session": "context", "load_agents": "agents"}


def __getattr__(name: str) -> Any:
    """Import what runs agents, and Pydantic AI with it, when it is asked for: `holdfast approve` does without."""
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    message = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(message)
