"""The Pydantic AI capability that records every run of an agent: its steps as events, its history, its tool calls.

It writes twice per step. The first write happens when a model request begins, after all earlier calls are settled. It runs while
the model works, and the response is held back until it is durable, so that nothing acts on results that could be lost. The second
write happens before the first tool runs. Tools wait for it unless they change nothing. The end of a tool call is written at once
while others run. The end of the last call, and the start of a run, are part of the next write, milliseconds later. If no model
request follows in that time, the prompt is stored separately. The recorder never runs a tool twice by itself.
"""

import asyncio
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    Callable,
    Collection,
    Generator,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import AbstractAsyncContextManager, aclosing, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast, get_args

from pydantic_ai import CallToolsNode, RunContext
from pydantic_ai.capabilities import AbstractCapability, CapabilityOrdering
from pydantic_ai.messages import AgentStreamEvent, ModelResponse, ToolCallPart, UserContent
from pydantic_ai.models import ModelRequestContext
from pydantic_ai.output import OutputContext
from pydantic_ai.run import AgentRunResult
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.toolsets import AbstractToolset, ToolsetTool, WrapperToolset

from holdfast.budgets import Budget, check_budgets
from holdfast.errors import AgentExited, BadInput, BudgetReached
from holdfast.ids import check_choice, check_id, check_name, title_from
from holdfast.jsontext import lenient_json
from holdfast.media import MediaStore
from holdfast.record import ledger
from holdfast.record.buffer import Beginning, Buffer
from holdfast.record.calls import Calls, missing_tools
from holdfast.record.delegates import Delegate, can_defer, continue_delegate
from holdfast.record.ending import complete_run, fail_run, wait_for_budget
from holdfast.record.history import open_history
from holdfast.record.ledger import Policy
from holdfast.record.offloader import RESPONDED, MediaOffloader
from holdfast.record.open_calls import close_open_calls, pending_calls
from holdfast.record.probes import Probe
from holdfast.record.run_host import RunHost, RunStart, StandaloneRun, waited_runs
from holdfast.record.steps import current_steps
from holdfast.record.threads import RunThreads
from holdfast.record.tool_execution import ToolExecution, run_event
from holdfast.record.undo import AnyUndo, undos_by_name
from holdfast.store import Store, open_store
from holdfast.tasks import ended_with
from holdfast.tracing import mark_span
from holdfast.types import Run

_recorder: ContextVar["_Recorder | None"] = ContextVar("holdfast_recorder", default=None)
"""The recorder of the current run. Runs that its tools start become its child runs."""
_stand_in: ContextVar[AbstractCapability[Any] | None] = ContextVar("holdfast_stand_in", default=None)


@contextmanager
def replaced_recorders(capability: AbstractCapability[Any]) -> Generator[None, None, None]:
    """Use a capability in the place of every recorder, so that nothing is recorded."""
    token = _stand_in.set(capability)
    try:
        yield
    finally:
        _stand_in.reset(token)


async def annotate_effect(
    ctx: RunContext[Any] | None = None, *, summary: str | None = None, key: str | None = None
) -> None:
    """Set a summary or an idempotency key on the ledger entry of the running step or tool call. It is kept after the call ends.

    Outside a step, pass the tool's `ctx`. Does nothing if the run is not recorded, so that you can test tools in isolation.
    """
    steps, ref = current_steps(), ledger.current_call.get()
    if steps is not None and ref is not None and await steps.annotate(ref, summary, key):
        return
    recorder = _recorder.get()
    if recorder is not None and ctx is not None and ctx.tool_call_id is not None:
        await recorder.annotate(ctx.tool_call_id, summary, key)


@dataclass(init=False, eq=False)
class Holdfast(AbstractCapability[Any]):
    """Record every run of the agent in a store. The session is the run's `conversation_id`.

    Pass an open store, or a URL. With a URL, each run opens and closes the store. This suits scripts and `Agent.from_spec`.

    A run without a `message_history` continues the session from its recorded history. With `fresh` it starts with an empty
    history instead. If a tool starts a run in the same conversation, that run becomes a child run with its own session and
    history.

    `policies` and `probes` set, by tool name, how to handle calls with an unknown outcome after a crash. A tool can also set them
    in its metadata: `metadata={"recovery": "retry", "probe": …}`. `undo` lists the functions that undo steps. New sessions belong to `owner`. The default is the owner of the
    parent run, or `local` if there is none. Sessions of other owners are treated as missing. Content of at least
    `media_threshold` bytes is moved to the `media` store. Both parameters default to the store's settings. `run_id` sets the id
    of the run, which must be new. `budgets` limit its turns, its session and the agent. A capability passed to a run replaces the agent's own. `host` is for workers: it holds the
    session's lease and may stop the run.

    Raises `UnknownStore` for an invalid URL and `BadInput` for other invalid values when it is created.
    """

    def __init__(
        self,
        store: Store | str,
        *,
        agent: str | None = None,
        owner: str | None = None,
        run_id: str | None = None,
        parent_run_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        policies: Mapping[str, Policy] | None = None,
        probes: Mapping[str, Probe] | None = None,
        undo: Iterable[AnyUndo] = (),
        lease_ttl: float | None = None,
        host: RunHost | None = None,
        media: MediaStore | None = None,
        media_threshold: int | None = None,
        fresh: bool = False,
        budgets: Sequence[Budget] = (),
    ) -> None:
        _check_store(store)
        for name, what in ((agent, "agent"), (owner, "owner")):
            if name is not None:
                check_name(name, what)
        for value, what in ((run_id, "run id"), (parent_run_id, "parent run id")):
            if value is not None:
                check_id(value, what)
        for tool, policy in (policies or {}).items():
            check_choice(policy, get_args(Policy), f"recovery policy of tool {tool!r}")
        self.id = "holdfast"
        self.fresh = fresh
        self.budgets = check_budgets(budgets)
        self.media = media
        self.media_threshold = media_threshold
        self.store = store
        self.lease_ttl = lease_ttl
        self.agent = agent
        self.owner = owner
        self.run_id = run_id
        self.parent_run_id = parent_run_id
        self.metadata = dict(metadata or {})
        self.policies: dict[str, Policy] = dict(policies or {})
        self.probes: dict[str, Probe] = dict(probes or {})
        self.undos = undos_by_name(undo)
        self.host = host

    def get_ordering(self) -> CapabilityOrdering:
        """Wrap all other capabilities, so that their changes are recorded."""
        return CapabilityOrdering(position="outermost")

    def get_default_run_id(self) -> str | None:
        """Return the requested run id, or that of a delegate that can be suspended with the call that starts it."""
        outer = _recorder.get()
        if self.run_id is None and self.host is None and outer is not None and outer.is_active:
            delegate = Delegate.begin(outer.buffer)
            return delegate and delegate.run_id
        return self.run_id

    async def for_run(self, ctx: RunContext[Any]) -> AbstractCapability[Any]:
        """Return the recorder of one run."""
        del ctx
        outer = _recorder.get()
        return _stand_in.get() or _Recorder(self, outer if outer is not None and outer.is_active else None)


def _check_store(store: object) -> None:
    """Raise an error if the URL is not a valid store URL. Does not connect."""
    if isinstance(store, str):
        open_store(store)
    elif not isinstance(store, Store):
        raise BadInput(problem=f"the store must be a URL or an open store, not {type(store).__name__}")


@dataclass
class _Unapproving(WrapperToolset[Any]):
    """Lets calls that run again after a wait not look approved: Pydantic AI runs a deferred call again only as an approved one."""

    calls: Collection[str] = ()

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]
    ) -> Any:
        if ctx.tool_call_id in self.calls:
            ctx = replace(ctx, tool_call_approved=False)
        return await super().call_tool(name, tool_args, ctx, tool)


def _opened(store: Store | str) -> AbstractAsyncContextManager[Store]:
    return open_store(store) if isinstance(store, str) else nullcontext(store)


class _Recorder(AbstractCapability[Any]):
    """Records one run. Its hooks are in the order in which they are called."""

    store: Store
    _offloader: MediaOffloader
    _host: RunHost
    _calls: Calls
    buffer: Buffer

    def __init__(self, settings: Holdfast, outer: "_Recorder | None") -> None:
        self.id = settings.id
        self.owner = settings.owner or (outer.owner if outer else "local")
        self.run_id = ""
        self.session_id = ""
        self.outer = outer  # records the run whose tool starts this one
        self.is_active = False
        self.can_defer = False
        self._threads = RunThreads()
        self._unapproved: set[str] = set()
        self._caller: asyncio.Task[Any] | None = None  # runs the agent; `wrap_run` runs in another task
        self._settings = settings
        self._metadata = settings.metadata
        self._delegate: Delegate | None = None
        self._first_node: Callable[[Any], Any] | None = None  # changes it for a delegate that continues
        self._parent = settings.parent_run_id or (outer.run_id if outer else None)

    def get_ordering(self) -> CapabilityOrdering:
        return CapabilityOrdering(position="outermost")

    def get_wrapper_toolset(self, toolset: AbstractToolset[Any]) -> AbstractToolset[Any]:
        return _Unapproving(toolset, self._unapproved)

    def _prepare_run_context(self, ctx: RunContext[Any]) -> None:
        # The only hook that Pydantic AI calls in the task of the run, before it starts another task for `wrap_run`.
        del ctx
        self._caller = asyncio.current_task()

    async def wrap_run(self, ctx: RunContext[Any], *, handler: Any) -> AgentRunResult[Any]:
        if ctx.run_id is None or ctx.conversation_id is None:
            message = "a run without an id cannot be recorded"
            raise RuntimeError(message)
        self.run_id = ctx.run_id
        self.can_defer = can_defer(ctx.agent, hosted=self._settings.host is not None)
        agent = self._settings.agent or getattr(ctx.agent, "name", None) or "agent"
        self._delegate = Delegate.of_run(ctx.run_id)
        with ended_with(self._caller):
            async with _opened(self._settings.store) as self.store:
                self._use_store(ctx.prompt)
                self.session_id = self._own_session(ctx.conversation_id)
                earlier: Run | None = None
                if self._delegate is not None:
                    earlier = await self._delegate.earlier(self.store)
                    if earlier is not None and earlier.status == "completed":
                        return await self._delegate.repeated(
                            self.store, ctx.agent, earlier, self._settings.media
                        )
                    await self._delegate.started(self.store, earlier)
                    self.session_id = self.session_id if earlier is None else earlier.session_id
                mark_span(session_id=self.session_id, run_id=self.run_id)
                async with self._host.enter(self.session_id, ctx.run_id, agent) as start:
                    if earlier is None:
                        await self._continue(ctx, start)
                    else:
                        self._metadata = {**self._metadata, "resumes": earlier.id}
                        self._first_node = await continue_delegate(
                            ctx, self._host, self.store, earlier, self._settings.media
                        )
                    await self._begin(ctx, start, agent)
                    result = await self._run(handler)
                    questions = await self._complete(result)
                    if self._delegate is not None:
                        run = replace(self.buffer.run, session_id=self.session_id)
                        await self._delegate.ended(run, self._calls, result, questions)
                    return result

    def _use_store(self, prompt: str | Sequence[UserContent] | None) -> None:
        settings = self._settings
        self._offloader = MediaOffloader(self.store, settings.media, settings.media_threshold)
        texts = [prompt] if isinstance(prompt, str) else prompt or []
        title = next((title for text in texts if isinstance(text, str) and (title := title_from(text))), "")
        self._host = settings.host or StandaloneRun(
            self.store,
            self._offloader,
            owner=self.owner,
            ttl=settings.lease_ttl,
            title=title,
            budgets=settings.budgets,
        )

    def _own_session(self, conversation_id: str) -> str:
        """Return the run's session: its conversation, or a new session if an outer run holds that one."""
        outer = self.outer
        while outer is not None:
            if outer.session_id == conversation_id and outer.store.url == self.store.url:
                return self.run_id if self._delegate is None else self._delegate.session_id
            outer = outer.outer
        return conversation_id

    async def _continue(self, ctx: RunContext[Any], start: RunStart) -> None:
        """Continue from the recorded history if the caller passed none. The host of a turn always passes one."""
        if ctx.messages or self._settings.fresh or self._settings.host is not None:
            return
        ctx.messages.extend(start.messages)
        if ctx.prompt is not None:
            ctx.messages.extend(
                await close_open_calls(self.store, self.session_id, start.messages, self._offloader)
            )

    async def _run(self, handler: Any) -> AgentRunResult[Any]:
        token = _recorder.set(self)
        self.is_active = True
        try:
            return await handler()
        except SystemExit as error:  # raised out of this task it would end the event loop
            exited = AgentExited(what="The agent", error=ledger.describe(error))
            await self._fail(exited)
            raise exited from error
        except BaseException as error:
            await self._fail(error)
            if self._delegate is not None:
                self._delegate.failed(error)
            raise
        finally:
            self.is_active = False
            with suppress(ValueError):  # a stream may end in another context
                _recorder.reset(token)

    async def before_model_request(
        self, ctx: RunContext[Any], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        for content in await self._host.incoming():
            ctx.enqueue(*content)
        return request_context

    async def before_node_run(self, ctx: RunContext[Any], *, node: Any) -> Any:
        if self._first_node is not None:
            node, self._first_node = self._first_node(node), None
        # Pydantic AI would answer that the tool does not exist, even if the call was started, and its outcome would be lost.
        if isinstance(node, CallToolsNode):
            known = ctx.tool_manager and ctx.tool_manager.tools
            if self._calls.inherited:
                self._calls.inherited = False
                missing = sorted(self._calls.tools - set(known or ()))
                if known is not None and missing:
                    raise missing_tools(missing)
            for call in pending_calls([node.model_response]):
                if known is not None and call.tool_name in known:
                    self._calls.read_deadline(known[call.tool_name].tool_def)
        return node  # pyright: ignore[reportUnknownVariableType]

    async def wrap_model_request(
        self, ctx: RunContext[Any], *, request_context: ModelRequestContext, handler: Any
    ) -> ModelResponse:
        # Every tool call is answered here: a run can continue from this point.
        if self._host.is_stopping():  # before the request is recorded: it is not sent
            self.buffer.start(self.buffer.take_step(ctx.messages, "settled", ctx.run_step))
            await self._host.settled()
        started = run_event(ctx, "model_request_started")
        try:
            await self.buffer.ask(
                self.buffer.take_step(ctx.messages, "settled", ctx.run_step, started), started
            )
        except BudgetReached as reached:
            wait = await wait_for_budget(self.buffer, self._host, ctx.messages, reached)
            if self._delegate is not None and self.outer is not None and self.outer.can_defer:
                await self._delegate.suspended(wait)
            raise
        try:
            response, counted = await self.buffer.meter.request(
                handler(request_context), request_context.model.model_name
            )
        except BaseException as error:
            self.buffer.add(run_event(ctx, "model_request_failed", error=ledger.describe(error)))
            raise
        try:
            await self.buffer.join()
        finally:  # the request was made, even if the run is stopped here
            self.buffer.responded(run_event(ctx, RESPONDED), counted, request_context, ctx.messages)
        self._calls.made_by(response)
        return response

    @property
    def has_wrap_run_event_stream(self) -> bool:
        """Whether this capability requires streaming. Always false: the wrapper only delays a stream."""
        return False

    def wrap_run_event_stream(
        self, ctx: RunContext[Any], *, stream: AsyncIterable[AgentStreamEvent]
    ) -> AsyncIterable[AgentStreamEvent]:
        # A consumer sees a response only when the results that it responds to are durable.
        del ctx
        return stream if self.buffer.is_durable else self._when_durable(stream)

    async def _when_durable(
        self, stream: AsyncIterable[AgentStreamEvent]
    ) -> AsyncGenerator[AgentStreamEvent, None]:
        await self.buffer.join()
        async with aclosing(cast("AsyncGenerator[AgentStreamEvent, None]", stream)) as events:
            async for event in events:
                yield event

    async def wrap_tool_execute(
        self,
        ctx: RunContext[Any],
        *,
        call: ToolCallPart,
        tool_def: ToolDefinition,
        args: dict[str, Any],
        handler: Any,
    ) -> Any:
        execution = ToolExecution(
            ctx=ctx,
            call=call,
            args=args,
            store=self.store,
            buffer=self.buffer,
            calls=self._calls,
            offloader=self._offloader,
            host=self._host,
            threads=self._threads,
            unapproved=self._unapproved,
            undos=self._settings.undos,
        )
        return await execution.run(tool_def, handler)

    async def wrap_output_process(
        self, ctx: RunContext[Any], *, output_context: OutputContext, output: Any, handler: Any
    ) -> Any:
        if ctx.partial_output or not output_context.has_function:
            return await handler(output)
        call = output_context.tool_call
        place = ("the output function", "output") if call is None else (call.tool_name, call.tool_call_id)
        async with self._threads.call(None, partial(self.buffer.waiting_for_thread, *place)) as threaded:
            return await threaded.run_tool(self._threads, handler(output))

    def record_call(self) -> None:
        """Start to write the call that starts another run, so that it is recorded before that run."""
        self.buffer.start_delayed()

    async def annotate(self, call_id: str, summary: str | None, key: str | None) -> None:
        """Annotate the ledger entry of a running call."""
        noted = self._calls.annotate(call_id, summary, key)
        if noted is not None:
            await self.buffer.write_note(noted)

    async def _begin(self, ctx: RunContext[Any], start: RunStart, agent: str) -> None:
        """Find the position in the recorded history where this run continues, and record its start."""
        lease = start.lease
        history = await open_history(self.store, lease.session_id, start.checkpoint, start.messages)
        waited = await waited_runs(self.store, start)
        self._calls = Calls(self.run_id, self._settings.policies, self._settings.probes)
        await self._inherit_calls(ctx, start)
        metadata = lenient_json(self._metadata)
        self.buffer = Buffer(
            self.store,
            lease,
            Run(id=self.run_id, agent=agent, parent_id=self._parent, metadata=metadata),
            host=self._host,
            offloader=self._offloader,
            calls=self._calls,
            history=history,
        )
        self.buffer.meter.model = ctx.model.model_name
        started = run_event(ctx, "run_started", agent=agent, parent=self._parent)
        if self.outer is not None and self.outer.is_active:
            self.buffer.accounts = self.outer.buffer.accounts
            self.outer.record_call()
        self.buffer.begin(Beginning(started, list(ctx.messages), ctx.prompt, waited))

    async def _inherit_calls(self, ctx: RunContext[Any], start: RunStart) -> None:
        """Take over the open calls: this run carries them out, or has received their answers."""
        carried_out = pending_calls(ctx.messages)
        pending = carried_out or pending_calls(start.messages)
        if not pending:
            return
        messages = ctx.messages if carried_out else start.messages
        await self._calls.inherit(self.store, start.lease.session_id, messages, pending)
        await self._calls.load_results(self._offloader.effects_back)
        self._calls.inherited = bool(carried_out and self._calls.tools)

    async def _complete(self, result: AgentRunResult[Any]) -> list[dict[str, Any]]:
        """Record that the run completed, or that it waits for answers. Return the questions."""
        await (await self._threads.recorded()).deliver()
        messages = result.all_messages()
        deferred = self._calls.deferred(messages, result.output)
        return await complete_run(
            self.buffer,
            self._host,
            messages,
            result.output,
            effects=deferred,
            notes=self._calls.notes(result.output),
            waits=self._calls.waits,
            deadlines=self._calls.deadlines(result.output),
        )

    async def _fail(self, error: BaseException) -> None:
        """Record the end of the run as its host decides."""
        await fail_run(self.buffer, self._host, error, self._threads)
