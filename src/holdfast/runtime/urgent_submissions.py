"""The submissions that do not wait for the end of a turn: the control lane, messages that steer, and messages that interrupt."""

import logging
from collections.abc import Callable, Sequence

from holdfast.errors import BadInput, HoldfastError, LeaseLost, StoreError
from holdfast.runtime.handlers import HANDLERS, cancel_queued
from holdfast.runtime.leased_session import LeasedSession
from holdfast.runtime.payloads import parse_content
from holdfast.runtime.turn import Steered, WorkerTurn
from holdfast.types import Submission

POLL_SECONDS = 1.0
"""How often to poll if a notification is lost."""
_log = logging.getLogger(__name__)


class UrgentSubmissions:
    """Processes the urgent submissions of a session while its turn runs."""

    def __init__(self, leased: LeasedSession, hand_over: Callable[[str], None]) -> None:
        self._leased = leased
        self._hand_over = hand_over
        self._steering = False  # whether a message waits to enter the turn

    async def watch(self, turn: WorkerTurn) -> None:
        """Look for urgent submissions while a turn runs, until the task is cancelled or the lease lost."""
        with self._leased.store.inbox_bell(self._leased.id) as bell:
            while True:
                try:
                    await self._process_urgent(turn)
                except LeaseLost:
                    turn.cancel("lost")
                    return
                except HoldfastError as error:
                    _log.warning("session %s: the inbox cannot be read: %s", self._leased.id, error)
                await bell.wait(POLL_SECONDS)

    async def _process_urgent(self, turn: WorkerTurn) -> None:
        for urgent in await self._leased.store.urgent(self._leased.id):
            if urgent.lane == "main":
                self._steering = self._steering or urgent.when_busy == "steer"
                if (
                    urgent.when_busy == "interrupt"
                    and (urgent.deliver_at or urgent.created_at) >= turn.began_at
                    and turn.stop is None
                ):
                    turn.cancel("interrupt")
                continue
            taken = await self._leased.store.take(self._leased.lease, id=urgent.id)
            if taken is None:
                continue
            if taken.kind == "interrupt":
                cancelled = await cancel_queued(self._leased, taken)
                await self._leased.end(taken, "done", batch=cancelled)
                if cancelled is None:
                    turn.cancel("interrupt")
            elif taken.kind == "background":
                await self._leased.end(taken, "done")
                self._hand_over("background")
            elif taken.kind == "approval":
                await self._answer_again(taken)
            else:
                await self._leased.end(taken, "failed", "a turn is running")

    async def _answer_again(self, taken: Submission) -> None:
        """Process an answer while a turn runs: only one that was given before changes nothing."""
        try:
            await self._leased.end(taken, "done", batch=await HANDLERS[taken.kind](self._leased, taken))
        except (LeaseLost, StoreError):
            raise
        except HoldfastError as error:
            await self._leased.end(taken, "failed", str(error))

    async def take_steered(self) -> Sequence[Steered]:
        """Take the messages that steer the running turn."""
        if not self._steering:
            return ()
        self._steering = False
        steered: list[Steered] = []
        for urgent in await self._leased.store.urgent(self._leased.id):
            if urgent.lane != "main" or urgent.when_busy != "steer":
                continue
            taken = await self._leased.store.take(self._leased.lease, id=urgent.id)
            if taken is None:
                continue
            try:
                content = parse_content(taken)
            except BadInput as error:
                await self._leased.end(taken, "failed", str(error))
                continue
            parts = [content] if isinstance(content, str) else content
            steered.append(Steered(submission_id=taken.id, content=parts))
        return steered
