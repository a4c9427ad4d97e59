"""Find the agents that a worker serves."""

import importlib
import sys
from collections.abc import Iterable
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeAlias

from pydantic_ai import Agent

from holdfast.errors import BadInput
from holdfast.runtime.function_agent import FunctionAgent
from holdfast.runtime.pydantic_agent import AgentSetup

Served: TypeAlias = AgentSetup | FunctionAgent
"""The implementations of `Runner`."""
AnyAgent: TypeAlias = Agent[Any, Any] | Served
Agents: TypeAlias = AnyAgent | Iterable[AnyAgent]


def by_name(agents: Agents) -> dict[str, Served]:
    """Return the agents by the name that sessions refer to."""
    given = [agents] if isinstance(agents, Agent | AgentSetup | FunctionAgent) else list(agents)
    named: dict[str, Served] = {}
    for item in given:
        runner = AgentSetup(agent=item) if isinstance(item, Agent) else item
        name = runner.name or (isinstance(runner, AgentSetup) and runner.agent.name) or "agent"
        if name in named:
            raise BadInput(problem=f"two agents have the name {name!r}; give each its own name")
        named[name] = runner
    if not named:
        raise BadInput(problem="there is no agent to serve")
    return named


def load_object(app: str) -> Any:
    """Import the object named by `module:attribute`. The working directory is searched first."""
    name, _, attribute = app.partition(":")
    if not name or not attribute or name.startswith("."):
        raise BadInput(problem=f"{app!r} does not name an agent; use module:attribute")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(name)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}."):
            raise BadInput(
                problem=f"module {error.name} was not found, neither here nor installed"
            ) from error
        text = " ".join(str(error).split()).rstrip(".")
        raise BadInput(problem=f"importing {name} failed: {type(error).__name__}: {text}") from error
    try:
        return attrgetter(attribute)(module)
    except AttributeError as error:
        raise BadInput(problem=f"module {name} has no attribute {attribute}") from error


def load_agents(app: str) -> dict[str, Served]:
    """Import the agents named by `module:attribute`: an agent, an `AgentSetup`, a plain agent, or several of them."""
    loaded = load_object(app)
    several: list[Any] = list(loaded) if isinstance(loaded, list | tuple) else [loaded]  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    for item in several:
        if not isinstance(item, Agent | AgentSetup | FunctionAgent):
            kind = type(item).__name__
            raise BadInput(
                problem=f"{app} is of type {kind}, not a pydantic_ai.Agent, a function with @holdfast.agent, or a list of them"
            )
    return by_name(several)
