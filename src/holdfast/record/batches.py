"""Write the batches of a run in order.

A batch can be started and waited for later: it is written while the model works on its response, and nothing acts on the response before
the batch is durable.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from functools import partial
from typing import cast

from holdfast.errors import Conflict, HoldfastError, MediaCollected
from holdfast.record import ledger
from holdfast.record.offloader import MediaOffloader
from holdfast.store import Store
from holdfast.types import Batch, Chain, Lease

_PATIENCE = 0.5
"""How many seconds the end of a run waits for the writes before it."""


class BatchWriter(ABC):
    """Writes the batches of one run as one chain: after the first that fails, none is written."""

    def __init__(self, store: Store, lease: Lease, offloader: MediaOffloader) -> None:
        self.store = store
        self.lease = lease
        self._offloader = offloader
        self._chain = Chain()  # every batch builds on the previous ones
        self._order = asyncio.Lock()  # held while large content is stored, so that later batches wait
        self._started: list[asyncio.Task[None]] = []  # writes that are not waited for yet
        self._error: BaseException | None = None  # why one of them failed

    @property
    def failed(self) -> Exception | None:
        """Why a batch could not be written. Then no later batch of the history is written."""
        return self._chain.failed

    @property
    def is_durable(self) -> bool:
        """Whether no started write is under way or has failed."""
        return not self._started and self._error is None

    def start(self, batch: Batch) -> "asyncio.Task[None]":
        """Start to write a batch after the previous ones. `join` waits for it, and so does every later write."""
        task = asyncio.create_task(self._put_in_order(batch))
        self._started.append(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._started.remove(task)
        # Whether a cancelled write is durable is not known, so nothing may rely on it.
        self._error = self._error or (_given_up() if task.cancelled() else task.exception())

    async def join(self) -> None:
        """Wait until all started writes are durable. If one of them failed, raises its error to every caller."""
        if self._started:
            await asyncio.wait(self._started)
        if self._error is not None:
            raise self._error

    def caused(self, error: BaseException) -> bool:
        """Return whether an error comes from a failed write, and therefore not from the code that received it."""
        return any(cause in (self._error, self._chain.failed) for cause in _causes(error))

    async def finish(self) -> None:
        """Wait until no write is under way, because the run ends. Give up on a database that does not answer: the store keeps the order.

        Code that still waits in `join` does not continue: Pydantic AI runs each tool call in its own task, and cancels it only later.
        """
        self._error = self._error or _given_up()
        if self._started:
            _, late = await asyncio.wait(self._started, timeout=_PATIENCE)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)

    async def write(self, batch: Batch) -> None:
        """Write a batch after the previous ones, and wait until it is durable."""
        if not self._started:
            await self._put_in_order(batch)
            return
        self.start(batch)  # tasks begin in the order in which they were created
        await self.join()

    async def _put_in_order(self, batch: Batch) -> None:
        """Write a batch. Its large content is put into the media store first.

        The history counts as recorded as soon as a batch of it was created. If its content then cannot be stored, no later batch may be
        written: the run fails, and the next one continues from the recorded history.
        """
        if not self._offloader.concerns(batch) and not self._order.locked():
            await self._write(batch)
            return
        async with self._order:
            self._check()
            if (unput := await self._put_and_write(batch, self._write)) is not None:
                self._take_back(batch, unput)
                raise unput
            self._offloader.written(batch)

    async def _put_and_write(
        self, batch: Batch, write: Callable[[Batch], Awaitable[object]]
    ) -> BaseException | None:
        """Put large content into the media store, then write. Return the error if the content could not be put."""
        is_put = False

        async def put(batch: Batch) -> None:
            nonlocal is_put
            is_put = True
            try:
                await write(batch)
            except MediaCollected:
                is_put = False
                raise

        try:
            await self._offloader.write(batch, put)
        except BaseException as error:
            if is_put:
                raise
            return error
        return None

    async def write_failure(self, batch: Batch) -> None:
        """Write the failure of the run, even after a batch that could not be written."""
        await self.finish()
        batch.chain = self._chain if self._chain.failed is None else None
        write = partial(self.store.write, self.lease)
        if (unput := await self._put_and_write(batch, write)) is not None:
            if not isinstance(unput, HoldfastError):
                raise unput
            # The fact that a call was carried out matters more than its result.
            batch.effects = [ledger.without_result(effect) for effect in batch.effects]
            # Leave the history out: in messages that were not moved out, references are not escaped either.
            batch.segments, batch.messages, batch.checkpoints = [], [], []
            for event in batch.events:
                event.message = None
            await write(batch)

    def _take_back(self, batch: Batch, error: BaseException) -> None:
        """Keep the part of a batch that can still be written although its content could not be stored."""
        self._keep(batch)
        if batch.messages or batch.segments:
            cut_off = Conflict(
                problem="the run was interrupted while its history was being put into the media store"
            )
            self._chain.failed = error if isinstance(error, HoldfastError) else cut_off

    @abstractmethod
    def _keep(self, batch: Batch) -> None:
        """Write the events and effects of a batch, without its history, with the next batch."""

    async def _write(self, batch: Batch) -> None:
        self._check()
        chain = batch.chain = batch.chain or self._chain
        try:
            await self.store.write(self.lease, batch)
        except HoldfastError as error:
            chain.failed = chain.failed or error
            raise

    def _check(self) -> None:
        if self._chain.failed is not None:
            raise self._chain.failed


def _given_up() -> Conflict:
    return Conflict(problem="the run ended while one of its steps was being written")


def _causes(error: BaseException) -> list[BaseException]:
    """Return an error and its causes."""
    found: list[BaseException] = []
    left: list[BaseException | None] = [error]
    while left:
        cause = left.pop()
        if cause is None or cause in found:
            continue
        found.append(cause)
        left += [cause.__cause__, cause.__context__]
        if isinstance(cause, BaseExceptionGroup):
            left += cast("BaseExceptionGroup[BaseException]", cause).exceptions
    return found
