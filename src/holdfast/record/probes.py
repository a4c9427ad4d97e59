"""Probes: code of the application that finds out whether a call took effect whose outcome is unknown."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from inspect import iscoroutinefunction
from typing import Any, Generic, TypeAlias, TypeVar

from holdfast.tasks import start_thread

T = TypeVar("T")
LIMIT_SECONDS = 30.0
"""How long a probe may take by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsettled:
    """A tool call or a step that was started and whose outcome is not recorded."""

    name: str
    """The name of the tool or step."""
    key: str
    """The idempotency key that the interrupted attempt used."""
    arguments: Any = field(repr=False)
    """The arguments of a tool by name, or those of a step in their order."""
    summary: str | None = None
    """What the call noted with `annotate_effect`."""
    attempts: int = 1
    started_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Done(Generic[T]):
    """It took effect, with this result."""

    result: T


@dataclass(frozen=True, slots=True)
class NotDone:
    """It had no effect, so that it can run again."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """The probe cannot tell. The policy applies."""


ProbeAnswer: TypeAlias = Done[Any] | NotDone | Unknown
Probe: TypeAlias = Callable[[Unsettled], Awaitable[ProbeAnswer] | ProbeAnswer]
"""Looks up whether a call took effect. It may be asked more than once."""


async def ask_probe(probe: Probe, call: Unsettled, seconds: float) -> tuple[ProbeAnswer, str | None]:
    """Return the answer of a probe. One that raises, takes too long or answers something else does not know: also return why."""
    task = asyncio.ensure_future(_call(probe, call))
    try:
        await asyncio.wait([task], timeout=seconds)
    finally:
        if not task.done():
            task.cancel()
    if not task.done():
        return Unknown(), f"no answer within {seconds:g} seconds"
    if task.cancelled():
        return Unknown(), "the probe was cancelled"
    if (error := task.exception()) is not None:
        return Unknown(), f"{type(error).__name__}: {error}"
    answer: Any = task.result()
    if not isinstance(answer, Done | NotDone | Unknown):
        return Unknown(), f"a probe answers Done, NotDone or Unknown, not {type(answer).__name__}"
    return answer, None  # pyright: ignore[reportUnknownVariableType]


async def _call(probe: Probe, call: Unsettled) -> Any:
    try:
        answer = (
            probe(call)
            if iscoroutinefunction(probe)
            else await asyncio.wrap_future(start_thread(partial(probe, call)))
        )
        return await answer if isinstance(answer, Awaitable) else answer
    except (SystemExit, KeyboardInterrupt, GeneratorExit) as error:  # these would end the event loop
        raise RuntimeError(repr(error)) from error
