"""Transcripts of the Claude Agent SDK in a Holdfast store.

The transcripts of one Claude session, its own and those of its subagents, are the records of one session:

- `entry`: one line of a transcript, with a numbered key.
- `uuid`: the uuid of such a line, so that a batch that is sent again is stored once.
- `transcript`: the path of a subagent's transcript.
- `summary`: the summary that the SDK computes for its list of sessions.
"""

import asyncio
import hashlib
import json
import time
from pathlib import Path
from typing import Final

from holdfast.frameworks.bodies import from_body, to_body
from holdfast.frameworks.framework_store import FrameworkStore, check_version
from holdfast.store import Store
from holdfast.types import Record

check_version("claude-agent-sdk", extra="claude-agent-sdk", at_least=(0, 2, 182), below=(0, 3))

from claude_agent_sdk import (  # noqa: E402 - after the check
    SessionKey,
    SessionListSubkeysKey,
    SessionStore,
    SessionStoreEntry,
    SessionStoreListEntry,
    SessionSummaryEntry,
    fold_session_summary,
)

_MAIN: Final = "main"
_ENTRY, _UUID, _TRANSCRIPT, _SUMMARY = "entry", "uuid", "transcript", "summary"
_AT_ONCE: Final = 8
"""How many summaries are read at the same time."""


class HoldfastSessionStore(SessionStore):
    """A `SessionStore` of the Claude Agent SDK, with all of its optional methods. Any thread and any asyncio event loop can use it.

    `store` is a URL, the path of a SQLite file, or an open store.
    """

    def __init__(self, store: str | Path | Store, *, owner: str = "local") -> None:
        self._store = FrameworkStore(store, framework="claude-agent-sdk", owner=owner)

    def close(self) -> None:
        """Disconnect. The transcripts stay in the store."""
        self._store.close()

    async def append(self, key: SessionKey, entries: list[SessionStoreEntry]) -> None:
        """Append entries to a transcript in one write. An entry with a uuid that the transcript has already is ignored."""
        if entries:
            await self._store.call(self._append(key, entries))

    async def load(self, key: SessionKey) -> list[SessionStoreEntry] | None:
        """Return all entries of a transcript in order; None if there are none."""
        return await self._store.call(self._load(key))

    async def list_sessions(self, project_key: str) -> list[SessionStoreListEntry]:
        """List the sessions of a project, with the time of the last write to the transcript of each."""
        summaries = await self.list_session_summaries(project_key)
        return [{"session_id": each["session_id"], "mtime": each["mtime"]} for each in summaries]

    async def list_session_summaries(self, project_key: str) -> list[SessionSummaryEntry]:
        """Return the summaries of all sessions of a project."""
        return await self._store.call(self._summaries(project_key))

    async def delete(self, key: SessionKey) -> None:
        """Erase a session with all of its transcripts, or delete the transcript of a subagent.

        Raises `RetentionRefused` if the session is on hold.
        """
        erasing = "subpath" not in key
        await self._store.call(self._store.erase(_name(key)) if erasing else self._delete_transcript(key))

    async def list_subkeys(self, key: SessionListSubkeysKey) -> list[str]:
        """List the paths of the transcripts of a session's subagents."""
        return await self._store.call(self._list_subkeys(key))

    async def _append(self, key: SessionKey, entries: list[SessionStoreEntry]) -> None:
        name, transcript = _name(key), _transcript(key)
        session_id = await self._store.find_id(name)
        if session_id is None:
            facts = {"project_key": key["project_key"], "session_id": key["session_id"]}
            session_id = (await self._store.ensure(name, title=key["session_id"], metadata=facts)).id
        async with self._store.writing(session_id) as writer:
            number = writer.known.get(transcript)
            if number is None:
                number = await self._next_number(session_id, transcript)
            uuids = [_uuid_key(transcript, entry) for entry in entries]
            seen = await self._stored(session_id, uuids) if number else set[str]()
            fresh: list[SessionStoreEntry] = []
            records: list[Record] = []
            for entry, uuid in zip(entries, uuids, strict=True):
                if uuid in seen:
                    continue
                if uuid is not None:
                    seen.add(uuid)
                    records.append(Record(kind=_UUID, key=uuid, body="null"))
                records.append(
                    Record(kind=_ENTRY, key=f"{transcript}/{number + len(fresh):012}", body=to_body(entry))
                )
                fresh.append(entry)
            if not fresh:
                return
            if "subpath" in key:
                records.append(Record(kind=_TRANSCRIPT, key=transcript, body=to_body([key["subpath"]])))
            else:
                records.append(await self._folded(session_id, key, fresh))
            await writer.write(records)
            writer.known[transcript] = number + len(fresh)

    async def _next_number(self, session_id: str, transcript: str) -> int:
        latest = await self._store.records(
            session_id, _ENTRY, prefix=f"{transcript}/", reverse=True, limit=1, bodies=False
        )
        return int(latest[0].key.rpartition("/")[2]) + 1 if latest else 0

    async def _stored(self, session_id: str, uuids: list[str | None]) -> set[str]:
        """Return those of the keys that are stored."""
        reads = [
            self._store.records(session_id, _UUID, prefix=uuid, limit=1, bodies=False)
            for uuid in uuids
            if uuid is not None
        ]
        return {record.key for found in await asyncio.gather(*reads) for record in found}

    async def _folded(self, session_id: str, key: SessionKey, fresh: list[SessionStoreEntry]) -> Record:
        before = await self._summary(session_id)
        summary = fold_session_summary(before, key, fresh)
        # Two writes never have the same time, and a clock that was set back does not make a session look older.
        summary["mtime"] = max(time.time_ns() // 1_000_000, before["mtime"] + 1 if before else 0)
        return Record(kind=_SUMMARY, key=_MAIN, body=to_body(summary))

    async def _summary(self, session_id: str) -> SessionSummaryEntry | None:
        found = await self._store.records(session_id, _SUMMARY, limit=1)
        return from_body(found[0].body) if found else None

    async def _load(self, key: SessionKey) -> list[SessionStoreEntry] | None:
        session_id = await self._store.find_id(_name(key))
        if session_id is None:
            return None
        found = await self._store.records(session_id, _ENTRY, prefix=f"{_transcript(key)}/")
        return [from_body(record.body) for record in found] or None

    async def _summaries(self, project_key: str) -> list[SessionSummaryEntry]:
        ids = [
            session.id
            async for session in self._store.all_sessions()
            if json.loads(session.metadata).get("project_key") == project_key
        ]
        found: list[SessionSummaryEntry] = []
        for start in range(0, len(ids), _AT_ONCE):
            summaries = await asyncio.gather(*map(self._summary, ids[start : start + _AT_ONCE]))
            found += [summary for summary in summaries if summary is not None]
        return found

    async def _list_subkeys(self, key: SessionListSubkeysKey) -> list[str]:
        session_id = await self._store.find_id(_name(key))
        if session_id is None:
            return []
        return [from_body(record.body)[0] for record in await self._store.records(session_id, _TRANSCRIPT)]

    async def _delete_transcript(self, key: SessionKey) -> None:
        session_id, transcript = await self._store.find_id(_name(key)), _transcript(key)
        if session_id is None:
            return
        async with self._store.writing(session_id) as writer:
            await self._store.refuse_on_hold(session_id)
            dropped = [(_TRANSCRIPT, transcript)]
            for kind in (_ENTRY, _UUID):
                found = await self._store.records(session_id, kind, prefix=f"{transcript}/", bodies=False)
                dropped += [(kind, record.key) for record in found]
            await writer.write(dropped=dropped)
            writer.known.pop(transcript, None)


def _name(key: SessionKey | SessionListSubkeysKey) -> str:
    return json.dumps([key["project_key"], key["session_id"]])


def _transcript(key: SessionKey) -> str:
    """Return the beginning of the keys of a transcript: a path may be longer than a key, and have any characters."""
    return _digest(key["subpath"]) if "subpath" in key else _MAIN


def _uuid_key(transcript: str, entry: SessionStoreEntry) -> str | None:
    uuid: object = entry.get("uuid")
    return f"{transcript}/{_digest(uuid)}" if isinstance(uuid, str) else None


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:40]
