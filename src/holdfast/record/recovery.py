"""Continue a session after a crash, from the last message or from any checkpoint: resume, continue, rewind, inspect."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from pydantic_ai import Agent, DeferredToolResults, ToolApproved
from pydantic_ai.messages import ModelMessage, ModelRequest, UserContent
from pydantic_ai.run import AgentRunResult

from holdfast.errors import Conflict, NotFound
from holdfast.ids import new_id
from holdfast.jsontext import read_recorded
from holdfast.leases import hold_lease
from holdfast.media import MediaStore
from holdfast.record.calls import missing_tools
from holdfast.record.capability import Holdfast
from holdfast.record.offloader import MediaOffloader
from holdfast.record.open_calls import close_open_calls, pending_calls, pending_effects
from holdfast.record.resume_point import continued_runs, load_history, prompt_aside
from holdfast.record.run_host import StandaloneRun
from holdfast.record.undo_plan import undo_plan
from holdfast.record.waits import Wait
from holdfast.store import Store
from holdfast.types import Batch, Checkpoint, Effect, Json, NewEvent, Run

T = TypeVar("T")
_SOME_MESSAGES = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """The state of a run: the checkpoints that it can continue from, and the outcomes of its tool calls."""

    run: Run
    latest: Checkpoint | None
    settled: Checkpoint | None
    unresolved: Sequence[Effect]
    completed: Sequence[Effect]
    failed: Sequence[Effect]


async def inspect_run(
    store: Store, run_id: str, *, media: MediaStore | None = None, whole: bool = True
) -> RunReport:
    """Report on a run. Raises `NotFound`. Large results are references to media unless `whole` is set."""
    run = await store.run(run_id)
    effects: list[Effect] = []
    cursor = None
    while True:
        page = await store.effects(run.session_id, run_id=run_id, cursor=cursor)
        effects += page.items
        cursor = page.next_cursor
        if cursor is None:
            break
    if whole:
        effects = await MediaOffloader(store, media).effects_back(effects)
    latest = (await store.checkpoints(run_id=run_id, limit=1)).items
    settled = (await store.checkpoints(run_id=run_id, kind="settled", limit=1)).items
    return RunReport(
        run=run,
        latest=latest[0] if latest else None,
        settled=settled[0] if settled else None,
        unresolved=[effect for effect in effects if effect.state == "started"],
        completed=[effect for effect in effects if effect.state == "completed"],
        failed=[effect for effect in effects if effect.state == "failed"],
    )


async def resume(agent: Agent[Any, T], store: Store, run_id: str, **options: Any) -> AgentRunResult[T]:
    """Continue an interrupted, failed or waiting run from its latest checkpoint, as a new run in the same session.

    Recorded results come from the ledger, calls that did not start are run, and for all others the tool's policy applies. A run
    that made no model request starts with its prompt again. Raises `Conflict` if the run has completed, is not the last of its
    session, or waits for answers that `deferred_tool_results` does not contain. If a tool of the run sleeps or waits for a signal and
    that is not over, the new run waits again.
    """
    run = await store.run(run_id)
    if run.status == "completed":
        raise Conflict(problem=f"run {run_id} has completed; there is nothing to resume")
    latest = (await store.checkpoints(session_id=run.session_id, limit=1)).items
    if not latest or latest[0].run_id != run_id:
        since = f"; resume {latest[0].run_id} instead" if latest and latest[0].run_id else ""
        raise Conflict(problem=f"run {run_id} has no checkpoint, or another run has continued since{since}")
    chain = await continued_runs(store, run_id)
    if any(item.is_undone for item in await undo_plan(store, run.session_id, [each.id for each in chain])):
        raise Conflict(problem=f"effects of run {run_id} were undone; send the message again")
    messages = await load_history(store, latest[0], media=_media(agent))
    check_tools(agent, messages)
    waits = pending_calls(messages)
    given: DeferredToolResults | None = options.get("deferred_tool_results")
    if waits and (given is not None or isinstance(messages[-1], ModelRequest)):
        effects = await pending_effects(store, run.session_id, messages)
        asleep = {
            key for key, effect in effects.items() if effect is not None and Wait.of(effect) is not None
        }
        calls = ", ".join(call.tool_call_id for call in waits if call.tool_call_id not in asleep)
        if calls and given is None:
            raise Conflict(
                problem=f"run {run_id} waits for answers to {calls}; pass them as deferred_tool_results"
            )
        given = given or DeferredToolResults()
        again = {key: ToolApproved() for key in asleep - given.approvals.keys() - given.calls.keys()}
        options["deferred_tool_results"] = replace(given, approvals={**given.approvals, **again})
    prompt = await prompt_aside(store, run, _media(agent)) if latest[0].seq == run.first_seq else None
    recording = await _recording(
        agent, store, run.session_id, latest[0], {"resumes": run_id}, turn=chain[-1].id
    )
    return await agent.run(
        prompt,
        message_history=messages,
        conversation_id=run.session_id,
        capabilities=[recording],
        **options,
    )


async def continue_session(
    agent: Agent[Any, T],
    store: Store,
    session_id: str,
    prompt: str | Sequence[UserContent],
    *,
    checkpoint: Checkpoint | None = None,
    **options: Any,
) -> AgentRunResult[T]:
    """Send a message to a session from its latest checkpoint, or from another one.

    Calls that an interrupted run left open are first closed with their recorded outcome, or with a note. Raises `Conflict` if
    another run continued the session meanwhile.
    """
    page = await store.checkpoints(session_id=session_id, limit=1)
    latest = page.items[0] if page.items else None
    if checkpoint is None:
        checkpoint = latest
    elif checkpoint.session_id != session_id:
        raise NotFound(what=f"checkpoint of session {session_id} with the id", id=checkpoint.id)
    media = _media(agent)
    messages: list[ModelMessage] = []
    if checkpoint is not None:
        messages = await load_history(store, checkpoint, media=media)
    closing = await close_open_calls(store, session_id, messages, MediaOffloader(store, media))
    return await agent.run(
        prompt,
        message_history=[*messages, *closing],
        conversation_id=session_id,
        capabilities=[await _recording(agent, store, session_id, latest, {})],
        **options,
    )


async def last_prompt(store: Store, checkpoint: Checkpoint) -> int | None:
    """Return the position of the last user prompt of a checkpoint. Reads backwards."""
    end = checkpoint.length
    while end > 0:
        start = max(0, end - _SOME_MESSAGES)
        after, position = start - 1, None
        while after + 1 < end and (
            page := await store.history(
                checkpoint.session_id, segment=checkpoint.segment, length=end, after=after
            )
        ):
            after = page[-1].position
            position = next((m.position for m in reversed(page) if _is_prompt(m.body)), position)
        if position is not None:
            return position
        end = start
    return None


def _is_prompt(body: Json) -> bool:
    message: dict[str, Any] = read_recorded(body)
    return message["kind"] == "request" and any(p["part_kind"] == "user-prompt" for p in message["parts"])


async def rewind(store: Store, checkpoint: Checkpoint) -> Checkpoint:
    """Make the session continue from this checkpoint. Later messages stay in the store."""
    place = Checkpoint(
        id=new_id(), segment=checkpoint.segment, length=checkpoint.length, kind=checkpoint.kind
    )
    async with hold_lease(store, checkpoint.session_id) as lease:
        await store.write(lease, Batch(checkpoints=[place], events=[NewEvent(kind="rewound")]))
    return await store.checkpoint(place.id)


def check_tools(agent: Agent[Any, Any], messages: Sequence[ModelMessage]) -> None:
    """Raise `Conflict` if the agent's own toolset no longer has the tools of the pending calls."""
    toolset = getattr(agent, "_function_toolset", None)
    known: Any = getattr(toolset, "tools", None)
    others = len(getattr(agent, "toolsets", ())) > 1
    if known is None or others:
        return  # dynamic toolsets are checked when the run starts
    missing = sorted({call.tool_name for call in pending_calls(messages)} - set(known))
    if missing:
        raise missing_tools(missing)


def _own(agent: Agent[Any, Any]) -> Holdfast | None:
    """Return the agent's own recorder, if it has one."""
    capabilities: list[Any] = []
    agent.root_capability.apply(capabilities.append)
    return next((capability for capability in capabilities if isinstance(capability, Holdfast)), None)


def _media(agent: Agent[Any, Any]) -> MediaStore | None:
    own = _own(agent)
    return None if own is None else own.media


async def _recording(
    agent: Agent[Any, Any],
    store: Store,
    session_id: str,
    latest: Checkpoint | None,
    metadata: dict[str, Any],
    turn: str | None = None,
) -> Holdfast:
    """Return the capability for this run: like the agent's own, but with this store, and by default for the session's owner.

    The run starts only if `latest` is still the session's latest checkpoint.
    """
    own = _own(agent) or Holdfast(store)
    owner = own.owner or (await store.session(session_id)).owner
    offloader = MediaOffloader(store, own.media, own.media_threshold)
    return Holdfast(
        store,
        agent=own.agent,
        owner=owner,
        metadata=own.metadata | metadata,
        policies=own.policies,
        probes=own.probes,
        undo=own.undos.values(),
        lease_ttl=own.lease_ttl,
        media=own.media,
        media_threshold=own.media_threshold,
        host=StandaloneRun(
            store,
            offloader,
            owner=owner,
            ttl=own.lease_ttl,
            continues=latest,
            budgets=own.budgets,
            turn=turn,
        ),
    )
