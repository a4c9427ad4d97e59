"""Run sessions: workers claim them, keep their leases, process their submissions, and hand them over."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.runtime.agents import load_agents
    from holdfast.runtime.context import current_session
    from holdfast.runtime.function_agent import Decision, FunctionAgent, Turn, agent
    from holdfast.runtime.pydantic_agent import AgentSetup
    from holdfast.runtime.settling import settle_effect
    from holdfast.runtime.worker import Worker

__all__ = [
    "AgentSetup",
    "Decision",
    "FunctionAgent",
    "Turn",
    "Worker",
    "agent",
    "current_session",
    "load_agents",
    "settle_effect",
]

_HOMES = {
    "AgentSetup": "pydantic_agent",
    **dict.fromkeys(("Decision", "FunctionAgent", "Turn", "agent"), "function_agent"),
    "Worker": "worker",
    "current_session": "context",
    "load_agents": "agents",
    "settle_effect": "settling",
}


def __getattr__(name: str) -> Any:
    """Import the modules that run agents, and with them Pydantic AI, on demand, so that commands such as `holdfast approve` start fast."""
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    message = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(message)
