"""Running sessions: workers that claim them, keep their leases, carry out what is asked, and hand over."""

from holdfast.runtime.agents import AgentSetup, load_agents
from holdfast.runtime.session import current_session
from holdfast.runtime.worker import Worker

__all__ = ["AgentSetup", "Worker", "current_session", "load_agents"]
