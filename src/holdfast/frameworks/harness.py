"""Runs of pydantic-ai-harness in a Holdfast store: each run is a session, named by its run id.

The harness reads and writes by run id, and its snapshots have the whole history, so a run needs no other session. A session for each
conversation would need an index from runs to conversations: a second write that a crash can separate from the first, that all processes
wait for, and that an erased conversation leaves behind. The conversation of a run is in the metadata of its session.

- `run`: the record of the run.
- `event`: an event, with a numbered key. `effect`: the state of a tool call.
- `snapshot` and `interrupted`: a complete or interrupted snapshot, with a number that counts both. It names its messages.
- `message`: a message, stored once, named by a digest. Its large content is media of the session.
- `event_key` and `snapshot_key`: the keys of all events and snapshots, so that one that is sent again is stored once.

A media store is a session of its own. Its records of kind `media` have the facts about the content.
"""

import asyncio
import hashlib
import inspect
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from datetime import datetime
from pathlib import Path
from typing import Any, Final, TypeVar

from holdfast.errors import BadInput, MediaCollected, MediaNotFound, SessionCleaned, SessionNotFound
from holdfast.frameworks.bodies import body_to_text, from_body, text_to_body, to_body
from holdfast.frameworks.framework_store import FrameworkStore, RecordWriter, check_version
from holdfast.media import open_media, referenced, to_uri
from holdfast.media.messages import move_back, move_out
from holdfast.store import Store
from holdfast.types import Json, Record, Session

check_version("pydantic-ai-harness", extra="harness", at_least=(0, 62), below=(0, 63))

from pydantic_ai.messages import ModelMessage  # noqa: E402 - after the check
from pydantic_ai_harness.media import MediaContext, PublicUrlResolver, media_uri_for, parse_media_uri  # noqa: E402
from pydantic_ai_harness.step_persistence import (  # noqa: E402
    ContinuableSnapshot,
    RunRecord,
    StepEvent,
    ToolEffectRecord,
)

from holdfast.record.history import dump_all, load  # noqa: E402

T = TypeVar("T")
_RUN, _EVENT, _EFFECT, _MESSAGE, _MEDIA = "run", "event", "effect", "message", "media"
_EVENT_KEY, _SNAPSHOT_KEY = "event_key", "snapshot_key"
_KINDS: Final = {"complete": "snapshot", "interrupted": "interrupted"}
"""The kind of record for each state of a snapshot."""
_TIMES: Final = frozenset({"timestamp", "started_at", "ended_at"})
_AT_ONCE: Final = 8
"""How many runs are read at the same time."""
_PUTS: Final = 3
"""How often content is uploaded that is collected before a session refers to it."""
_NO_CONTEXT: Final = MediaContext()


class HoldfastStepStore:
    """A `StepStore` of pydantic-ai-harness, for its `StepPersistence`. Any thread and any asyncio event loop can use it.

    `store` is a URL, the path of a SQLite file, or an open store. With `max_snapshots_per_run`, older snapshots of a run are deleted, but
    never the latest complete one, and none while the session is on hold.
    """

    def __init__(
        self, store: str | Path | Store, *, owner: str = "local", max_snapshots_per_run: int | None = None
    ) -> None:
        if max_snapshots_per_run is not None and max_snapshots_per_run < 1:
            raise BadInput(
                problem=f"max_snapshots_per_run must be at least 1 or None, not {max_snapshots_per_run}"
            )
        self._most = max_snapshots_per_run
        self._store = FrameworkStore(store, framework="harness", owner=owner)

    def close(self) -> None:
        """Disconnect. The runs stay in the store."""
        self._store.close()

    async def register_run(self, record: RunRecord) -> None:
        """Store the record of a run. Raises `ValueError` if the run has one."""
        await self._store.call(self._register(record))

    async def get_run(self, *, run_id: str) -> RunRecord | None:
        """Return the record of a run; None if it was not registered."""
        found = await self._store.call(self._read(run_id, _RUN))
        return _from_record(RunRecord, found[0]) if found else None

    async def list_runs(
        self, *, parent_run_id: str | None = None, conversation_id: str | None = None
    ) -> list[RunRecord]:
        """Return all runs with this parent and conversation, in the order in which they started. Cleaned runs are left out."""
        wanted = {"parent_run_id": parent_run_id, "conversation_id": conversation_id}
        return await self._store.call(
            self._list_runs({name: value for name, value in wanted.items() if value is not None})
        )

    async def append_event(self, event: StepEvent) -> None:
        """Append an event. It is ignored if the run has an event with the same key."""
        await self._store.call(self._append(event))

    async def list_events(self, *, run_id: str) -> list[StepEvent]:
        """Return the events of a run in the order in which they were appended."""
        return [
            _from_record(StepEvent, record) for record in await self._store.call(self._read(run_id, _EVENT))
        ]

    async def save_snapshot(self, snapshot: ContinuableSnapshot) -> None:
        """Store a snapshot in one write. It is ignored if the run ever had a snapshot with the same key."""
        await self._store.call(self._save(snapshot, [_text(snapshot, one) for one in snapshot.messages]))

    async def latest_snapshot(
        self, *, run_id: str, include_interrupted: bool = False
    ) -> ContinuableSnapshot | None:
        """Return the snapshot that was saved last; None if there is none."""
        found = await self._store.call(self._snapshots(run_id, include_interrupted, limit=1))
        return found[-1] if found else None

    async def list_snapshots(
        self, *, run_id: str, include_interrupted: bool = False
    ) -> list[ContinuableSnapshot]:
        """Return the snapshots of a run in the order in which they were saved."""
        return await self._store.call(self._snapshots(run_id, include_interrupted))

    async def record_tool_effect(self, record: ToolEffectRecord) -> None:
        """Store the state of a tool call. It replaces the previous one."""
        await self._store.call(
            self._put(
                record.run_id, Record(kind=_EFFECT, key=_digest(record.tool_call_id), body=_body(record))
            )
        )

    async def get_tool_effect(self, *, run_id: str, tool_call_id: str) -> ToolEffectRecord | None:
        """Return the state of a tool call; None if there is none."""
        found = await self._store.call(self._read(run_id, _EFFECT, _digest(tool_call_id)))
        return _from_record(ToolEffectRecord, found[0]) if found else None

    async def list_unresolved_tool_effects(self, *, run_id: str) -> list[ToolEffectRecord]:
        """Return the tool calls of a run without a recorded end, in the order in which they started."""
        effects = [
            _from_record(ToolEffectRecord, record)
            for record in await self._store.call(self._read(run_id, _EFFECT))
        ]
        unresolved = [effect for effect in effects if effect.status == "started"]
        return sorted(unresolved, key=lambda effect: effect.started_at.timestamp())

    async def delete_run(self, run_id: str) -> None:
        """Erase a run with everything that it stored. Raises `RetentionRefused` if the session is on hold."""
        await self._store.call(self._store.erase(run_id))

    async def _read(self, run_id: str, kind: str, prefix: str = "") -> list[Record]:
        session_id = await self._store.find_id(run_id)
        return [] if session_id is None else await self._store.records(session_id, kind, prefix=prefix)

    async def _put(self, run_id: str, record: Record) -> None:
        async with self._store.writing(await self._store.ensure_id(run_id)) as writer:
            await writer.write([record])

    async def _register(self, run: RunRecord) -> None:
        facts = {"conversation_id": run.conversation_id, "parent_run_id": run.parent_run_id}
        facts["agent_name"] = run.agent_name
        session = await self._store.ensure(run.run_id, metadata=facts)
        async with self._store.writing(session.id) as writer:
            if await _is_stored(self._store, session.id, _RUN, _RUN):
                message = f"run {run.run_id!r} is registered already; a run id is used once"
                raise ValueError(message)
            known: dict[str, Any] = json.loads(session.metadata)
            if (
                not known.items() >= facts.items()
            ):  # it was created by an event, or by a process that was killed
                await self._store.store.update_session(session.id, metadata=json.dumps(known | facts))
            await writer.write([Record(kind=_RUN, key=_RUN, body=_body(run))])

    async def _list_runs(self, wanted: dict[str, str]) -> list[RunRecord]:
        sessions: list[Session] = []
        async for session in self._store.all_sessions():
            facts: dict[str, Any] = json.loads(session.metadata)
            if all(facts.get(name, value) == value for name, value in wanted.items()):
                sessions.append(session)
        sessions.sort(key=lambda session: session.created_at)
        runs: list[RunRecord] = []
        for start in range(0, len(sessions), _AT_ONCE):
            found = await asyncio.gather(*map(self._run_of, sessions[start : start + _AT_ONCE]))
            runs += [
                run
                for run in found
                if run is not None and all(getattr(run, name) == value for name, value in wanted.items())
            ]
        return sorted(runs, key=lambda run: run.started_at)

    async def _run_of(self, session: Session) -> RunRecord | None:
        with suppress(SessionNotFound, SessionCleaned):  # deleted meanwhile
            found = await self._store.records(session.id, _RUN, limit=1)
            return _from_record(RunRecord, found[0]) if found else None
        return None

    async def _append(self, event: StepEvent) -> None:
        session_id = await self._store.ensure_id(event.run_id)
        async with self._store.writing(session_id) as writer:
            keys = _keys(_EVENT_KEY, event.idempotency_key)
            if keys and await _is_stored(self._store, session_id, _EVENT_KEY, keys[0].key):
                return
            number = writer.known.get(_EVENT)
            if number is None:
                latest = await self._store.records(session_id, _EVENT, reverse=True, limit=1, bodies=False)
                number = int(latest[0].key) + 1 if latest else 0
            await writer.write([Record(kind=_EVENT, key=_number(number), body=_body(event)), *keys])
            writer.known[_EVENT] = number + 1

    async def _save(self, snapshot: ContinuableSnapshot, texts: list[Json]) -> None:
        session_id = await self._store.ensure_id(snapshot.run_id)
        async with self._store.writing(session_id) as writer:
            keys = _keys(_SNAPSHOT_KEY, snapshot.idempotency_key)
            if keys and await _is_stored(self._store, session_id, _SNAPSHOT_KEY, keys[0].key):
                return
            number, stored = writer.known.get("snapshot") or await self._latest(session_id)
            named = {_digest(text): text for text in texts}
            body = _body(snapshot, messages=[_digest(text) for text in texts])
            kind, key = _KINDS[snapshot.state], _number(number)
            dropped = await self._outdated(session_id, kind, key)

            async def records() -> tuple[list[Record], list[str]]:
                made, blobs = await self._messages(
                    {name: text for name, text in named.items() if name not in stored}
                )
                return [Record(kind=kind, key=key, body=body), *made, *keys], blobs

            await _write(writer, records, dropped)
            writer.known["snapshot"] = (number + 1, named.keys())

    async def _latest(self, session_id: str) -> tuple[int, Sequence[str]]:
        """Return the number of the next snapshot, and the names of the messages that the latest one has."""
        reads = [self._store.records(session_id, kind, reverse=True, limit=1) for kind in _KINDS.values()]
        found = [record for records in await asyncio.gather(*reads) for record in records]
        if not found:
            return 0, ()
        latest = max(found, key=lambda record: record.key)
        return int(latest.key) + 1, from_body(latest.body)["messages"]

    async def _messages(self, texts: Mapping[str, Json]) -> tuple[list[Record], list[str]]:
        """Move the large content of messages to the media store, and return their records and the content's digests."""
        store = self._store.store
        media, blobs = open_media(store=store), dict[str, None]()
        records: list[Record] = []
        for name, text in texts.items():
            short = await move_out(text, lambda: media, store.settings.media_threshold_bytes, blobs)
            records.append(Record(kind=_MESSAGE, key=name, body=text_to_body(short)))
        return records, list(blobs)

    async def _outdated(self, session_id: str, kind: str, key: str) -> list[tuple[str, str]]:
        """Return the snapshots to delete when one with this kind and key is added."""
        if self._most is None:
            return []
        found = {key: kind}
        for one in _KINDS.values():
            for record in await self._store.records(session_id, one, bodies=False):
                found[record.key] = one
        kept = set(sorted(found)[-self._most :])
        kept.add(max((key for key, kind in found.items() if kind == _KINDS["complete"]), default=""))
        dropped = [(kind, key) for key, kind in found.items() if key not in kept]
        if dropped and (await self._store.store.retention_state(session_id)).hold:
            return []
        return dropped

    async def _snapshots(
        self, run_id: str, include_interrupted: bool, limit: int | None = None
    ) -> list[ContinuableSnapshot]:
        """Return snapshots in order; with a limit, the latest of each state."""
        session_id = await self._store.find_id(run_id)
        if session_id is None:
            return []
        found: list[Record] = []
        for kind in list(_KINDS.values())[: 2 if include_interrupted else 1]:
            found += await self._store.records(session_id, kind, reverse=True, limit=limit)
        found = sorted(found, key=lambda record: record.key)[-(limit or len(found)) :]
        if not found:
            return []
        bodies = [from_body(record.body) for record in found]
        needed = {name for body in bodies for name in body["messages"]}
        stored = await self._store.records(session_id, _MESSAGE)
        texts = {record.key: body_to_text(record.body) for record in stored if record.key in needed}
        whole = dict(zip(texts, await self._restored(list(texts.values())), strict=True))
        return [
            _from_fields(
                ContinuableSnapshot, body | {"messages": load(whole[name] for name in body["messages"])}
            )
            for body in bodies
        ]

    async def _restored(self, texts: list[Json]) -> list[Json]:
        """Return messages with their large content, if a session of this owner refers to it: an imported archive may name any content."""
        store = self._store.store
        media = open_media(store=store)
        for digest in {digest for text in texts for digest in referenced(text)}:
            if not await store.is_referenced(digest, owner=self._store.owner):
                raise MediaNotFound(uri=to_uri(digest), location=media.location)
        return await move_back(texts, lambda: media)


class HoldfastMediaStore:
    """A `MediaStore` of pydantic-ai-harness. Any thread and any asyncio event loop can use it.

    All content is media of one session with this name, which is exported, cleaned and erased with it. `HoldfastStepStore` does not need it.
    `store` is a URL, the path of a SQLite file, or an open store. `public_url` returns the URL for a URI and a context, if there is one.
    """

    def __init__(
        self,
        store: str | Path | Store,
        *,
        name: str = "media",
        owner: str = "local",
        public_url: PublicUrlResolver | None = None,
    ) -> None:
        self._name = name
        self._public_url = public_url
        self._store = FrameworkStore(store, framework="harness-media", owner=owner)

    def close(self) -> None:
        """Disconnect. The content stays in the store."""
        self._store.close()

    async def put(self, data: bytes, *, context: MediaContext = _NO_CONTEXT) -> str:
        """Store bytes durably, and return their URI. The context of the first call with the same bytes is kept."""
        uri = media_uri_for(data)
        body = to_body({**vars(context), "metadata": dict(context.metadata)})
        await self._store.call(self._put(data, Record(kind=_MEDIA, key=parse_media_uri(uri), body=body)))
        return uri

    async def get(self, uri: str, *, context: MediaContext = _NO_CONTEXT) -> bytes:
        """Return the bytes. Raises `FileNotFoundError` if they were never stored, and `MediaDamaged` if they have changed."""
        del context
        await self._find(uri)
        return await self._store.call(self._get(uri))

    async def exists(self, uri: str, *, context: MediaContext = _NO_CONTEXT) -> bool:
        """Return whether the bytes are stored."""
        del context
        return bool(await self._store.call(self._read(parse_media_uri(uri))))

    async def public_url(self, uri: str, *, context: MediaContext = _NO_CONTEXT) -> str | None:
        """Return a URL that a model can fetch; None if there is none."""
        url = None if self._public_url is None else self._public_url(uri, context)
        return await url if inspect.isawaitable(url) else url

    async def get_metadata(self, uri: str, *, context: MediaContext = _NO_CONTEXT) -> Mapping[str, str]:
        """Return the metadata of the first call of `put` with these bytes. Raises `FileNotFoundError` if there was none."""
        del context
        return from_body((await self._find(uri)).body)["metadata"]

    async def _find(self, uri: str) -> Record:
        found = await self._store.call(self._read(parse_media_uri(uri)))
        if not found:
            message = f"media not found: {uri}"
            raise FileNotFoundError(message)
        return found[0]

    async def _read(self, sha256: str) -> list[Record]:
        session_id = await self._store.find_id(self._name)
        if session_id is None or not await self._store.store.is_referenced(sha256, owner=self._store.owner):
            return []
        return await self._store.records(session_id, _MEDIA, prefix=sha256)

    async def _get(self, uri: str) -> bytes:
        return await open_media(store=self._store.store).get(uri)

    async def _put(self, data: bytes, record: Record) -> None:
        session_id = await self._store.ensure_id(self._name)

        async def records() -> tuple[list[Record], list[str]]:
            await open_media(store=self._store.store).put(data)
            is_stored = await _is_stored(self._store, session_id, _MEDIA, record.key)
            return ([] if is_stored else [record]), [record.key]

        async with self._store.writing(session_id) as writer:
            await _write(writer, records)


async def _write(
    writer: RecordWriter,
    records: Callable[[], Awaitable[tuple[list[Record], list[str]]]],
    dropped: Sequence[tuple[str, str]] = (),
) -> None:
    """Write records and the digests of the media that they refer to. Upload media again that was collected in between."""
    for left in reversed(range(_PUTS)):
        made, blobs = await records()
        try:
            await writer.write(made, dropped, blobs=blobs)
        except MediaCollected:
            if not left:
                raise
        else:
            return


async def _is_stored(store: FrameworkStore, session_id: str, kind: str, key: str) -> bool:
    return bool(await store.records(session_id, kind, prefix=key, limit=1, bodies=False))


def _keys(kind: str, key: str | None) -> list[Record]:
    return [] if key is None else [Record(kind=kind, key=_digest(key), body="null")]


def _text(snapshot: ContinuableSnapshot, message: ModelMessage) -> Json:
    text = dump_all(message)
    if text is None:
        problem = f"a message of run {snapshot.run_id!r} has a value that cannot be serialized"
        raise BadInput(problem=f"{problem}. Return values from your tools that Pydantic can serialize")
    return text


def _body(record: RunRecord | StepEvent | ToolEffectRecord | ContinuableSnapshot, **changed: object) -> Json:
    values = {one.name: getattr(record, one.name) for one in fields(record)} | changed
    return to_body(
        {name: value.isoformat() if isinstance(value, datetime) else value for name, value in values.items()}
    )


def _from_record(kind: Callable[..., T], record: Record) -> T:
    return _from_fields(kind, from_body(record.body))


def _from_fields(kind: Callable[..., T], values: dict[str, Any]) -> T:
    return kind(
        **{
            name: datetime.fromisoformat(value) if name in _TIMES and value is not None else value
            for name, value in values.items()
        }
    )


def _number(number: int) -> str:
    return f"{number:012}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:40]
