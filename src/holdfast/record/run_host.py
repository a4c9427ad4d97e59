"""The environment of a run: it holds the session, adds to the batches, and decides when the run stops.

The recorder calls a `RunHost`. For a run that an application starts this is a `StandaloneRun`; for a run on a worker it is a
`holdfast.runtime.turn.WorkerTurn`.
"""

import asyncio
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from types import EllipsisType, MappingProxyType
from typing import Any, Literal, Protocol

from pydantic_ai.messages import ModelMessage

from holdfast.budgets import Account, Budget, own_budgets
from holdfast.errors import BudgetReached, Conflict, NotFound
from holdfast.framework_sessions import refuse_foreign
from holdfast.leases import hold_lease
from holdfast.record.history import load, read_history
from holdfast.record.ledger import current_call
from holdfast.record.offloader import MediaOffloader
from holdfast.record.open_calls import pending_calls
from holdfast.store import Store
from holdfast.types import SUSPENDED, Batch, Checkpoint, Lease, Run, Session

CANCELLATIONS = asyncio.CancelledError, KeyboardInterrupt, GeneratorExit
"""The errors that end a run because it was stopped from outside."""


@dataclass(frozen=True, slots=True)
class RunStart:
    """The session when a run starts: its lease, its last checkpoint, and the messages up to there."""

    lease: Lease
    checkpoint: Checkpoint | None
    messages: Sequence[ModelMessage]
    waits: bool = False
    """Whether the session waits, and the last run is to end when this one begins."""


@dataclass(frozen=True, slots=True)
class Failure:
    """How to record an error that ended a run. Without a status the run has not ended: another run continues it."""

    status: Literal["failed", "interrupted"] | None
    error: BaseException


class RunHost(Protocol):
    """The calls that the recorder makes during a run, in their order. By default a host adds nothing and stops nothing."""

    handles_interrupts: bool = False
    """Whether the process handles Ctrl-C, so that a KeyboardInterrupt can only come from the code of an agent."""

    unanswered: Collection[str] = ()
    """The calls that were deferred, run again, and have no answer."""

    asked: Mapping[str, Mapping[str, Any]] = MappingProxyType({})
    """The open questions of the runs that this one continues, by call id. They keep their deadlines."""

    undoable: bool = False
    """Whether a step of the turn can be undone."""

    accounts: Sequence[Account] = ()
    """What the run counts towards."""

    def enter(self, session_id: str, run_id: str, agent: str) -> AbstractAsyncContextManager[RunStart]:
        """Hold the session while the run is recorded."""
        ...

    async def incoming(self) -> Sequence[Sequence[Any]]:
        """Return the contents of messages that enter the run with its next model request."""
        return ()

    def amend(self, batch: Batch, run: Run, *, begins: bool, responded: bool) -> None:
        """Add to the batch of a step in which the run `begins`, the model has `responded`, or neither."""

    def is_stopping(self) -> bool:
        """Return whether `settled` would stop the run now."""
        return False

    async def settled(self) -> None:
        """Stop the run if it must stop. At this point every tool call is answered and recorded."""

    def failure(self, error: BaseException, unwritten: Exception | None) -> Failure | None:
        """Decide how to record an error that ended the run; None if it is not recorded. `unwritten` is why an earlier batch failed."""
        ...

    def end(self, batch: Batch, run: Run) -> None:
        """Add to the batch that records the end of the run."""

    def close(self, run: Run | None, unwritten: Exception | None) -> None:
        """Handle the end of the recording: nothing more is written. `run` is the run in its final state if that is recorded."""


async def waited_runs(store: Store, start: RunStart) -> list[Run]:
    """Return the preceding run as completed if it waits: for the answers that this run received, or for a budget."""
    at = start.checkpoint
    if at is None or at.run_id is None or not (start.waits or pending_calls(start.messages)):
        return []
    last = await store.run(at.run_id)
    return [replace(last, status="completed")] if last.status == "waiting" else []


async def open_accounts(
    store: Store, session: Session, budgets: Sequence[Budget], *, turn: str
) -> tuple[Sequence[Account], BudgetReached | None]:
    """Return what a turn counts towards, with the budgets of the settings, its agent and its session, and the first that is used up."""
    own = own_budgets(session.metadata)
    return await store.open_budgets(session, [*store.settings.budgets, *budgets, *own], turn=turn)


class StandaloneRun(RunHost):
    """A run that an application starts. It creates its session, with this title, if there is none, and holds the lease itself.

    `continues` is the checkpoint that the run starts from, or None for a session without one. If the session has a different latest
    checkpoint when the run acquires it, the run is refused.
    """

    def __init__(
        self,
        store: Store,
        offloader: MediaOffloader,
        *,
        owner: str,
        ttl: float | None,
        title: str = "",
        continues: Checkpoint | EllipsisType | None = ...,
        budgets: Sequence[Budget] = (),
        turn: str | None = None,
    ) -> None:
        self._budgets = budgets
        self._turn = turn
        self._continues = continues
        self._store = store
        self._offloader = offloader
        self._owner = owner
        self._ttl = ttl
        self._title = title

    @asynccontextmanager
    async def enter(self, session_id: str, run_id: str, agent: str) -> AsyncGenerator[RunStart, None]:
        """Create the session if there is none, and hold it. Raises `Conflict` if the run is already recorded, or the session is of another framework."""
        session = await self._store.create_session(
            agent=agent, owner=self._owner, id=session_id, title=self._title, exist_ok=True
        )
        refuse_foreign(session, "choose another conversation_id")
        with suppress(NotFound):
            run = await self._store.run(run_id)
            raise Conflict(
                problem=f"run {run.id} is already recorded, and an explicit run id can be used only once"
            )
        self.accounts, _ = await open_accounts(self._store, session, self._budgets, turn=self._turn or run_id)
        # The session of a delegate may still be held by the process that died with the turn above: its deadline can be later than that turn's.
        patience = 0.0 if current_call.get() is None else 1.5 * self._store.settings.lease_ttl_seconds
        async with hold_lease(self._store, session_id, ttl=self._ttl, patience=patience) as lease:
            latest = (await self._store.checkpoints(session_id=session_id, limit=1)).items
            if self._continues is not ... and (latest[0] if latest else None) != self._continues:
                problem = f"session {session_id} has continued since its history was read; read it again"
                raise Conflict(problem=problem)
            if not latest:
                yield RunStart(lease, None, [])
                return
            bodies = await read_history(self._store, session_id, latest[0])
            messages = load(await self._offloader.back(bodies))
            yield RunStart(lease, latest[0], messages, session.status in SUSPENDED)

    def failure(self, error: BaseException, unwritten: Exception | None) -> Failure | None:
        """Record every failure. A cancelled run is recorded as interrupted."""
        del unwritten
        return Failure("interrupted" if isinstance(error, CANCELLATIONS) else "failed", error)
