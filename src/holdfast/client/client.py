"""The sessions of one store or one API server."""

from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import suppress
from datetime import date
from typing import TYPE_CHECKING, Any, TypeVar, overload

from holdfast.api.budgets import BudgetChanged, BudgetInfo
from holdfast.api.models import (
    AuditRecord,
    Health,
    Inbox,
    Items,
    Me,
    RunInfo,
    ServerInfo,
    SessionInfo,
    WorkerInfo,
)
from holdfast.api.retention import SweepResult
from holdfast.api.schedules import ScheduleInfo
from holdfast.api.subscriptions import SubscriptionInfo, SubscriptionSecret
from holdfast.api.usage import UsageInfo
from holdfast.budgets import Per
from holdfast.client.output import OutputType, output_type_of
from holdfast.client.run import RunHandle
from holdfast.client.schedule import ScheduleHandle
from holdfast.client.session import SessionHandle
from holdfast.client.shell import ShellHandle
from holdfast.client.subscription import SubscriptionHandle
from holdfast.client.transport import Transport
from holdfast.errors import BadInput, Conflict, SessionExists
from holdfast.ids import check_id
from holdfast.schedules import CatchUp, Overlap
from holdfast.subscriptions import NoticeKind
from holdfast.types import Status
from holdfast.usage import UsageGroup

if TYPE_CHECKING:
    from pydantic_ai import Agent

    from holdfast.runtime import FunctionAgent

T = TypeVar("T")


class Client:
    """The sessions of one store or one API server. `holdfast.connect` opens it."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.transport = transport
        """Calls operations by method and path, for example to read a single page of a list."""
        self.shell: ShellHandle = ShellHandle(transport)
        """Shell commands, if the API server allows them."""

    @overload
    async def session(
        self,
        id: str | None = None,
        *,
        agent: "Agent[Any, T]",
        title: str = "",
        metadata: dict[str, Any] | None = None,
        owner: str | None = None,
    ) -> SessionHandle[T]: ...
    @overload
    async def session(
        self,
        id: str | None = None,
        *,
        agent: "FunctionAgent",
        title: str = "",
        metadata: dict[str, Any] | None = None,
        owner: str | None = None,
    ) -> SessionHandle[Any]: ...
    @overload
    async def session(
        self,
        id: str | None = None,
        *,
        agent: str | None = None,
        output_type: type[T],
        title: str = "",
        metadata: dict[str, Any] | None = None,
        owner: str | None = None,
    ) -> SessionHandle[T]: ...
    @overload
    async def session(
        self,
        id: str | None = None,
        *,
        agent: str | None = None,
        title: str = "",
        metadata: dict[str, Any] | None = None,
        owner: str | None = None,
    ) -> SessionHandle[str]: ...
    @overload
    async def session(
        self,
        id: str | None = None,
        *,
        agent: "str | Agent[Any, Any] | FunctionAgent | None" = None,
        output_type: Any = None,
        title: str = "",
        metadata: dict[str, Any] | None = None,
        owner: str | None = None,
    ) -> SessionHandle[Any]: ...
    async def session(
        self,
        id: str | None = None,
        *,
        agent: "str | Agent[Any, Any] | FunctionAgent | None" = None,
        output_type: Any = None,
        title: str = "",
        metadata: dict[str, Any] | None = None,
        owner: str | None = None,
    ) -> SessionHandle[Any]:
        """Open a session. With an `agent`, create it if it does not exist.

        `agent` is the name of the agent, or the agent itself. If you pass the agent, results have its output type; results of
        plain agents are text or JSON. If you pass a name, results are text, or have the given `output_type`. Without an `id`, a
        new one is generated. `title`, `metadata` and `owner` apply to a new session; only administrators may set the owner.
        Raises `SessionNotFound`, and `Conflict` if the session belongs to another agent.
        """
        output: OutputType[Any] = OutputType(output_type or str)
        if id is not None:
            check_id(id, "session id")
        if agent is not None and not isinstance(agent, str):
            from pydantic_ai import Agent

            if output_type is None:
                output = output_type_of(agent) if isinstance(agent, Agent) else OutputType(Any)
            agent = agent.name or "agent"
        if agent is not None:
            given = {"agent": agent, "id": id, "title": title, "metadata": metadata, "owner": owner}
            body = {name: value for name, value in given.items() if value}
            with suppress(SessionExists):
                created = await self._transport.call(SessionInfo, "POST", "/api/sessions", json=body)
                return SessionHandle(self._transport, created.id, output)
        if id is None:
            raise BadInput(
                problem="a new session needs an agent; pass agent=, or the id of an existing session"
            )
        handle = SessionHandle(self._transport, id, output)
        existing = (await handle.info()).agent
        if agent not in {None, existing}:
            problem = f"session {id} belongs to agent {existing!r}, not {agent!r}"
            raise Conflict(problem=f"{problem}; leave out the agent, or choose another session")
        return handle

    def sessions(
        self,
        *,
        status: Status | None = None,
        agent: str | None = None,
        owner: str | None = None,
        search: str | None = None,
    ) -> AsyncGenerator[SessionInfo, None]:
        """Yield sessions, most recently active first. `search` matches part of the title. `owner` is ignored unless you are an administrator."""
        params = {"status": status, "agent": agent, "owner": owner, "search": search}
        return self._transport.items(SessionInfo, "/api/sessions", params)

    def run(self, id: str) -> RunHandle:
        """Return a handle on a run."""
        return RunHandle(self._transport, id)

    def runs(
        self,
        *,
        session_id: str | None = None,
        parent_id: str | None = None,
        interrupted: bool = False,
        unresolved: bool = False,
    ) -> AsyncGenerator[RunInfo, None]:
        """Yield runs, newest first: all, those that were `interrupted`, or those with an `unresolved` tool call."""
        params = {
            "session_id": session_id,
            "parent_id": parent_id,
            "interrupted": interrupted,
            "unresolved": unresolved,
        }
        return self._transport.items(RunInfo, "/api/runs", params)

    async def create_schedule(
        self,
        cron: str,
        text: str,
        *,
        timezone: str = "UTC",
        agent: str | None = None,
        session_id: str | None = None,
        title: str = "",
        overlap: Overlap = "skip",
        catch_up: CatchUp = "once",
        catch_up_limit: int = 10,
        id: str | None = None,
        owner: str | None = None,
    ) -> ScheduleHandle:
        """Create a schedule: `text` is submitted at each time of `cron` in `timezone`.

        With an `agent`, each tick creates a session; with a `session_id`, it submits to that session. If the turn of the previous tick
        has not ended, `overlap` determines whether to `skip` this tick, to `queue` its message or to `interrupt` that turn. After a time
        without workers, `catch_up` submits `once`, `all` missed ticks up to `catch_up_limit`, or `none`. Only administrators may set
        the `owner`.
        """
        if agent is not None and not isinstance(agent, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise BadInput(problem=f"pass the name of the agent, not a {type(agent).__name__}")
        given: dict[str, Any] = {"cron": cron, "text": text, "timezone": timezone, "session_id": session_id}
        given |= {"agent": agent, "title": title, "overlap": overlap, "catch_up": catch_up, "id": id}
        given |= {"catch_up_limit": catch_up_limit, "owner": owner}
        body = {name: value for name, value in given.items() if value is not None}
        created = await self._transport.call(ScheduleInfo, "POST", "/api/schedules", json=body)
        return self.schedule(created.id)

    def schedule(self, id: str) -> ScheduleHandle:
        """Return a handle on a schedule."""
        return ScheduleHandle(self._transport, id)

    def schedules(self, *, owner: str | None = None) -> AsyncGenerator[ScheduleInfo, None]:
        """Yield the schedules, in the order of their ids. `owner` is ignored unless you are an administrator."""
        return self._transport.items(ScheduleInfo, "/api/schedules", {"owner": owner})

    async def create_subscription(
        self,
        url: str,
        kinds: Sequence[NoticeKind],
        *,
        agents: Sequence[str] = (),
        sessions: Sequence[str] = (),
        content: bool = False,
        everyone: bool = False,
        secret: str | None = None,
        owner: str | None = None,
    ) -> SubscriptionSecret:
        """Create a subscription: notices are sent to a webhook. The result has the secret to verify them with.

        With `content` they have texts of the session. Only administrators may subscribe to the sessions of `everyone`, or set the `owner`.
        """
        given = {"url": url, "content": content, "everyone": everyone, "secret": secret, "owner": owner}
        body = given | {"kinds": list(kinds), "agents": list(agents), "sessions": list(sessions)}
        return await self._transport.call(SubscriptionSecret, "POST", "/api/subscriptions", json=body)

    def subscription(self, id: str) -> SubscriptionHandle:
        """Return a handle on a subscription."""
        return SubscriptionHandle(self._transport, id)

    def subscriptions(self, *, owner: str | None = None) -> AsyncGenerator[SubscriptionInfo, None]:
        """Yield the subscriptions, in the order of their creation. `owner` is ignored unless you are an administrator."""
        return self._transport.items(SubscriptionInfo, "/api/subscriptions", {"owner": owner})

    def usage(
        self,
        by: Collection[UsageGroup] = ("day",),
        *,
        first: date | None = None,
        last: date | None = None,
        owner: str | None = None,
        agent: str | None = None,
        model: str | None = None,
        session_id: str | None = None,
    ) -> AsyncGenerator[UsageInfo, None]:
        """Yield the usage of each day, owner, agent, model or session, or of a combination of these; with an empty `by`, one sum of all.

        `first` and `last` are the days to include, in UTC. `owner` is ignored unless you are an administrator.
        """
        params = {"by": ",".join(by), "owner": owner, "agent": agent, "model": model}
        params |= {"session_id": session_id}
        params |= {"first": first and first.isoformat(), "last": last and last.isoformat(), "limit": 1000}
        return self._transport.items(UsageInfo, "/api/usage", params)

    async def set_budget(
        self,
        per: Per,
        name: str = "",
        *,
        daily: bool = False,
        requests: int | None = None,
        tokens: int | None = None,
        cost: float | None = None,
        seconds: float | None = None,
    ) -> BudgetChanged:
        """Set the budget of one session, its turns, an owner, an agent or the store, which has no name. For administrators.

        Sessions that wait for it continue if it allows that. `cost` is in dollars.
        """
        limits = {"requests": requests, "tokens": tokens, "cost": cost, "seconds": seconds}
        given = {key: limit for key, limit in limits.items() if limit is not None}
        if not given:
            raise BadInput(problem="a budget needs a limit: requests, tokens, cost or seconds")
        return await self._budget(per, name, daily=daily, **given)

    async def remove_budget(self, per: Per, name: str = "", *, daily: bool = False) -> BudgetChanged:
        """Remove a budget that an administrator has set. Those of the settings and of agents apply again. For administrators."""
        return await self._budget(per, name, daily=daily)

    async def _budget(self, per: Per, name: str, **given: Any) -> BudgetChanged:
        body = {"per": per, "name": name or None, **given}
        return await self._transport.call(BudgetChanged, "PUT", "/api/budgets", json=body)

    def budgets(self, *, per: Per | None = None, name: str | None = None) -> AsyncGenerator[BudgetInfo, None]:
        """Yield the budgets that administrators have set, with what was used: all, or those of your owner name."""
        return self._transport.items(BudgetInfo, "/api/budgets", {"per": per, "name": name, "limit": 1000})

    async def inbox(self) -> Inbox:
        """Return the sessions that wait for a person, longest wait first."""
        return await self._transport.call(Inbox, "GET", "/api/inbox")

    async def media(self, sha256: str) -> bytes:
        """Return the content with this SHA-256. A session that you can read must refer to it."""
        return await self._transport.media(sha256)

    async def me(self) -> Me:
        """Return your owner name, your role and scopes, and the agents of the API server."""
        return await self._transport.call(Me, "GET", "/api/me")

    async def workers(self) -> list[WorkerInfo]:
        """Return the workers, and other processes that hold sessions."""
        return (await self._transport.call(Items[WorkerInfo], "GET", "/api/workers")).items

    def audit(self, *, session_id: str | None = None) -> AsyncGenerator[AuditRecord, None]:
        """Yield the audit log, newest first, of all sessions or of one. For administrators."""
        return self._transport.items(AuditRecord, "/api/audit", {"session_id": session_id})

    async def sweep(self, *, dry_run: bool = False, limit: int = 1000) -> SweepResult:
        """Apply the retention policies to the sessions that are due. For administrators."""
        body = {"dry_run": dry_run, "limit": limit}
        path = "/api/retention/sweep"
        return await self._transport.call(SweepResult, "POST", path, json=body, is_long=True)

    async def ready(self) -> Health:
        """Return whether the store is available and has the current schema. Raises an error if not."""
        return await self._transport.call(Health, "GET", "/ready")

    async def server_info(self) -> ServerInfo:
        """Return the version of the API server, and how long it has been running."""
        return await self._transport.call(ServerInfo, "GET", "/server_info")

    async def metrics(self) -> str:
        """Return the metrics in Prometheus format."""
        return await self._transport.metrics()
