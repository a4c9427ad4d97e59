"""Measure how many bytes each session has stored, while a worker runs, if the settings limit them per owner.

A worker measures the sessions that changed about once a minute. To measure a session, the database reads all of its content. Therefore the workers
together measure for at most a tenth of the time: sums are older if there is more to measure than that.
"""

import asyncio
import json
import logging
import random
from dataclasses import asdict, dataclass
from time import monotonic
from typing import Final

from holdfast.errors import HoldfastError, StoreClosed
from holdfast.store import Store
from holdfast.types import Holder

DUTY: Final = "measure"
_INTERVAL: Final = 60.0
_REST: Final = 9.0
"""How much longer than it measures a worker pauses."""
_OVERLAP: Final = 60.0
"""A session is compared again if it was active this long before the last measurement: a transaction may have taken that long."""
_LONG_AGO: Final = 3600.0
"""If the last measurement is older, there was no limit, or no worker with it: then all sessions are compared soon."""
_BUSY_PAUSE: Final = 5.0
_log = logging.getLogger(__name__)


async def keep_measuring(store: Store, holder: Holder) -> None:
    """Measure until cancelled, or until the store is closed. Returns at once without the setting."""
    if store.settings.max_stored_bytes_per_owner is None:
        return
    while True:
        seconds = _INTERVAL
        try:
            seconds = await measure_changed(store, holder)
        except StoreClosed:
            return
        except HoldfastError as error:
            _log.warning("stored bytes could not be measured, retrying: %s", error)
        except Exception:  # noqa: BLE001 - a boundary: one unexpected error must not stop the measurements
            _log.exception("stored bytes could not be measured, retrying")
        await asyncio.sleep(seconds * random.uniform(0.9, 1))  # noqa: S311


@dataclass(frozen=True, slots=True, kw_only=True)
class _Progress:
    """How far the measurements are: the detail of the duty."""

    at: float = 0.0
    """When the last one began, in seconds since 1970."""
    seconds: float = 0.0
    """How long it took."""
    after: str = ""
    """The last session that was compared in the order of ids, or empty at the end."""
    is_complete: bool = False
    """Whether all sessions have been compared at least once. Until then, the next measurement follows soon."""

    @property
    def pause(self) -> float:
        """The pause after the last measurement."""
        return max(_INTERVAL if self.is_complete else 0.0, self.seconds * _REST)


async def measure_changed(store: Store, holder: Holder, *, at_once: bool = False) -> float:
    """Measure the sessions that changed since the last time, unless another holder does. Return after how many seconds to call again.

    Each call also compares the next sessions in the order of ids, and so finds those that changed while there was no limit, or were imported
    by a process without one. With `at_once` it does not wait for the interval.
    """
    duty = await store.duty(DUTY)
    last = _Progress() if duty is None else _Progress(**json.loads(duty.detail))
    if not await store.take_duty(DUTY, holder, every=0.0 if at_once else last.pause * 0.9):
        return min(max(last.pause, _BUSY_PAUSE), _INTERVAL)
    now, began = (await store.now()).timestamp(), monotonic()
    if now - last.at > _LONG_AGO:
        last = _Progress(at=now)
    work = await store.unmeasured(within=max(now - last.at, 0.0) + _OVERLAP, after=last.after)
    for session_id in work.session_ids:
        await store.measure(session_id)
    done = _Progress(
        at=now,
        seconds=round(monotonic() - began, 3),
        after=work.after,
        is_complete=last.is_complete or not work.after,
    )
    await store.leave_duty(DUTY, holder, detail=json.dumps(asdict(done)))
    return done.pause
