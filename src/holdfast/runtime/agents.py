"""The agents that a worker serves, and how their sessions are run."""

import importlib
import json
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import isawaitable
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeAlias

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models import Model
from pydantic_ai.models.function import FunctionModel

from holdfast.errors import BadInput
from holdfast.record.ledger import Policy
from holdfast.runtime.attachment import Attachment
from holdfast.types import Session

Compactor: TypeAlias = Callable[[Sequence[ModelMessage]], Awaitable[Sequence[ModelMessage]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSetup:
    """An agent and how its sessions are run.

    `deps` creates the dependencies of a session. A session whose metadata names one of `models` runs on that model.
    `run_timeout` ends a run that takes longer; for single tools use Pydantic AI's `tool_timeout`. `compact` shortens a
    history; by default the session's model writes a summary. With `attached`, sessions created over HTTP are
    attached to their watchers, unless their metadata has its own `attached`.
    """

    agent: Agent[Any, Any]
    name: str = ""
    deps: Callable[[Session], Any] | None = None
    models: Mapping[str, Model | str] = field(default_factory=dict[str, Model | str])
    policies: Mapping[str, Policy] = field(default_factory=dict[str, Policy])
    run_timeout: float | None = None
    streaming: bool = True
    compact: Compactor | None = None
    attached: bool | Attachment = False

    async def make_deps(self, session: Session) -> Any:
        """Return the dependencies of a session."""
        made = None if self.deps is None else self.deps(session)
        return await made if isawaitable(made) else made

    def model_of(self, session: Session) -> Model | str | None:
        """Return the model that the session's metadata names; None for the agent's own model. Raises `BadInput`."""
        name = json.loads(session.metadata).get("model")
        if name is None:
            return None
        if name not in self.models:
            allowed = ", ".join(sorted(self.models)) or "none"
            raise BadInput(
                problem=f"the session's metadata names model {name!r}, which is not allowed; allowed models: {allowed}"
            )
        return self.models[name]

    def can_stream(self, model: Model | str | None) -> bool:
        """Return whether the model's response can be streamed. A FunctionModel without a stream function cannot."""
        used = model or self.agent.model
        return self.streaming and not (isinstance(used, FunctionModel) and used.stream_function is None)


Agents: TypeAlias = "Agent[Any, Any] | AgentSetup | Iterable[Agent[Any, Any] | AgentSetup]"


def by_name(agents: Agents) -> dict[str, AgentSetup]:
    """Return the agents by the name that sessions refer to."""
    given = [agents] if isinstance(agents, Agent | AgentSetup) else list(agents)
    named: dict[str, AgentSetup] = {}
    for item in given:
        setup = item if isinstance(item, AgentSetup) else AgentSetup(agent=item)
        name = setup.name or setup.agent.name or "agent"
        if name in named:
            raise BadInput(problem=f"two agents have the name {name!r}; give each its own name")
        named[name] = setup
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


def load_agents(app: str) -> dict[str, AgentSetup]:
    """Import the agents named by `module:attribute`: an agent, an `AgentSetup`, or several of them."""
    loaded = load_object(app)
    if not isinstance(loaded, Agent | AgentSetup | list | tuple):
        kind = type(loaded).__name__
        raise BadInput(problem=f"{app} is of type {kind}, not a pydantic_ai.Agent or a list of them")
    return by_name(loaded)  # pyright: ignore[reportUnknownArgumentType]
