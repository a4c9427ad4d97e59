"""Calls in this process, on a store: the operations themselves, without HTTP. Every caller is the local administrator."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from holdfast.api.models import Health
from holdfast.api.retention import RehydrateResult
from holdfast.client.transport import Transport
from holdfast.errors import ArchiveFailed, MissingExtra, NotFound, PayloadTooLarge, ServerError
from holdfast.media import to_uri
from holdfast.operations import events
from holdfast.operations.access import Caller, Principal, Rule, Service, authorize
from holdfast.operations.channel import Channels
from holdfast.operations.media import find_media
from holdfast.operations.registry import Operation, dump_body, parse_body
from holdfast.operations.topics import operations
from holdfast.tracing import carried

if TYPE_CHECKING:
    from pydantic import BaseModel


class LocalTransport(Transport):
    """Calls operations on a store. `actor` is the name in audit entries."""

    def __init__(self, service: Service, *, actor: str) -> None:
        self._service = service
        self._principal = Principal.local(actor)
        self._channels = Channels(service.store, comment_seconds=service.settings.stream_comment_seconds)

    async def send(
        self,
        method: str,
        path: str,
        *,
        json: object = None,
        params: Mapping[str, Any] | None = None,
        is_long: bool = False,
    ) -> "BaseModel | str":
        """Call an operation, and return its result. It has no timeout."""
        del is_long
        operation, names = _find(method, path)
        dump_body(params)  # raises an error for text that is not valid
        body = None
        if json is not None:
            encoded, limit = dump_body(json), self._service.settings.max_payload_bytes
            if len(encoded) > limit:
                raise PayloadTooLarge(what="body", size=len(encoded), limit=limit)
            body = parse_body(encoded)
        caller = await self._caller(operation.rule, names, method)
        result = await operation.call(caller, **operation.bind(names, params or {}, body))
        if isinstance(result, Health) and result.status != "ok":
            raise ServerError(status=503, code="unavailable", message=(result.problem or "").rstrip("."))
        if isinstance(result, str):  # over HTTP, too, lone surrogates are replaced
            return result.encode("utf-8", "replace").decode()
        return "" if result is None else result

    async def _caller(self, rule: Rule, path: Mapping[str, str], method: str = "GET") -> Caller:
        session = await authorize(self._service, self._principal, method, rule, path)
        return Caller(service=self._service, principal=self._principal, found=session, trace=carried())

    async def archive(self, session_id: str, *, gzip: bool) -> AsyncGenerator[bytes, None]:
        """Yield the archive of a session."""
        from holdfast.operations import retention

        caller = await self._caller("read", {"session_id": session_id})
        async with aclosing(retention.export(caller, session_id, gzip=gzip)) as pieces:
            async for piece in pieces:
                yield piece

    async def rehydrate(self, session_id: str, archive: Path | None, *, force: bool) -> RehydrateResult:
        """Restore a cleaned session from an archive file, or from the archive in the media store."""
        from holdfast.operations import retention

        caller = await self._caller("write", {"session_id": session_id}, "POST")
        if archive is None:
            return await retention.rehydrate(caller, session_id, None, force=force)
        try:
            with archive.open("rb") as file:
                return await retention.rehydrate(caller, session_id, file, force=force)
        except OSError as error:
            raise ArchiveFailed(problem=str(error)) from error

    async def media(self, sha256: str) -> bytes:
        """Return the content with this SHA-256."""
        media = await find_media(await self._caller("user", {}), sha256)
        return await media.get(to_uri(sha256))

    async def metrics(self) -> str:
        """Return the metrics in Prometheus format. Requires the extra `server`."""
        try:
            from holdfast.operations.metrics import Metrics
        except ModuleNotFoundError as error:
            raise MissingExtra(extra="server") from error
        return (await Metrics().text(self._service.store)).decode()

    @asynccontextmanager
    async def listen(
        self, path: str, *, after: int | None = None, params: Mapping[str, Any] | None = None
    ) -> AsyncGenerator[AsyncGenerator[str, None], None]:
        """Join the live feed of a session, and yield its text in pieces."""
        del params
        operation, names = _find("GET", path)
        caller = await self._caller(operation.rule, names)
        async with aclosing(self._pieces(caller, after or 0)) as pieces:
            yield pieces

    async def _pieces(self, caller: Caller, after: int) -> AsyncGenerator[str, None]:
        session = await events.check_event(caller, after)
        pieces: asyncio.Queue[bytes] = asyncio.Queue(maxsize=1)

        async def put(message: Any) -> None:
            await pieces.put(message["body"])

        async def feed() -> None:
            grace = events.grace_of(caller, session)
            async with self._channels.join(session.id, session.seq, grace, put) as (channel, client):
                await channel.feed(client, after)

        feeding = asyncio.create_task(feed())
        rest = b""
        try:
            while not (feeding.done() and pieces.empty()):
                getting = asyncio.ensure_future(pieces.get())
                try:
                    await asyncio.wait([feeding, getting], return_when=asyncio.FIRST_COMPLETED)
                finally:
                    if not getting.done():
                        getting.cancel()
                if not getting.cancelled() and getting.done():
                    rest += getting.result()
                    text, end, rest = rest.rpartition(b"\n")  # a piece may end within a character
                    yield (text + end).decode()
            if not feeding.cancelled():
                await feeding
        finally:
            feeding.cancel()
            await asyncio.gather(feeding, return_exceptions=True)


def _find(method: str, path: str) -> tuple[Operation, dict[str, str]]:
    for operation in operations():
        names = operation.match(method, path)
        if names is not None:
            return operation, {name: unquote(value) for name, value in names.items()}
    raise NotFound(what="operation on a store", id=f"{method} {path}")
