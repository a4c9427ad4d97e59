"""Check a recorded session against today's code of its agent, without asking a model or running a tool.

The session is read from an archive into a store in memory, so that its own store is not touched, and none is needed.
"""

import asyncio
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final, Protocol

from pydantic_ai import DeferredToolRequests, DeferredToolResults, ToolApproved, ToolDenied, UsageLimits
from pydantic_ai.exceptions import UnexpectedModelBehavior
from pydantic_ai.models import Model

from holdfast.errors import BadInput, NotFound
from holdfast.framework_sessions import framework_of
from holdfast.media import open_media
from holdfast.record.capability import Holdfast, replaced_recorders
from holdfast.record.ledger import describe
from holdfast.record.open_calls import pending_calls
from holdfast.replay.answering import Answering, RecordedModel, RecordEnds
from holdfast.replay.compare import Found
from holdfast.replay.recording import Recording, read_run, read_runs
from holdfast.replay.report import Difference, ReplayReport
from holdfast.retention import import_archive, spool
from holdfast.runtime.agents import Agents, Served, by_name
from holdfast.runtime.pydantic_agent import AgentSetup, output_type
from holdfast.store import Store, open_store
from holdfast.types import Session

_MOST_TOUCHED: Final = 100
_WATCHED: Final = {"open": 0, "socket.connect": 1, "subprocess.Popen": 0, "os.system": 0}
"""The events of Python's audit hook that are reported, and the argument that names the file, the address or the program."""
_IMPORTS: Final = (".py", ".pyc", ".so", ".pyi")
_watching: list[list[str]] = []
_is_hooked = False


class Archived(Protocol):
    """A session that can be exported, such as `SessionHandle`."""

    def archive(self, *, gzip: bool = False) -> AsyncGenerator[bytes, None]:
        """Yield the session as an archive, piece by piece."""
        ...


async def replay(
    session: Archived | str | Path,
    agents: Agents,
    *,
    run_id: str | None = None,
    deps: Any = None,
) -> ReplayReport:
    """Check a session, or an archive file, against today's code of its agent. Nothing is written to it, no model is asked and no tool runs.

    Each model request that the code would make is compared with the recorded one, and answered with the recorded response; calls get their
    recorded results. Instructions, validators and plain code outside of tools do run. If several agents are passed, the one with the name of
    the session's agent is checked, else the only one. `run_id` limits the check to one run. `deps` are the dependencies of an agent that is not
    in an `AgentSetup`. Raises `BadArchive`, and `BadInput` if the session cannot be replayed.
    """
    try:
        archive = await _opened(session)
    except OSError as error:
        raise BadInput(problem=f"{session} cannot be read: {error.strerror}") from error
    with archive:
        return await check_archive(archive, agents, run_id=run_id, deps=deps)


async def _opened(source: Archived | str | Path) -> IO[bytes]:
    if isinstance(source, str | Path):
        return await asyncio.to_thread(Path(source).open, "rb")
    return await spool(source.archive())  # noqa: ASYNC240 - it is not a path


async def check_archive(
    archive: IO[bytes],
    agents: Agents,
    *,
    run_id: str | None = None,
    deps: Any = None,
) -> ReplayReport:
    """Check the session of an archive, as `replay` does."""
    served = by_name(agents)
    async with open_store("sqlite://:memory:") as store:
        media = open_media(store=store)
        session_id = (await import_archive(store, media, archive, actor="replay")).session_id
        session = await store.session(session_id)
        setup = _setup_of(session, served)
        checks = _Replay(store, session, setup, deps)
        runs = [run async for run in read_runs(store, session_id) if run_id in {None, run.id}]
        if run_id is not None and not runs:
            raise NotFound(what=f"run of session {session_id} with the id", id=run_id)
        with _watched() as touched:
            for run in runs:
                if run.agent == session.agent:
                    await checks.check(await read_run(store, media, run))
        return ReplayReport(
            session_id=session_id,
            agent=session.agent,
            runs=checks.runs,
            requests=checks.requests,
            differences=checks.differences,
            unchecked=list(dict.fromkeys(checks.unchecked)),
            touched=touched,
        )


def _setup_of(session: Session, served: dict[str, Served]) -> AgentSetup:
    if (framework := framework_of(session)) is not None:
        raise BadInput(
            problem=f"session {session.id} belongs to {framework}, whose agents cannot be replayed"
        )
    setup = served.get(session.agent) or (next(iter(served.values())) if len(served) == 1 else None)
    if setup is None:
        raise BadInput(problem=f"session {session.id} runs agent {session.agent!r}, which was not passed")
    if not isinstance(setup, AgentSetup):
        raise BadInput(problem="a session of a plain agent cannot be replayed yet")
    return setup


class _Replay:
    """Checks the runs of one session. A difference is reported once for each run of equal ones."""

    def __init__(self, store: Store, session: Session, setup: AgentSetup, deps: Any) -> None:
        self._store, self._session, self._setup, self._deps = store, session, setup, deps
        self._known: set[str] = set()
        self.runs = 0
        self.requests = 0
        self.differences: list[Difference] = []
        self.unchecked: list[str] = []

    async def check(self, recording: Recording) -> None:
        """Check one run."""
        self.unchecked += recording.unchecked
        if not recording.requests:
            return
        self.runs += 1
        rejected = False

        def found(step: int, difference: Found) -> None:
            nonlocal rejected
            kind, name, before, after = difference
            rejected = rejected or kind in {"call_rejected", "output_rejected"}
            key = repr(difference)
            if key not in self._known:
                self._known.add(key)
                self.differences.append(
                    Difference(
                        kind=kind, run_id=recording.run.id, step=step, name=name, before=before, after=after
                    )
                )

        model = self._model(recording)
        answering = Answering(recording, model, found)
        deps = self._deps if self._setup.deps is None else await self._setup.make_deps(self._session)
        try:
            with replaced_recorders(answering):
                result = await self._setup.agent.run(
                    recording.prompt,
                    message_history=list(recording.before),
                    deferred_tool_results=_results(recording),
                    conversation_id=self._session.id,
                    output_type=output_type(self._setup.agent),
                    model=model,
                    deps=deps,
                    capabilities=[Holdfast(self._store)],
                    usage_limits=UsageLimits(request_limit=None),
                )
        except RecordEnds:
            pass
        except Exception as error:  # noqa: BLE001 - the code of the agent may raise anything, and that is a finding
            if (
                isinstance(error, UnexpectedModelBehavior) and rejected
            ):  # the recorded responses do not know of the rejection
                self.unchecked.append(
                    f"run {recording.run.id} after step {answering.step}, since a call was rejected"
                )
            else:
                found(answering.step, ("fails", "", recording.run.status, describe(error)))
        else:
            if isinstance(result.output, DeferredToolRequests):
                for call in (*result.output.approvals, *result.output.calls):
                    if call.tool_call_id in recording.outcomes:
                        found(answering.step, ("call_waits", call.tool_name, None, call.tool_call_id))
            elif answering.left:
                found(answering.step, ("ends_early", "", len(recording.requests), answering.compared))
        self.requests += answering.compared

    def _model(self, recording: Recording) -> RecordedModel:
        given = self._setup.model_of(self._session) or self._setup.agent.model
        profile = next((each.profile for each in recording.requests if each.profile is not None), None) or {}
        if isinstance(given, Model):
            return RecordedModel(given.model_name, given.system, given)
        name = str(profile.get("model", "")) if given is None else given.rpartition(":")[2]
        return RecordedModel(name, str(profile.get("provider", "")), None)


def _results(recording: Recording) -> DeferredToolResults | None:
    """Return the recorded outcomes of the calls with which the run continued, as answers; None if there were none."""
    calls = pending_calls(recording.before)
    if not calls or recording.prompt is not None:
        return None
    results = DeferredToolResults()
    tools = {
        tool["name"]: tool["kind"]
        for request in recording.requests[:1]
        for tool in (request.profile or {}).get("tools", ())
    }
    for call in calls:
        outcome = recording.outcomes.get(call.tool_call_id)
        if outcome is not None and tools.get(call.tool_name) == "external":
            results.calls[call.tool_call_id] = outcome.content
        elif outcome is not None and outcome.outcome == "denied":
            results.approvals[call.tool_call_id] = ToolDenied(str(outcome.content))
        else:
            results.approvals[call.tool_call_id] = ToolApproved()
    return results


@contextmanager
def _watched() -> Generator[list[str], None, None]:
    """Collect the files, sockets and processes that are opened meanwhile, besides imported modules."""
    global _is_hooked  # noqa: PLW0603 - an audit hook cannot be removed, so it is added once
    if not _is_hooked:
        sys.addaudithook(_notice)
        _is_hooked = True
    touched: list[str] = []
    _watching.append(touched)
    try:
        yield touched
    finally:
        _watching.remove(touched)


def _notice(event: str, arguments: tuple[Any, ...]) -> None:
    if not _watching or event not in _WATCHED:
        return
    text = f"{event} {arguments[_WATCHED[event]]}"
    if text.endswith(_IMPORTS):
        return
    for touched in _watching:
        if text not in touched and len(touched) < _MOST_TOUCHED:
            touched.append(text)
