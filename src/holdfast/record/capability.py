"""The Pydantic AI capability that records every run of an agent: its steps as events, its history, its tool calls.

It writes twice per step: when a model request begins (what came before is settled), and before the first tool runs
(the response is the frontier). A tool's end is written at once while others run; the last one's is part of the write
that follows, which is at most a moment away. So is the beginning of a run: its prompt is in the first request, and is
set aside with the beginning if no request comes in that moment. It never runs a tool twice by itself.
"""

import asyncio
from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

from pydantic_ai import CallToolsNode, RunContext
from pydantic_ai.capabilities import AbstractCapability, CapabilityOrdering
from pydantic_ai.exceptions import ApprovalRequired, CallDeferred, ToolFailedError, ToolRetryError
from pydantic_ai.messages import ModelMessage, ModelResponse, ToolCallPart, ToolReturnPart, UserContent
from pydantic_ai.models import ModelRequestContext
from pydantic_ai.run import AgentRunResult
from pydantic_ai.tools import ToolDefinition
from pydantic_core import PydanticSerializationError, to_jsonable_python

from holdfast.errors import AgentExited, HoldfastError
from holdfast.ids import title_from
from holdfast.jsontext import lenient_json
from holdfast.media import MediaStore
from holdfast.record import ledger
from holdfast.record.buffer import Beginning, Buffer
from holdfast.record.calls import Calls, missing_tools
from holdfast.record.closing import close_open_calls
from holdfast.record.history import open_history
from holdfast.record.host import Failure, RunHost, RunStart, StandaloneRun
from holdfast.record.ledger import Policy
from holdfast.record.offloader import COMPLETED, MediaOffloader
from holdfast.record.validity import pending_calls
from holdfast.store import Store, open_store
from holdfast.tracing import mark_span
from holdfast.types import Batch, Effect, Json, NewEvent, Run

_recorder: ContextVar["_Recorder | None"] = ContextVar("holdfast_recorder", default=None)
"""The recorder of the run that calls this code: the parent of any run that a tool of it starts."""


async def annotate_effect(
    ctx: RunContext[Any], *, summary: str | None = None, key: str | None = None
) -> None:
    """Note on the ledger entry of the running tool call what it did, or the key it used. Survives the call's end.

    Does nothing where no run is recorded, so that tools can be tested on their own.
    """
    recorder = _recorder.get()
    if recorder is not None and ctx.tool_call_id is not None:
        await recorder.annotate(ctx.tool_call_id, summary, key)


@dataclass(init=False, eq=False)
class Holdfast(AbstractCapability[Any]):
    """Record every run of the agent in a store. The session is the run's `conversation_id`.

    Pass an open store, or a URL: then each run opens the store and closes it, which suits scripts and `Agent.from_spec`.

    A run without a `message_history` continues the session from its recorded history. With `fresh` it starts with an empty
    one instead. A run that a tool starts in the conversation of its own agent is a child with a session and a history of its own.

    `policies` says by tool name what becomes of a call whose outcome is unknown after a crash; a tool may say it
    itself with `metadata={"recovery": "retry"}`. New sessions belong to `owner`; by default to the owner of the run whose tool
    starts this one, else to `local`. A session of another owner does not exist for this agent. Content of at least `media_threshold` bytes goes to the `media` store;
    both are those of the store's settings unless they are given. `run_id` names the run; a second one with that name is refused. The
    capability given for a run stands in for the agent's own. `host` is for workers: it holds the session and may stop the run.
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
        lease_ttl: float | None = None,
        host: RunHost | None = None,
        media: MediaStore | None = None,
        media_threshold: int | None = None,
        fresh: bool = False,
    ) -> None:
        self.id = "holdfast"
        self.fresh = fresh
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
        self.host = host

    def get_ordering(self) -> CapabilityOrdering:
        """Stand outside of all others: what they change is what is recorded."""
        return CapabilityOrdering(position="outermost")

    def get_default_run_id(self) -> str | None:
        """Return the id that was asked for."""
        return self.run_id

    async def for_run(self, ctx: RunContext[Any]) -> AbstractCapability[Any]:
        """Return what records this one run."""
        del ctx
        outer = _recorder.get()
        return _Recorder(self, outer if outer is not None and outer.is_active else None)


class _Recorder(AbstractCapability[Any]):
    """Records one run. Its hooks are the moments of a run, in their order."""

    store: Store
    _offloader: MediaOffloader
    _host: RunHost
    _calls: Calls
    _buffer: Buffer

    def __init__(self, settings: Holdfast, outer: "_Recorder | None") -> None:
        self.id = settings.id
        self.owner = settings.owner or (outer.owner if outer else "local")
        self.run_id = ""
        self.session_id = ""
        self.outer = outer  # records the run whose tool starts this one
        self.is_active = False
        self._caller: asyncio.Task[Any] | None = None  # runs the agent; `wrap_run` has a task of its own
        self._settings = settings
        self._parent = settings.parent_run_id or (outer.run_id if outer else None)

    def get_ordering(self) -> CapabilityOrdering:
        return CapabilityOrdering(position="outermost")

    def _prepare_run_context(self, ctx: RunContext[Any]) -> None:
        # The one hook that Pydantic AI calls in the task of the run before it starts another for `wrap_run`.
        del ctx
        self._caller = asyncio.current_task()

    async def wrap_run(self, ctx: RunContext[Any], *, handler: Any) -> AgentRunResult[Any]:
        if ctx.run_id is None or ctx.conversation_id is None:
            message = "a run without an id cannot be recorded"
            raise RuntimeError(message)
        self.run_id = ctx.run_id
        agent = self._settings.agent or getattr(ctx.agent, "name", None) or "agent"
        with _ended_with(self._caller):
            async with self._opened() as self.store:
                self._use_store(ctx.prompt)
                self.session_id = self._own_session(ctx.conversation_id)
                mark_span(session_id=self.session_id, run_id=self.run_id)
                async with self._host.enter(self.session_id, ctx.run_id, agent) as start:
                    await self._continue(ctx, start)
                    await self._begin(ctx, start, agent)
                    result = await self._run(handler)
                    await self._complete(result)
                    return result

    def _opened(self) -> AbstractAsyncContextManager[Store]:
        store = self._settings.store
        return open_store(store) if isinstance(store, str) else nullcontext(store)

    def _use_store(self, prompt: str | Sequence[UserContent] | None) -> None:
        settings = self._settings
        self._offloader = MediaOffloader(self.store, settings.media, settings.media_threshold)
        texts = [prompt] if isinstance(prompt, str) else prompt or []
        title = next((title for text in texts if isinstance(text, str) and (title := title_from(text))), "")
        self._host = settings.host or StandaloneRun(
            self.store, self._offloader, owner=self.owner, ttl=settings.lease_ttl, title=title
        )

    def _own_session(self, conversation_id: str) -> str:
        """Return the session of this run. The conversation of the run that started it is held by that run."""
        outer = self.outer
        while outer is not None:
            if outer.session_id == conversation_id and outer.store.url == self.store.url:
                return self.run_id
            outer = outer.outer
        return conversation_id

    async def _continue(self, ctx: RunContext[Any], start: RunStart) -> None:
        """Continue from the recorded history if the caller gave none. The host of a turn always gives one."""
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
        except SystemExit as error:  # out of this task it would end the event loop
            exited = AgentExited(what="The agent", error=_said(error))
            await self._fail(exited)
            raise exited from error
        except BaseException as error:
            await self._fail(error)
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
        # Pydantic AI tells the model that there is no such tool, also of a call that was begun: it would be forgotten.
        if self._calls.inherited and isinstance(node, CallToolsNode):
            self._calls.inherited = False
            known = ctx.tool_manager and ctx.tool_manager.tools
            missing = sorted(self._calls.tools - set(known or ()))
            if known is not None and missing:
                raise missing_tools(missing)
        return node  # pyright: ignore[reportUnknownVariableType]

    async def wrap_model_request(
        self, ctx: RunContext[Any], *, request_context: ModelRequestContext, handler: Any
    ) -> ModelResponse:
        # Every tool call is answered here: a run can continue from this point.
        started = self._event(ctx, "model_request_started")
        await self._buffer.write(self._buffer.take_step(ctx.messages, "settled", ctx.run_step, started))
        await self._host.settled()
        try:
            response: ModelResponse = await handler(request_context)
        except BaseException as error:
            self._buffer.add(self._event(ctx, "model_request_failed", error=_said(error)))
            raise
        self._buffer.add(self._event(ctx, "model_request_completed", **response_facts(response)))
        self._calls.made_by(response)
        return response

    async def wrap_tool_execute(
        self,
        ctx: RunContext[Any],
        *,
        call: ToolCallPart,
        tool_def: ToolDefinition,
        args: dict[str, Any],
        handler: Any,
    ) -> Any:
        facts = {"tool": call.tool_name, "call_id": call.tool_call_id}
        ref = self._calls.ref(ctx.messages, call.tool_call_id)
        known = self._calls.entry(ref)
        if known is not None and (answer := self._calls.answer(ctx, known, tool_def)) is not None:
            if not self._calls.waits(ref):
                outcome = {} if ledger.is_known(known) else {"outcome": "unknown"}
                self._buffer.add(self._event(ctx, "tool_call_completed", **facts, **outcome))
            return answer()
        effect = self._calls.begin(ref, call.tool_name, ctx.run_step, args)
        started = self._event(ctx, "tool_call_started", **facts)
        # The response, with all its calls, is durable before the first of them runs.
        await self._buffer.write(
            self._buffer.take_step(ctx.messages, "interrupted", ctx.run_step, started, effects=[effect])
        )
        token = ledger.current_call.set(ref)
        task = asyncio.current_task()
        try:
            value = await handler(args)
        except BaseException as error:
            if _can_be_recorded(error, task):
                await self._record_error(ctx, effect, error)
            raise
        finally:
            ledger.current_call.reset(token)  # a delegate's calls are not the caller's
        self._calls.returns(ref, ToolReturnPart(call.tool_name, value, call.tool_call_id))
        await self._settle(ctx, effect, "tool_call_completed")
        return value

    async def annotate(self, call_id: str, summary: str | None, key: str | None) -> None:
        """Write a note into the ledger, while the call runs."""
        noted = self._calls.annotate(call_id, summary, key)
        if noted is not None:
            await self._buffer.write_note(noted)

    async def _record_error(self, ctx: RunContext[Any], effect: Effect, error: BaseException) -> None:
        """Record what a tool raised. Raises `AgentExited` in place of an error that would end the event loop."""
        match error:
            case ToolRetryError() | ToolFailedError():
                await self._settle(ctx, effect, "tool_call_completed", result=ledger.raised(error))
            case ApprovalRequired() | CallDeferred():  # the call ends when it is answered, in whatever run
                kind = "approval" if isinstance(error, ApprovalRequired) else "external"
                self._calls.note(effect, result=ledger.deferred(kind, error.metadata))
                await self._buffer.write_soon()
            case _:
                await self._settle(ctx, effect, "tool_call_failed", error=_said(error))
                if self._ends_process(error):
                    raise AgentExited(what=f"The tool {effect.tool}", error=_said(error)) from error

    def _ends_process(self, error: BaseException) -> bool:
        """Tell whether an error would end the event loop, and with it every other run of this process."""
        interrupts = isinstance(error, KeyboardInterrupt) and self._host.handles_interrupts
        return interrupts or isinstance(error, SystemExit | GeneratorExit)

    async def _settle(self, ctx: RunContext[Any], effect: Effect, kind: str, **outcome: str) -> None:
        failed = "error" in outcome
        error = {"error": outcome["error"]} if failed else {}
        self._buffer.add(self._event(ctx, kind, tool=effect.tool, call_id=effect.call_id, **error))
        self._calls.note(effect, state="failed" if failed else "completed", **outcome)
        await self._buffer.write_soon()

    async def _begin(self, ctx: RunContext[Any], start: RunStart, agent: str) -> None:
        """Find the place in the recorded history where this run continues, and record that it has begun."""
        lease = start.lease
        history = await open_history(self.store, lease.session_id, start.checkpoint, start.messages)
        waited = await self._waited(start)
        self._calls = Calls(self.run_id, self._settings.policies)
        await self._inherit_calls(ctx, start)
        metadata = lenient_json(self._settings.metadata)
        self._buffer = Buffer(
            self.store,
            lease,
            Run(id=self.run_id, agent=agent, parent_id=self._parent, metadata=metadata),
            host=self._host,
            offloader=self._offloader,
            calls=self._calls,
            history=history,
        )
        started = self._event(ctx, "run_started", agent=agent, parent=self._parent)
        self._buffer.begin(Beginning(started, list(ctx.messages), ctx.prompt, waited))

    async def _waited(self, start: RunStart) -> list[Run]:
        """Return the run before, completed, if it waits for the answers that this run was given."""
        at = start.checkpoint
        if at is None or at.run_id is None or not pending_calls(start.messages):
            return []
        last = await self.store.run(at.run_id)
        return [replace(last, status="completed")] if last.status == "waiting" else []

    async def _inherit_calls(self, ctx: RunContext[Any], start: RunStart) -> None:
        """Take over the calls that were left open: this run carries them out, or was given their answers."""
        carried_out = pending_calls(ctx.messages)
        pending = carried_out or pending_calls(start.messages)
        if not pending:
            return
        messages = ctx.messages if carried_out else start.messages
        await self._calls.inherit(self.store, start.lease.session_id, messages, pending)
        await self._calls.load_results(self._offloader.effects_back)
        self._calls.inherited = bool(carried_out and self._calls.tools)

    async def _complete(self, result: AgentRunResult[Any]) -> None:
        """Record that the run completed, or that it waits for answers."""
        messages = result.all_messages()
        waits = pending_calls(messages)
        ending = NewEvent(kind=COMPLETED, run_id=self.run_id)
        if not waits:
            ending.payload = _output_json(result.output, messages[-1] if messages else None)
        else:
            payload = lenient_json({"calls": [_asked(call) for call in waits]})
            ending = NewEvent(kind="approval_requested", run_id=self.run_id, payload=payload)
        batch = self._buffer.take_step(
            messages,
            "interrupted" if waits else "settled",
            None,
            ending,
            effects=self._calls.deferred(messages, result.output),
            thorough=True,
        )
        batch.status = "waiting" if waits else "idle"
        if waits:
            batch.waiting_for = ", ".join(f"{call.tool_name} ({call.tool_call_id})" for call in waits)
        run = replace(self._buffer.run, status="waiting" if waits else "completed")
        self._end(batch, run)
        await self._buffer.write(batch)
        self._host.close(run, None)

    async def _fail(self, error: BaseException) -> None:
        """Record how the run ended, as its host decides. What it got to is on record already."""
        run: Run | None = None
        failure = None if self._buffer.lease.lost else self._host.failure(error, self._buffer.failed)
        if failure is not None:
            with suppress(HoldfastError):  # the error that ended the run is the one to raise
                run = await self._write_failure(failure)
        self._host.close(run, self._buffer.failed)

    async def _write_failure(self, failure: Failure) -> Run | None:
        """Write the end of the run and return it; None if it has not ended."""
        batch = self._buffer.take_pending()
        if failure.status is None:
            await self._buffer.write(batch)
            return None
        said = _said(failure.error)
        payload = lenient_json({"error": said})
        event = NewEvent(kind=f"run_{failure.status}", run_id=self.run_id, payload=payload)
        batch.events, batch.status = [*batch.events, event], "idle"
        run = replace(self._buffer.run, status=failure.status, error=said)
        self._end(batch, run)
        await self._buffer.write_failure(batch)
        return run

    def _end(self, batch: Batch, run: Run) -> None:
        batch.runs = [*batch.runs[1:], run]  # in place of its beginning, if that is in the same batch
        self._host.end(batch, run)

    def _event(self, ctx: RunContext[Any], kind: str, **facts: object) -> NewEvent:
        return NewEvent(kind=kind, run_id=self.run_id, step=ctx.run_step, payload=lenient_json(facts))


@contextmanager
def _ended_with(caller: "asyncio.Task[Any] | None") -> Generator[None, None, None]:
    """Cancel the current task when the task that runs the agent ends first.

    Pydantic AI calls `wrap_run` in a task of its own and forgets it if the run is cancelled in the moment after its start:
    then it would wait for the end of the run, and hold the session, as long as the process lives.
    """
    task = asyncio.current_task()
    if caller is None or task is None:
        yield
        return

    def cancel(_: object) -> None:
        task.cancel()

    caller.add_done_callback(cancel)
    try:
        yield
    finally:
        caller.remove_done_callback(cancel)


def _output_json(output: Any, last: ModelMessage | None) -> Json:
    """Return the output of a run, unless it is the text of the last message."""
    if isinstance(last, ModelResponse) and output == last.text:
        return "{}"
    try:
        return lenient_json(
            {"output": to_jsonable_python(output, bytes_mode="base64", serialize_unknown=True)}
        )
    except (PydanticSerializationError, ValueError, RecursionError):
        return "{}"  # an output that JSON cannot represent stays in the process that made it


def _asked(call: ToolCallPart) -> dict[str, Any]:
    """Return what a person is asked: the call, with the digest that the answer is bound to."""
    arguments = call.args_as_dict()
    return {
        "call_id": call.tool_call_id,
        "tool": call.tool_name,
        "arguments": arguments,
        "digest": ledger.digest(arguments),
    }


def _can_be_recorded(error: BaseException, task: "asyncio.Task[Any] | None") -> bool:
    """Tell whether an error of a tool says how its call ended, and can be written.

    Whether a call that was cancelled took effect is not known. A coroutine that is closed after its event loop is gone
    cannot write.
    """
    if isinstance(error, GeneratorExit):
        try:
            return asyncio.current_task() is task
        except RuntimeError:  # no event loop is running
            return False
    return not isinstance(error, asyncio.CancelledError)


def _said(error: BaseException) -> str:
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return text.replace("\x00", "\\x00").encode("utf-8", "replace").decode()


def response_facts(response: ModelResponse) -> dict[str, Any]:
    """Return what an event says about a completed model request: the model, the tokens and the price."""
    usage = response.usage
    tokens = {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens}
    return {"model": response.model_name, "usage": tokens, "cost": _cost(response)}


def _cost(response: ModelResponse) -> str | None:
    try:
        return str(response.cost().total_price)
    except (LookupError, AssertionError, ValueError):  # no price is known for this model
        return None
