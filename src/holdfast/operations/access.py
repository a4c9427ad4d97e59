"""The caller of an operation and its rights. Every caller passes `authorize`, in this process or over HTTP.

A session of another owner looks like a session that does not exist.
"""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Self, TypeAlias

from holdfast.config import Settings
from holdfast.errors import Forbidden, NotFound, SessionNotFound
from holdfast.operations.limits import RateLimits, check_stored_bytes
from holdfast.store import Store
from holdfast.types import SCOPES, Role, Scope, Session

Rule: TypeAlias = Literal["public", "user", "admin", "shell", "read", "write", "delete"]
"""The requirement of an operation: nothing, any principal, an administrator, the scope `shell`, or a scope and access to its session or run.

Operations for any principal and for administrators also require the scope `read`, or `write` if they change something.
"""
SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
"""The methods that change nothing."""
_OWN: Final = frozenset({"read", "write", "delete"})
_NEEDED: Final[dict[Rule, tuple[Scope, ...]]] = {
    "read": ("read",),
    "write": ("write",),
    "delete": ("delete", "write"),
    "shell": ("shell",),
}
"""The scopes of each rule. One of them is required. Without `delete`, an erasure has the guards of a clean."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """The authenticated sender of a request."""

    owner: str
    role: Role = "user"
    scopes: frozenset[str] = frozenset()
    actor: str = ""
    """The name in audit entries, if it is not the owner."""

    @classmethod
    def of(cls, owner: str, role: Role, scopes: Iterable[str] | None) -> Self:
        """Return the principal of a token, with all scopes that its scopes imply.

        A token without scopes (None) has `read`, `write` and `delete`, and so has one with the scope `shell` alone. `admin` is the
        role, and implies these three. Unknown scopes are ignored, so a token with no other ones has no rights.
        """
        given = frozenset(_OWN if scopes is None else scopes).intersection(SCOPES)
        if "admin" in given or given == frozenset({"shell"}):
            given |= _OWN
        if role == "admin" or "admin" in given:
            return cls(owner=owner, role="admin", scopes=given | {"admin"})
        return cls(owner=owner, role=role, scopes=given)

    @classmethod
    def local(cls, actor: str = "") -> Self:
        """Return the local administrator, which has all rights."""
        return cls(owner="local", role="admin", scopes=frozenset(SCOPES), actor=actor)

    @property
    def is_admin(self) -> bool:
        """Whether the principal has access to all sessions."""
        return self.role == "admin"

    @property
    def owner_filter(self) -> str | None:
        """The owner whose records the principal may see; None for all owners."""
        return None if self.is_admin else self.owner

    def may_see(self, session: Session) -> bool:
        """Return whether the principal may see a session."""
        return self.is_admin or session.owner == self.owner


@dataclass(slots=True, kw_only=True)
class Service:
    """A store as one process offers it: its settings, the agents that sessions can be created for (any if there are none)."""

    store: Store
    settings: Settings
    agents: frozenset[str] = frozenset()
    attached: Mapping[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    """The metadata of new sessions, by agent, which attaches them."""
    demo: bool = False
    migrated: bool = False
    exports: int = 0
    """How many archives are being written."""
    started_at: float = field(default_factory=time.monotonic)
    used_at: float = field(default_factory=time.monotonic)
    limits: RateLimits = field(init=False)

    def __post_init__(self) -> None:
        self.limits = RateLimits(self.settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """An authorized call: on which service, by which principal, and about which session."""

    service: Service
    principal: Principal
    found: Session | None = None
    trace: str | None = None
    """The trace context of the caller."""

    @property
    def store(self) -> Store:
        """The store of the service."""
        return self.service.store

    @property
    def settings(self) -> Settings:
        """The settings of the service."""
        return self.service.settings

    @property
    def actor(self) -> str:
        """The name of the principal in audit entries."""
        return self.principal.actor or self.principal.owner

    @property
    def session(self) -> Session:
        """The session of the operation, which the principal may see."""
        if self.found is None:
            raise RuntimeError("the rule of this operation names no session")
        return self.found

    async def check_stored_bytes(self) -> None:
        """Raise `TooMuchStored` if the principal has stored as much as it may. Administrators have no limit."""
        if not self.principal.is_admin:
            most = self.settings.max_stored_bytes_per_owner
            await check_stored_bytes(self.store, self.principal.owner, most)


async def authorize(
    service: Service, principal: Principal, method: str, rule: Rule, path: Mapping[str, Any]
) -> Session | None:
    """Raise if a principal may not call an operation. Otherwise return the session that its path names, if the rule is about one."""
    if rule == "public":
        return None
    if rule == "admin" and not principal.is_admin:
        raise Forbidden(required="the role admin", principal=principal.owner)
    needed = _NEEDED.get(rule) or _NEEDED["read" if method in SAFE else "write"]
    if principal.scopes.isdisjoint(needed):
        raise Forbidden(required=f"the scope {' or '.join(needed)}", principal=principal.owner)
    if rule not in _OWN:
        return None
    store = service.store
    session_id = (await store.run(path["run_id"])).session_id if "run_id" in path else path["session_id"]
    session = await store.session(session_id)
    if not principal.may_see(session):
        raise (
            NotFound(what="run", id=path["run_id"]) if "run_id" in path else SessionNotFound(id=session_id)
        )
    return session
