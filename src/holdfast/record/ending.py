"""Record the end of a run: completed, waiting for answers, failed or interrupted."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from types import MappingProxyType
from typing import Any

from pydantic_ai.messages import ModelMessage, ModelResponse, ToolCallPart
from pydantic_core import PydanticSerializationError, to_jsonable_python

from holdfast.errors import BudgetReached, HoldfastError
from holdfast.jsontext import lenient_json
from holdfast.record import ledger
from holdfast.record.buffer import Buffer
from holdfast.record.deadlines import Deadline, deadline_of, facts_of
from holdfast.record.offloader import COMPLETED
from holdfast.record.open_calls import pending_calls
from holdfast.record.partial import partial_response
from holdfast.record.run_host import Failure, RunHost
from holdfast.record.threads import RunThreads
from holdfast.record.waits import Wait, first, for_budget
from holdfast.types import Batch, Effect, Json, NewEvent, Run


async def complete_run(
    buffer: Buffer,
    host: RunHost,
    messages: list[ModelMessage],
    output: Any,
    *,
    effects: Sequence[Effect] = (),
    notes: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    waits: Mapping[str, Wait] = MappingProxyType({}),
    deadlines: Mapping[str, Deadline] = MappingProxyType({}),
) -> list[dict[str, Any]]:
    """Record that a run completed with this history and output, or that it waits: for answers to its last calls, a time, or a signal.

    `notes` has, by call id, the facts that a person needs to decide; `waits`, those that wait for a time or a signal; `deadlines`, the
    deadlines of the questions. A question that is asked again keeps its deadline. Return the questions, including those of delegates.
    """
    pending = pending_calls(messages)
    calls = [call for call in pending if call.tool_call_id not in waits]
    questions = await _questions(buffer, host, [approval_request(call, notes) for call in calls], deadlines)
    questions += [question for wait in waits.values() for question in wait.questions]
    is_waiting = bool(pending or waits)
    run_id = buffer.run.id
    ending = NewEvent(kind=COMPLETED, run_id=run_id)
    if questions:
        payload = lenient_json({"calls": questions})
        ending = NewEvent(kind="approval_requested", run_id=run_id, payload=payload)
    elif waits:
        payload = lenient_json({"waits": [{"call_id": key, **wait.facts()} for key, wait in waits.items()]})
        ending = NewEvent(kind="run_waiting", run_id=run_id, payload=payload)
    else:
        ending.payload = _output_json(output, messages[-1] if messages else None)
    kind = "interrupted" if pending else "settled"
    buffer.meter.end()
    batch = buffer.take_step(messages, kind, None, ending, effects=effects, thorough=True)
    batch.status = ("waiting" if questions else "sleeping") if is_waiting else "idle"
    if is_waiting:
        batch.waiting_for = describe_waiting(questions, waits.values())
        batch.continue_at = continues_at(questions, waits.values())
    run = replace(buffer.run, status="waiting" if is_waiting else "completed")
    _end(batch, run, host)
    await buffer.write(batch)
    buffer.close()
    host.close(run, None)
    if any(wait.budget is not None for wait in waits.values()):
        await buffer.store.recheck_budgets(buffer.lease.session_id, buffer.accounts)
    return questions


async def wait_for_budget(
    buffer: Buffer, host: RunHost, messages: list[ModelMessage], reached: BudgetReached
) -> Wait:
    """Record that a run waits for a budget. Its turn continues with the model request that was not sent."""
    reached.facts |= {"session_id": buffer.lease.session_id, "run_id": buffer.run.id}
    wait = for_budget(reached, buffer.run.id, await buffer.store.now())
    await complete_run(buffer, host, messages, None, waits={wait.ref[1]: wait})
    return wait


async def _questions(
    buffer: Buffer, host: RunHost, asked: Sequence[dict[str, Any]], deadlines: Mapping[str, Deadline]
) -> list[dict[str, Any]]:
    """Return the questions with their deadlines. Those of new questions begin now."""
    questions: list[dict[str, Any]] = []
    now: datetime | None = None
    for question in asked:
        before, deadline = host.asked.get(question["call_id"]), deadlines.get(question["call_id"])
        facts: dict[str, Any] = {}
        if before is not None and before["digest"] == question["digest"]:
            facts = facts_of(before)
        elif deadline is not None:
            now = now or await buffer.store.now()
            facts = deadline.facts(now)
        questions.append({**question, **facts})
    return questions


def describe_waiting(questions: Iterable[Mapping[str, Any]], waits: Iterable[Wait]) -> str:
    """Return what a turn waits for: questions, times and signals."""
    asked = [f"{question['tool']} ({question['call_id']})" for question in questions]
    return ", ".join(dict.fromkeys([*asked, *(str(wait) for wait in waits if not wait.questions)]))


def continues_at(questions: Iterable[Mapping[str, Any]], waits: Iterable[Wait]) -> datetime | None:
    """Return when a turn that waits continues without an answer or a signal: at its first deadline or time. None if it has none."""
    times = (first(waits), *map(deadline_of, questions))
    return min((time for time in times if time is not None), default=None)


async def fail_run(buffer: Buffer, host: RunHost, error: BaseException, threads: RunThreads) -> None:
    """Record the end of a run as its host decides, when its threads have ended. Its earlier steps are already recorded."""
    run: Run | None = None
    if buffer.is_closed:
        return  # it waits for a budget, and its end is recorded
    stop = await threads.recorded()
    await buffer.finish()  # then it is known whether all steps are recorded
    failure = None if buffer.lease.lost else host.failure(error, buffer.failed)
    if failure is not None:
        with suppress(HoldfastError):  # the error that ended the run is the one to raise
            run = await _write_failure(buffer, host, failure)
    host.close(run, buffer.failed)
    buffer.close()
    await stop.deliver()


async def _write_failure(buffer: Buffer, host: RunHost, failure: Failure) -> Run | None:
    """Write the end of the run and return it; None if it has not ended."""
    buffer.meter.end()
    batch = buffer.take_pending()
    if failure.status is None:
        await buffer.write(batch)
        return None
    text = ledger.describe(failure.error)
    event = NewEvent(
        kind=f"run_{failure.status}", run_id=buffer.run.id, payload=lenient_json({"error": text})
    )
    streamed = await partial_response(buffer.store, buffer.lease.session_id, buffer.run.id)
    batch.events = [*batch.events, *streamed, event]
    batch.status, batch.error = ("failed", text) if failure.status == "failed" else ("idle", None)
    run = replace(buffer.run, status=failure.status, error=text)
    _end(batch, run, host)
    await buffer.write_failure(batch)
    return run


def _end(batch: Batch, run: Run, host: RunHost) -> None:
    batch.runs = [*batch.runs[1:], run]  # replaces its start, if that is in the same batch
    host.end(batch, run)


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


def approval_request(
    call: ToolCallPart, notes: Mapping[str, Mapping[str, Any]] = MappingProxyType({})
) -> dict[str, Any]:
    """Return a call for a person to approve, with the digest that binds the answer to its arguments."""
    arguments = call.args_as_dict()
    return {
        "call_id": call.tool_call_id,
        "tool": call.tool_name,
        "arguments": arguments,
        "digest": ledger.digest(arguments),
        **notes.get(call.tool_call_id, {}),
    }
