"""A client that returns the JSON of the HTTP API as it is on the wire, for tests of the server."""

import asyncio
import json
import random
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx2

from holdfast.errors import ArchiveFailed, HoldfastError

_PAUSE_SECONDS = 0.2
_LONGEST_PAUSE_SECONDS = 5.0
_PIECE_BYTES = 1024 * 1024
_LONG = httpx2.Timeout(30, read=None)
"""What works on all of a session answers when it is done."""


class ServerError(HoldfastError):
    """The server responded with {status}, {code}: {message}."""

    # `facts["facts"]` has the facts of the server's own error.

    code = "server_error"


class ServerUnavailable(HoldfastError):
    """The server at {url} cannot be reached: {problem}. Check the address, and whether it runs."""

    code = "server_unavailable"


class AsyncClient:
    """Talks to one server. Use it with `async with`."""

    def __init__(self, url: str, token: str | None = None, *, timeout: float = 30.0) -> None:
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        unlimited = httpx2.Limits(max_connections=None)  # every stream is a connection of its own
        self._url = url
        self._http = httpx2.AsyncClient(base_url=url, headers=headers, timeout=timeout, limits=unlimited)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def request(self, method: str, path: str, **options: Any) -> Any:
        """Send any request and return what it answers. Raises `ServerError`, or `ServerUnavailable`."""
        try:
            return _answer(await self._http.request(method, path, **options))
        except (httpx2.RequestError, httpx2.InvalidURL) as error:
            raise ServerUnavailable(url=str(self._url), problem=_why(error)) from error

    async def media(self, sha256: str) -> bytes:
        """Return the content with this digest, to which a message refers as `media+sha256://<digest>`."""
        try:
            response = await self._http.get(f"/api/media/{sha256}")
        except (httpx2.RequestError, httpx2.InvalidURL) as error:
            raise ServerUnavailable(url=str(self._url), problem=_why(error)) from error
        if not response.is_success:
            _answer(response)
        return response.content

    async def create_session(self, agent: str, **given: Any) -> dict[str, Any]:
        """Create a session."""
        return await self.request("POST", "/api/sessions", json={"agent": agent, **given})

    async def session(self, session_id: str) -> dict[str, Any]:
        """Return a session, who holds it, and what it asks."""
        return await self.request("GET", f"/api/sessions/{session_id}")

    async def sessions(self, **filters: Any) -> dict[str, Any]:
        """List sessions, last active first; pass `cursor=next_cursor` for the next page."""
        return await self.request("GET", "/api/sessions", params=filters)

    async def submit(self, session_id: str, text: str | None = None, **given: Any) -> dict[str, Any]:
        """Ask something of a session; by default that is a message."""
        body = given if text is None else {"text": text, **given}
        return await self.request("POST", f"/api/sessions/{session_id}/submissions", json=body)

    async def interrupt(self, session_id: str) -> dict[str, Any]:
        """Stop what a session is doing."""
        return await self.request("POST", f"/api/sessions/{session_id}/interrupt")

    async def approve(
        self, session_id: str, call: Mapping[str, Any], *, approved: bool = True, **more: Any
    ) -> dict[str, Any]:
        """Answer one of the calls that a session asks about."""
        answer = {"call_id": call["call_id"], "digest": call["digest"], "approved": approved, **more}
        return await self.request("POST", f"/api/sessions/{session_id}/approvals", json=answer)

    async def set_credential(
        self, session_id: str, name: str, value: str, *, ttl: float | None = None
    ) -> None:
        """Store a credential for the tools of a session, for `ttl` seconds if given. It cannot be read back."""
        body = {"value": value} | ({} if ttl is None else {"ttl": ttl})
        await self.request("PUT", f"/api/sessions/{session_id}/credentials/{name}", json=body)

    async def credentials(self, session_id: str) -> list[dict[str, Any]]:
        """List the names of a session's credentials, and when they expire."""
        return (await self.request("GET", f"/api/sessions/{session_id}/credentials"))["items"]

    async def delete_credential(self, session_id: str, name: str) -> None:
        """Delete a credential."""
        await self.request("DELETE", f"/api/sessions/{session_id}/credentials/{name}")

    async def stream(
        self, session_id: str, *, after: int = 0, drafts: bool = False
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Yield every event after a number, past and future, each once; with `drafts`, what is being said as well.

        A draft has `kind` "draft" and no `seq`.
        """
        pause = _PAUSE_SECONDS
        while True:
            headers = {"accept": "text/event-stream", "last-event-id": str(after)}
            try:
                async with self._http.stream(
                    "GET",
                    f"/api/sessions/{session_id}/events",
                    headers=headers,
                    timeout=httpx2.Timeout(10, read=60),
                ) as response:
                    if response.status_code != 200:
                        await response.aread()
                        _answer(response)
                    pause = _PAUSE_SECONDS
                    async for kind, data in _blocks(response):
                        if kind == "draft":
                            if drafts:
                                yield {"kind": kind, "payload": data}
                        elif kind == "end":
                            if data.get("reason") == "erased":
                                return
                            break
                        else:
                            after = data["seq"]
                            yield data
            except (httpx2.TransportError, ServerError) as error:
                if isinstance(error, ServerError) and error.facts["status"] != 503:
                    raise
            await asyncio.sleep(pause * random.uniform(0.5, 1))
            pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)

    async def archive(self, session_id: str, *, gzip: bool = False) -> AsyncGenerator[bytes, None]:
        """Yield the archive of a session, as it is at this moment. One that breaks off raises `ArchiveFailed`."""
        path, params = f"/api/sessions/{session_id}/export", {"gzip": gzip}
        try:
            async with self._http.stream("GET", path, params=params, timeout=_LONG) as response:
                if not response.is_success:
                    await response.aread()
                    _answer(response)
                async for piece in response.aiter_bytes():
                    yield piece
        except httpx2.RequestError as error:
            raise ArchiveFailed(problem=f"the server broke off: {error}") from error

    async def export(self, session_id: str, to: str | Path, *, gzip: bool = False) -> int:
        """Write the archive of a session to a file, which is there when it is whole; return its size."""
        file = Path(to)
        partial = file.with_name(f"{file.name}.partial")
        size = 0
        try:
            with partial.open("wb") as target:
                async for piece in self.archive(session_id, gzip=gzip):
                    await asyncio.to_thread(target.write, piece)
                    size += len(piece)
            partial.replace(file)
        except OSError as error:
            raise ArchiveFailed(problem=str(error)) from error
        finally:
            partial.unlink(missing_ok=True)
        return size

    async def clean(self, session_id: str, **how: Any) -> dict[str, Any]:
        """Delete what a session contains: `idle_days`, `force`, `archive="media"`, `dry_run`."""
        return await self.request("POST", f"/api/sessions/{session_id}/clean", json=how, timeout=_LONG)

    async def rehydrate(
        self, session_id: str, archive: str | Path | None = None, *, force: bool = False
    ) -> dict[str, Any]:
        """Bring a cleaned session back from an archive in a file, or from the stored one; return how many records came back."""
        content = None if archive is None else _pieces(Path(archive))
        path, params = f"/api/sessions/{session_id}/rehydrate", {"force": force}
        return await self.request("POST", path, content=content, params=params, timeout=_LONG)

    async def erase(self, session_id: str, *, children: bool = False) -> dict[str, Any]:
        """Erase a session for good; with `children` also the sessions of its delegate runs."""
        params = {"children": children}
        return await self.request("DELETE", f"/api/sessions/{session_id}", params=params, timeout=_LONG)

    async def hold(self, session_id: str, on: bool = True) -> dict[str, Any]:
        """Keep retention away from a session, or let it come again."""
        return await self.request("PATCH", f"/api/sessions/{session_id}", json={"hold": on})

    async def retention(self, session_id: str) -> dict[str, Any]:
        """Say which policy applies to a session, when it is due, and what stands against it."""
        return await self.request("GET", f"/api/sessions/{session_id}/retention")

    async def sweep(self, **how: Any) -> dict[str, Any]:
        """Do what is due by the policies: `dry_run`, `limit`. For administrators."""
        return await self.request("POST", "/api/retention/sweep", json=how, timeout=_LONG)

    async def audit(self, **filters: Any) -> dict[str, Any]:
        """List who did what to sessions, newest first: `session_id`, `cursor`, `limit`. For administrators."""
        return await self.request("GET", "/api/audit", params=filters)


async def _pieces(file: Path) -> AsyncGenerator[bytes, None]:
    try:
        with file.open("rb") as source:
            while piece := await asyncio.to_thread(source.read, _PIECE_BYTES):
                yield piece
    except OSError as error:
        raise ArchiveFailed(problem=str(error)) from error


async def _blocks(response: httpx2.Response) -> AsyncGenerator[tuple[str, dict[str, Any]], None]:
    kind, lines = "message", list[str]()
    async for line in _lines(response):
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "event":
            kind = value
        elif name == "data":
            lines.append(value)
        elif not line and lines:
            yield kind, json.loads("\n".join(lines))
            kind, lines = "message", []


async def _lines(response: httpx2.Response) -> AsyncGenerator[str, None]:
    """Yield the lines of an event stream. Within a text, Python takes more characters for the end of one."""
    rest = ""
    async for piece in response.aiter_text():
        *lines, rest = (rest + piece).split("\n")
        for line in lines:
            yield line.removesuffix("\r")


def _why(error: Exception) -> str:
    return str(error).rstrip(".") or type(error).__name__


def _answer(response: httpx2.Response) -> Any:
    if response.is_success and not response.content:
        return None
    code, message = "unknown", response.text[:200]
    facts: Any = {}
    try:
        value: Any = response.json()
        if response.is_success:
            return value
        code, message = str(value["error"]["code"]), str(value["error"]["message"])
        facts = value["error"].get("facts", {})
    except (
        ValueError,
        LookupError,
        TypeError,
        RecursionError,
    ):  # it is not from Holdfast, as that of a proxy
        pass
    said = message.strip().rstrip(".") or "no reason given"
    raise ServerError(status=response.status_code, code=code, message=said, facts=facts)
