"""The session that the code of an agent runs in."""

import asyncio
from collections.abc import Awaitable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from holdfast.errors import AgentExited
from holdfast.jsontext import strict_json
from holdfast.runtime.credentials import Credentials
from holdfast.store import Store
from holdfast.types import Session, State


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionContext:
    """The session that a tool runs in, its credentials and its agent state."""

    session: Session
    store: Store
    keys: str | None = field(default=None, repr=False)

    async def credential(self, name: str) -> str | None:
        """Return a credential of the session, decrypted; None if there is none, or it has expired."""
        return await Credentials(self.store, self.keys).get(self.session.id, name)

    async def state(self, *, name: str | None = None) -> State:
        """Return the agent state of the session, or the one with this name."""
        return await self.store.state(self.session.id, name=name)

    async def set_state(self, body: object, *, expected_version: int, name: str | None = None) -> State:
        """Replace the agent state, or the one with this name. Raise `VersionConflict` if it is not at version `expected_version`."""
        text = strict_json(body, "state")
        return await self.store.set_state(self.session.id, text, expected_version=expected_version, name=name)


_current: ContextVar[SessionContext | None] = ContextVar("holdfast_session", default=None)


def current_session() -> SessionContext | None:
    """Return the session that the calling tool runs in; None outside a worker."""
    return _current.get()


def start_in(context: SessionContext, running: Awaitable[Any]) -> asyncio.Task[Any]:
    """Start the code of an agent as a task of a session. If it exits the process, only this task fails."""
    token = _current.set(context)
    try:
        return asyncio.ensure_future(_contained(running))
    finally:
        _current.reset(token)


async def _contained(running: Awaitable[Any]) -> Any:
    try:
        return await running
    except (SystemExit, KeyboardInterrupt) as error:
        raise AgentExited(what="The agent", error=f"{type(error).__name__}: {error}") from error
