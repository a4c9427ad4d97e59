"""Copy a history into a new session, atomically."""

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from holdfast.errors import SessionExists
from holdfast.ids import new_id
from holdfast.media import MediaStore, walker
from holdfast.record.history import load, read_history
from holdfast.record.offloader import MediaOffloader
from holdfast.record.open_calls import pending_effects
from holdfast.store import Store
from holdfast.types import Checkpoint, Effect, Lease, Session

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FORK = "fork"
"""The action of the audit entry."""


async def fork(
    store: Store,
    checkpoint: Checkpoint,
    *,
    owner: str | None = None,
    session_id: str | None = None,
    submission_id: str | None = None,
    lease: Lease | None = None,
    media: MediaStore | None = None,
) -> str:
    """Copy the history of a checkpoint into a new session and return its id. From then on the two are independent.

    Media is not copied: both sessions refer to it, and it is kept while either of them exists. With a `submission_id`, the fork
    is idempotent: a second call with the same `submission_id` and `session_id` returns the same session, even if the
    source has continued. Raises `SessionExists` if the id is taken, and, with the source's `lease`, `LeaseLost`. Copies nothing if the
    source is cleaned or erased meanwhile.
    """
    source = await store.session(checkpoint.session_id)
    forked = session_id or new_id()
    origin = {"session_id": source.id, "checkpoint_id": checkpoint.id, "submission_id": submission_id}
    bodies = await read_history(store, source.id, checkpoint)
    messages = load(await MediaOffloader(store, media).back(bodies))
    effects = [e for e in (await pending_effects(store, source.id, messages)).values() if e is not None]
    now = _microseconds(await store.now())
    rows = [
        ("session", _session(source, forked, owner or source.owner, len(bodies), now)),
        *_history(forked, bodies, checkpoint, now),
        *(("effects", _effect(forked, effect, now)) for effect in sorted(effects, key=_key)),
        *(
            ("blob_references", {"session_id": forked, "sha256": digest})
            for digest in sorted(walker.digests([*bodies, *(effect.result for effect in effects)]))
        ),
    ]
    try:
        await store.import_rows(
            forked,
            lambda: iter(rows),
            source=lease or source.id,
            action=_FORK,
            actor=owner or source.owner,
            detail=json.dumps(origin),
        )
    except SessionExists:
        if submission_id is None or not await _is_fork(store, forked, source.id, submission_id):
            raise
    return forked


async def _is_fork(store: Store, session_id: str, source_id: str, submission_id: str) -> bool:
    """Return whether this submission has already created the session, and its end was not written. The source may have continued since."""
    cursor = None
    while True:
        page = await store.audit_log(session_id=session_id, cursor=cursor)
        forks = [json.loads(entry.detail) for entry in page.items if entry.action == _FORK]
        if any((fork["session_id"], fork["submission_id"]) == (source_id, submission_id) for fork in forks):
            return True
        cursor = page.next_cursor
        if cursor is None:
            return False


def _session(source: Session, id: str, owner: str, seq: int, now: int) -> dict[str, Any]:
    return {
        "id": id,
        "agent": source.agent,
        "owner": owner,
        "title": source.title,
        "status": "idle",
        "waiting_for": None,
        "hold": 0,
        "metadata": "{}",
        "created_at": now,
        "active_at": now,
        "seq": seq,
    }


def _history(
    session_id: str, bodies: Sequence[str], checkpoint: Checkpoint, now: int
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the rows of a history in one segment, with an event for each message and one checkpoint."""
    of_session: dict[str, Any] = {"session_id": session_id}
    for position in range(len(bodies)):
        yield (
            "events",
            of_session
            | {
                "seq": position + 1,
                "kind": "message",
                "run_id": None,
                "step": None,
                "at": now,
                "payload": "{}",
            }
            | {"segment": 1, "position": position},
        )
    yield "segments", of_session | {"number": 1, "parent": None, "start": 0}
    for position, body in enumerate(bodies):
        yield "messages", of_session | {"segment": 1, "position": position, "body": body}
    yield (
        "checkpoints",
        of_session
        | {"id": new_id(), "run_id": None, "step": None, "kind": checkpoint.kind, "segment": 1}
        | {"length": len(bodies), "seq": len(bodies), "at": now},
    )


def _effect(session_id: str, effect: Effect, now: int) -> dict[str, Any]:
    return {
        "session_id": session_id,
        "run_id": effect.run_id,
        "call_id": effect.call_id,
        "tool": effect.tool,
        "state": effect.state,
        "step": effect.step,
        "arguments_digest": effect.arguments_digest,
        "idempotency_key": effect.idempotency_key,
        "result": effect.result,
        "error": effect.error,
        "summary": effect.summary,
        "undo": None,  # only the session in which the step ran can undo it
        "segment": None,
        "position": None,
        "attempts": effect.attempts,
        "started_at": now if effect.started_at is None else _microseconds(effect.started_at),
        "ended_at": None if effect.ended_at is None else _microseconds(effect.ended_at),
    }


def _key(effect: Effect) -> tuple[str, str]:
    return effect.run_id, effect.call_id


def _microseconds(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(microseconds=1)
