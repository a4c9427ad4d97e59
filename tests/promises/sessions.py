"""Sessions with all kinds of content, for the promises about what is kept and what is gone."""

import hashlib
import json

from holdfast.commands import Command, Output
from holdfast.ids import new_id
from holdfast.media import MediaContext, MediaStore
from holdfast.store import Store
from holdfast.types import Batch, Checkpoint, Draft, Effect, Message, NewEvent, Run, Segment, SubmissionChange


async def fill(
    store: Store,
    media: MediaStore,
    texts: list[str],
    *,
    blobs: list[bytes] | None = None,
    agent: str = "scribe",
    drafts: bool = True,
) -> str:
    """Make a session whose every kind of content has these texts in it, and leave it idle."""
    first = texts[0] if texts else ""
    mark = json.dumps(first, ensure_ascii=False)
    about = json.dumps({"about": first}, ensure_ascii=False)
    safe = hashlib.sha256(first.encode()).hexdigest()[:8]
    session = await store.create_session(agent=agent, owner="ada", title=first, metadata=about)
    holder = await store.join("filler", ttl=60)
    submission = await store.submit(session.id, "message", mark, idempotency_key=f"key-{safe}")
    lease = await store.acquire(session.id, holder)
    await store.take(lease)
    run_id, delegate = new_id(), new_id()
    if drafts:
        await store.put_drafts(lease, [Draft(run_id=run_id, part=0, kind="text", text=first)])
    digests: list[str] = []
    for data in blobs or []:
        context = MediaContext(media_type="image/png", file_name="a picture", metadata={"of": safe})
        digests.append((await media.put(data, context)).removeprefix("media+sha256://"))
    bodies = [json.dumps(text, ensure_ascii=False) for text in texts]
    await store.write(
        lease,
        Batch(
            blobs=digests,
            events=[
                NewEvent(kind="message", payload=body, run_id=run_id, step=n, message=(1, n))
                for n, body in enumerate(bodies)
            ],
            segments=[Segment(number=1), Segment(number=2, parent=1, start=len(bodies))],
            messages=[
                *(Message(segment=1, position=n, body=body) for n, body in enumerate(bodies)),
                Message(segment=2, position=len(bodies), body=mark),
            ],
            checkpoints=[
                Checkpoint(id=new_id(), segment=1, length=len(bodies), run_id=run_id, step=1),
                Checkpoint(id=new_id(), segment=2, length=len(bodies) + 1, kind="interrupted"),
            ],
            runs=[
                Run(id=run_id, agent=agent, status="completed", error=first, metadata=about),
                Run(id=delegate, agent=agent, status="failed", parent_id=run_id),
            ],
            effects=[
                Effect(
                    run_id=run_id,
                    call_id="call 1/é",
                    tool="t",
                    state="completed",
                    result=mark,
                    summary=first,
                    undo=mark,
                    error=first,
                ),
                Effect(run_id=run_id, call_id="call 2", tool="t", message=(1, 0) if bodies else None),
            ],
            submissions=[SubmissionChange(id=submission.id, state="done", reason=first, run_id=run_id)],
        ),
    )
    await store.set_state(session.id, mark, expected_version=0)
    await store.set_state(session.id, mark, expected_version=0, name=f"planner {safe}")
    await store.set_cursor(session.id, f"reader-{safe}", (await store.session(session.id)).seq)
    command = await store.start_command(
        Command(
            id=new_id(),
            command=first or "ls",
            cwd="/tmp",
            owner="ada",
            holder=holder.id,
            host="here",
            session_id=session.id,
        )
    )
    command = await store.write_outputs(command, [Output(id=new_id(), stdout=first, stderr=None)])
    await store.write_outputs(_ended(command), [Output(id=new_id(), stdout=None, stderr=first, exit_code=0)])
    await store.release(lease)
    await store.leave(holder)
    return session.id


def _ended(command: Command) -> Command:
    from dataclasses import replace

    return replace(command, state="done", exit_code=0, stdout_bytes=1, stderr_bytes=1)
