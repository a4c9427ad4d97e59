"""Close open streams whose token was revoked, has expired, or now has another principal.

A request is authorized when it begins, but a stream stays open for hours. All streams of one token share one check, so the cost
depends on the number of tokens in use, not on the number of streams.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass

from holdfast.errors import HoldfastError, Unauthenticated
from holdfast.operations.access import Principal

CHECK_SECONDS = 5.0
_log = logging.getLogger(__name__)


@dataclass(eq=False, frozen=True, slots=True)
class _Stream:
    principal: Principal
    close: Callable[[], None]


class Revocation:
    """Checks the tokens of all open streams of this process."""

    def __init__(self, principal_of: Callable[[str], Awaitable[Principal]]) -> None:
        self._principal_of = principal_of
        self._streams: dict[str, set[_Stream]] = {}
        self._checking: asyncio.Task[None] | None = None

    @contextmanager
    def watch(
        self, token: str | None, principal: Principal, close: Callable[[], None]
    ) -> Generator[None, None, None]:
        """Call `close` when the token no longer has this principal. Without a token there is nothing to check."""
        if token is None:
            yield
            return
        stream = _Stream(principal, close)
        self._streams.setdefault(token, set()).add(stream)
        if self._checking is None or self._checking.done():
            self._checking = asyncio.create_task(self._check())
        try:
            yield
        finally:
            streams = self._streams[token]
            streams.discard(stream)
            if not streams:
                del self._streams[token]

    async def _check(self) -> None:
        while self._streams:
            await asyncio.sleep(CHECK_SECONDS)
            for token in [*self._streams]:
                try:
                    current = await self._principal_of(token)
                except Unauthenticated:
                    current = None
                except HoldfastError:  # the store is not available, so the streams receive nothing either
                    continue
                except Exception:  # noqa: BLE001 - a boundary: one failed check must not end the other checks
                    _log.exception("cannot check the token of a stream; closing the stream")
                    current = None
                for stream in [*self._streams.get(token, ())]:
                    if stream.principal != current:
                        stream.close()
