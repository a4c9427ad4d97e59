"""The inbox: all sessions that wait for a person."""

from contextlib import suppress

from holdfast.api.models import EffectInfo, Inbox, InboxItem
from holdfast.approval import ApprovalRequest
from holdfast.errors import SessionNotFound
from holdfast.leases import why_waiting
from holdfast.operations.access import Caller
from holdfast.operations.registry import ClientMethod, operation
from holdfast.questions import open_questions, unended_calls
from holdfast.store import Store
from holdfast.types import Session

_MAX_ITEMS = 50
"""The maximum number of sessions or runs for each reason to wait."""


@operation("GET", "/api/inbox", "user", ClientMethod("Client.inbox", "inbox"), topic="inbox")
async def read_inbox(caller: Caller) -> Inbox:
    """List the sessions that wait for a person, longest wait first, with the reason of each."""
    store, owner = caller.store, caller.principal.owner_filter
    waiting = await store.sessions(owner=owner, status="waiting", limit=_MAX_ITEMS)
    queued = await store.sessions(owner=owner, status="queued", limit=_MAX_ITEMS)
    failed = await store.sessions(owner=owner, status="failed", limit=_MAX_ITEMS)
    interrupted = await store.find_runs(owner=owner, interrupted=True, limit=_MAX_ITEMS)
    unresolved = await store.find_runs(owner=owner, unresolved=True, limit=_MAX_ITEMS)
    alone = [
        session for session in (*waiting.items, *failed.items) if session.parent_id is None
    ]  # else its parent handles the failure, and has the question
    sessions = {session.id: session for session in (*queued.items, *alone)}
    for run in (*interrupted.items, *unresolved.items):
        with suppress(SessionNotFound):  # erased since the query
            sessions[run.session_id] = sessions.get(run.session_id) or await store.session(run.session_id)
    items = {session.id: await _item(store, session) for session in sessions.values()}
    for session_id in {run.session_id for run in unresolved.items} & set(items):
        _, cut_off = await unended_calls(store, sessions[session_id])
        items[session_id].effects = [EffectInfo.of(effect) for effect in cut_off]
    listed = [
        item
        for item in items.values()
        if item.status in {"waiting", "failed"} or item.problem or item.effects
    ]
    more = any(page.next_cursor for page in (waiting, queued, failed, interrupted, unresolved))
    return Inbox(items=sorted(listed, key=lambda item: item.active_at), more=more)


async def _item(store: Store, session: Session) -> InboxItem:
    item = InboxItem.of(session)
    item.problem = await why_waiting(store, session)
    questions = await open_questions(store, session)
    item.approvals = [ApprovalRequest.model_validate(question) for question in questions]
    return item
