"""Retry rules of steps. The time of the next attempt is recorded, so that it survives a crash."""

import json
import random
from dataclasses import dataclass
from datetime import datetime, timedelta

from holdfast.errors import BadInput
from holdfast.record import ledger
from holdfast.types import Effect


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """Retries a step that raises one of `on`. List only errors that mean that the step had no effect.

    Makes up to `attempts` attempts. The first pause is `backoff` seconds; each further pause doubles, up to `max_backoff`, with up
    to 50 % jitter. No attempt begins later than `deadline` seconds after the first one.
    """

    on: type[Exception] | tuple[type[Exception], ...]
    attempts: int = 3
    backoff: float = 1.0
    max_backoff: float = 60.0
    deadline: float | None = None

    def __post_init__(self) -> None:
        """Raise `BadInput` for invalid values."""
        kinds = self.on if isinstance(self.on, tuple) else (self.on,)
        if not kinds or not all(isinstance(kind, type) and issubclass(kind, Exception) for kind in kinds):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise BadInput(problem="`on` of a Retry must be an exception class, or a tuple of them")
        if self.attempts < 1 or self.backoff < 0 or self.max_backoff < 0:
            raise BadInput(problem="a Retry needs at least one attempt and non-negative pauses")

    def pause(self, attempt: int) -> float:
        """Return how many seconds to wait after this attempt."""
        seconds = min(self.backoff * 2 ** min(attempt - 1, 30), self.max_backoff)
        return seconds * random.uniform(0.5, 1.0)  # noqa: S311 - jitter

    def next_pause(
        self, effect: Effect, last: "Pause | None", error: BaseException, now: datetime
    ) -> "Pause | None":
        """Return the pause before the next attempt of a step that raised this error; None if there is none."""
        if not isinstance(error, self.on) or effect.attempts >= self.attempts:
            return None
        since = last.since if last else effect.started_at or now
        until = now + timedelta(seconds=self.pause(effect.attempts))
        if self.deadline is not None and until > since + timedelta(seconds=self.deadline):
            return None
        return Pause(until=until, since=since)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """The time until the next attempt of a step. It is recorded, so that it continues after a crash."""

    until: datetime
    since: datetime
    """When the first attempt was made."""

    @staticmethod
    def of(effect: Effect) -> "Pause | None":
        if ledger.waits_for(effect) != "pause":
            return None
        record = json.loads(effect.result or "{}")
        return Pause(**{name: datetime.fromisoformat(record[name]) for name in ("until", "since")})

    def as_json(self) -> str:
        return json.dumps({"kind": "pause", "until": self.until.isoformat(), "since": self.since.isoformat()})
