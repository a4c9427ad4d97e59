"""The request of a tool or plain agent for a wait: return what it has received if it is over, else suspend the tool call or turn."""

import json
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from holdfast.errors import BadInput, SignalTimeout, StepsDiffer
from holdfast.ids import check_time
from holdfast.record import ledger, waits
from holdfast.record.steps import Steps, label, required_steps
from holdfast.record.waits import Suspended, Wait, Waiting, WaitKind
from holdfast.types import SIGNAL, Effect, Json


async def sleep_until(time: datetime) -> None:
    """Suspend the tool call or turn that calls this until a time. While it sleeps, it uses no process, lease or memory.

    Then the tool or function runs again from the top, on any worker, and this returns. Use it in a plain agent's turn, or in a tool with
    `recovery="steps"`. A time in the past returns at once. Raises `BadInput` elsewhere, within a step, and for a time without a
    time zone or more than ten years ahead.
    """
    steps = required_steps("sleep_until")
    await _wait(steps, "sleep", check_time(time, "the time of `sleep_until`"))


async def sleep(*, days: float = 0, hours: float = 0, minutes: float = 0, seconds: float = 0) -> None:
    """Suspend the tool call or turn that calls this for a while, like `sleep_until`. The time counts from the first call."""
    steps = required_steps("sleep")
    try:
        delay = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
    except (TypeError, ValueError, OverflowError) as error:
        raise BadInput(
            problem=f"`sleep` takes numbers, of at most ten years in all, and these are not: {error}"
        ) from None
    await _wait(steps, "sleep", delay)


async def signal(name: str, *, timeout: timedelta | None = None) -> Any:  # noqa: ASYNC109 - it outlives the process
    """Wait for a signal to the session with this name, and return its data. Each signal is received once, in the order of arrival.

    The signal may have arrived before. While the tool call or turn waits, it uses no process. After `timeout` this raises
    `SignalTimeout`. Raises `BadInput` where `sleep_until` does.
    """
    steps = required_steps("signal")
    if timeout is not None and not isinstance(timeout, timedelta):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise BadInput(
            problem=f"the timeout of `signal` must be a timedelta, such as timedelta(days=2), not a {type(timeout).__name__}"
        )
    received: dict[str, Any] | None = await _wait(steps, "signal", timeout, name)
    if received is None:
        raise SignalTimeout(name=name)
    return received["data"]


async def _wait(
    steps: Steps, kind: WaitKind, until: datetime | timedelta | None, name: str | None = None
) -> Any:
    """Return what a wait has received, or suspend.

    The time that was recorded when it began counts, not the one that the code requests when it runs again.
    """
    what = "`sleep`" if kind == "sleep" else f"`signal({name!r})`"
    if steps.tasks.closed:
        raise BadInput(problem=f"{what} was called after its tool call or turn had ended")
    if steps.check is not None:
        steps.check()
    if (ledger.current_call.get() or steps.ref) != steps.ref:
        raise BadInput(problem=f"{what} cannot be used within a step. Call it before or after the step")
    ref, known = steps.take_recorded(f"~{kind}" if name is None else f"~{kind}:{name}")
    if known is None:
        await steps.finish_replay(f"it waits for {what}")
        wait = waits.checked(ref, kind, await steps.store.now(), until, name)
        known = wait.as_effect()
        with steps.running(known):
            result = await _outcome(steps, wait, known)
            if result is None:
                started = steps.event("wait_started", _facts(wait))
                await steps.buffer.write_effects([known], started)
    else:
        (known,) = await steps.offloader.effects_back([known])
        if known.state != "started":
            return json.loads(known.result or waits.OVER)["value"]
        recorded = Wait.of(known)
        if recorded is None:
            raise StepsDiffer(asked=f"it waits for {what}", recorded=label(ref[1], known))
        wait = recorded
        result = await _outcome(steps, wait, known)
    if result is None:
        steps.waits.append(wait)
        raise Suspended if steps.decide is not None else Waiting(wait.facts())
    return json.loads(result)["value"]


async def _outcome(steps: Steps, wait: Wait, known: Effect) -> Json | None:
    """Record the end of a wait and return its result; None if it is not over. A signal is received by one wait."""
    if wait.name is not None:
        async with steps.buffer.receiving:
            session_id = steps.buffer.lease.session_id
            arrived = await steps.store.records(session_id, SIGNAL, prefix=f"{wait.name}/", limit=1)
            if arrived:
                result = waits.received(json.loads(arrived[0].body)["data"])
                await _end(steps, wait, known, result, arrived[0].key)
                return result
    if wait.is_over(await steps.store.now()):
        await _end(steps, wait, known, waits.OVER)
        return waits.OVER
    return None


async def _end(steps: Steps, wait: Wait, known: Effect, result: Json, key: str | None = None) -> None:
    batch = steps.buffer.take_pending([replace(known, state="completed", result=result)])
    ended_by = "time" if key is None else "signal"
    batch.events = [*batch.events, steps.event("wait_ended", {**_facts(wait), "ended_by": ended_by})]
    if key is not None:
        batch.records_dropped = [(SIGNAL, key)]
    await steps.buffer.write(batch)


def _facts(wait: Wait) -> dict[str, object]:
    return {"call_id": wait.ref[1], **wait.facts()}
