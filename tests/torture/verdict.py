"""What must hold when the dust has settled: the store, the file of effects and what clients saw, against each other."""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, TypeAlias

from pydantic_ai.messages import ModelResponse, TextPart, ToolReturnPart

from holdfast.api.models import event_json
from holdfast.errors import NotFound
from holdfast.record import is_provider_valid
from holdfast.record.resume_point import find_resume_point
from holdfast.store import Store
from holdfast.types import Effect, Event, Submission
from holdfast.usage import UsageFilter
from tests.flaky_receiver import notices_of
from tests.torture.app import POLICIES, answer, call_id, effects_folder
from tests.torture.clients import Clients, Fork, Reader, Sent, digest

_UNKNOWN = "it is unknown whether it took effect"
USAGE = "usage that differs from the record"
NOTICES = "notices lost, invented or out of order"
BUDGETS = "model requests beyond a budget"
_OF_A_RUN = ("run_", "model_request_", "tool_call_", "step_", "message")
_ATTEMPTS = 5
_DID = re.compile(r"did (\S+) at epoch (\d+)")
UNRECORDED = "results without an effect, or effects without a record"
STILL_UNKNOWN = "effects with a probe that stay unknown, 1 % or more"


class Verdict:
    """Every promise that was put to the test, what breaks it, and what was counted on the way."""

    def __init__(self) -> None:
        self.broken: dict[str, list[str]] = {
            name: []
            for name in (
                "accepted submissions lost",
                "submissions done twice, or done wrongly",
                "completed effects repeated",
                UNRECORDED,
                STILL_UNKNOWN,
                "stale writes accepted",
                "gaps or duplicates in the store",
                "gaps or duplicates seen by clients",
                "events seen by clients and not in the store",
                "timers that fired early, or waits that ended twice",
                USAGE,
                BUDGETS,
                NOTICES,
                "sessions stuck",
                "forks that are missing or not whole",
                "histories that no provider would take",
                "broken invariants (holdfast db check)",
                "answers that no fault excuses",
                "processes that ended by themselves",
            )
        }
        self.counts: Counter[str] = Counter()

    def add(self, promise: str, problems: Iterable[str]) -> None:
        """Note what breaks a promise."""
        self.broken[promise] += problems

    @property
    def holds(self) -> bool:
        """Whether nothing is broken."""
        return not any(self.broken.values())


class Effects:
    """What the tools have really done, by call."""

    def __init__(self, file: Path) -> None:
        self.begun: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
        self.ended: Counter[str] = Counter()
        for line in file.read_text().splitlines() if file.exists() else ():
            facts = json.loads(line)
            if facts["phase"] == "begun":
                self.begun[facts["call"]].append(facts)
            else:
                self.ended[facts["call"]] += 1
        self.stored: defaultdict[str, list[str]] = defaultdict(list)
        """The keys of the effects of steps with a probe."""
        for stored in effects_folder(file).glob("*"):
            if "." not in stored.name:  # else a worker was killed while it stored this one
                self.stored[json.loads(stored.read_text())["call"]].append(stored.name)


Notices: TypeAlias = Mapping[str, list[tuple[str, int]]]


async def judge(
    store: Store, clients: Clients, effects: Effects, notices: Notices | None, verdict: Verdict
) -> None:
    """Hold everything against everything; the notices too, if there are any."""
    by_session: defaultdict[str, list[Sent]] = defaultdict(list)
    for sent in clients.sent:
        by_session[sent.session_id].append(sent)
    verdict.counts["effects begun"] = sum(map(len, effects.begun.values()))
    verdict.counts["effects that took place"] = len(effects.begun)
    recorded: set[str] = set()
    for reader in clients.readers:
        recorded |= await _judge_session(store, reader, by_session[reader.session_id], effects, verdict)
        if notices is not None:
            await _judge_notices(store, reader.session_id, notices, verdict)
    verdict.add(
        UNRECORDED,
        [
            f"{call} is not in the ledger"
            for call, begun in effects.begun.items()
            if call not in recorded and not _changes_nothing(begun)
        ],
    )
    probed = verdict.counts["effects with a probe"]
    verdict.counts["effects with a probe that stay unknown"] += 0  # for the report
    unknown = verdict.counts["effects with a probe that stay unknown"]
    if unknown and 100 * unknown >= probed:
        verdict.add(STILL_UNKNOWN, [f"{unknown} of {probed}"])
    for fork in clients.forks:
        await _judge_fork(store, fork, verdict)
    holders = await store.holders()
    verdict.add("sessions stuck", (f"holder {holder.name} is left behind" for holder in holders))
    verdict.add("answers that no fault excuses", clients.tally.wrong)


async def _judge_session(
    store: Store, reader: Reader, sent: list[Sent], effects: Effects, verdict: Verdict
) -> set[str]:
    """Judge one session, and return the calls that are in its ledger."""
    session = await store.session(reader.session_id)
    if session.status not in {"idle", "failed"} or (session.pending, session.holder) != (0, None):
        verdict.add(
            "sessions stuck",
            [f"{session.id} is {session.status}, {session.pending} pending, held by {session.holder}"],
        )
    events = await _all_events(store, session.id)
    verdict.counts["events"] += len(events)
    verdict.counts["epochs"] += session.epoch
    requests = sum(event.kind == "model_request_completed" for event in events)
    counted = (await store.usage((), UsageFilter(session_id=session.id))).items
    verdict.counts["model requests"] += requests
    if requests != (found := sum(usage.requests for usage in counted)):
        verdict.add(USAGE, [f"{session.id}: {found} requests counted, {requests} on record"])
    if [event.seq for event in events] != list(range(1, session.seq + 1)):
        verdict.add("gaps or duplicates in the store", [f"{session.id}: {len(events)} of {session.seq}"])
    await _judge_budget(store, session.id, events, verdict)
    _judge_reader(reader, events, verdict)
    submissions = await _all_submissions(store, session.id)
    _judge_submissions(submissions, sent, events, verdict)
    _judge_runs(session.id, events, verdict)
    _judge_times(session.id, sent, events, verdict)
    await _judge_history(store, session.id, submissions, sent, effects, verdict)
    given_up = {str(found.idempotency_key) for found in submissions if found.state != "done"}
    return await _judge_effects(store, session.id, events, effects, given_up, verdict)


async def _judge_notices(store: Store, session_id: str, notices: Notices, verdict: Verdict) -> None:
    wanted = notices_of(await _all_events(store, session_id), await _all_submissions(store, session_id))
    arrived = notices.get(session_id, [])
    if arrived != wanted:
        missing = [each for each in wanted if each not in arrived]
        extra = [each for each in arrived if each not in wanted]
        verdict.add(NOTICES, [f"{session_id}: missing {missing}, extra {extra}, else in another order"])


async def _judge_budget(store: Store, session_id: str, events: list[Event], verdict: Verdict) -> None:
    """No model request began when as many had ended as the budget of that moment allowed."""
    limits: list[tuple[datetime, int]] = []
    cursor: str | None = None
    while True:
        page = await store.audit_log(session_id=session_id, cursor=cursor)
        limits += [(e.at, json.loads(e.detail)["requests"]) for e in page.items if e.action == "set_budget"]
        if (cursor := page.next_cursor) is None:
            break
    if not limits:
        return
    completed = 0
    for event in events:
        completed += event.kind == "model_request_completed"
        verdict.counts["waits for a budget"] += event.kind == "run_waiting" and '"budget"' in event.payload
        if event.kind == "model_request_started":
            most = max(limit for at, limit in limits if at <= event.at)
            if completed >= most:
                verdict.add(BUDGETS, [f"{session_id}: {event.seq} after {completed} of {most}"])


def _judge_reader(reader: Reader, events: list[Event], verdict: Verdict) -> None:
    """Whatever a client saw is in the store, and it saw everything, once, in order."""
    seen = "gaps or duplicates seen by clients"
    verdict.add(seen, [*reader.gaps, *reader.duplicates])
    verdict.counts["events seen by clients"] += len(reader.seen)
    if reader.last < len(events):
        verdict.add(seen, [f"{reader.session_id}: seen up to {reader.last} of {len(events)}"])
    stored = {event.seq: digest(event_json(event).encode()) for event in events}
    other = [number for number, found in reader.seen if stored.get(number) != found]
    verdict.add("events seen by clients and not in the store", [f"{reader.session_id}: {n}" for n in other])


def _judge_submissions(
    submissions: list[Submission], sent: list[Sent], events: list[Event], verdict: Verdict
) -> None:
    """Each accepted submission is there once and ended once; what was never sent is not there."""
    messages = [found for found in submissions if found.kind == "message"]
    retried = _retried(submissions)
    by_key: defaultdict[str | None, list[Submission]] = defaultdict(list)
    for found in messages:
        by_key[found.idempotency_key].append(found)
    told = [
        json.loads(event.payload) | {"event": event.kind} for event in events if event.kind.startswith("sub")
    ]
    ends = Counter(
        fact["submission_id"] for fact in told if fact["event"] in {"submission_done", "submission_failed"}
    )
    starts = Counter(fact["submission_id"] for fact in told if fact["event"] == "submission_started")
    for each in sent:
        found = by_key.pop(each.key, [])
        if len(found) != 1 or each.submission_id != found[0].id:
            problem = f"{each.key}: {len(found)} submissions; answered was {each.submission_id}"
            verdict.add("accepted submissions lost", [problem])
            continue
        verdict.counts[f"submissions {found[0].state}"] += 1
        verdict.counts["attempts"] += found[0].attempts
        if ends[found[0].id] != 1:
            problem = f"{each.key} of {each.session_id} ended {ends[found[0].id]} times"
            verdict.add("submissions done twice, or done wrongly", [problem])
        # RequestBody up only after it had really been begun so often, each time cut off.
        given_up = found[0].state == "dead" and starts[found[0].id] >= _ATTEMPTS and found[0].reason
        interrupted = found[0].state == "failed" and found[0].reason == "interrupted"
        if interrupted:
            verdict.counts[
                f"interrupted turns whose last retry is {retried.get(found[0].id, 'refused')}"
            ] += 1
        if found[0].state != "done" and not given_up and not interrupted:
            problem = f"{each.key} of {each.session_id} is {found[0].state}: {found[0].reason}"
            verdict.add("accepted submissions lost", [problem])
    never = [f"{key} was never sent" for key in by_key]
    verdict.add("submissions done twice, or done wrongly", never)
    still_open = [s.id for s in submissions if s.state not in {"done", "failed", "dead"}]
    verdict.add("sessions stuck", [f"submission {found} has not ended" for found in still_open])
    order = [fact["submission_id"] for fact in told if fact["event"] == "submission_started"]
    first = list(dict.fromkeys(order))
    later = {each.submission_id for each in sent if each.deliver_at is not None}
    wanted = [s.id for s in sorted(messages, key=lambda s: s.position) if s.id in starts.keys() - later]
    if [found for found in first if found in set(wanted)] != wanted:
        problem = f"{messages[0].session_id}: begun in another order than asked for"
        verdict.add("submissions done twice, or done wrongly", [problem])


def _retried(submissions: list[Submission]) -> dict[str, str]:
    """Return, for each message with a retry that ran, the state of the last one."""
    origins: dict[str, str] = {}
    states: dict[str, str] = {}
    for found in submissions:
        if found.kind == "retry":
            named = str(json.loads(found.payload)["submission_id"])
            origins[found.id] = origins.get(named, named)
            if found.run_id is not None:
                states[origins[found.id]] = found.state
    return states


def _judge_runs(session_id: str, events: list[Event], verdict: Verdict) -> None:
    """A run writes under one lease. Once the next one has begun, nothing of it may come any more."""
    over: set[str] = set()
    current: str | None = None
    epochs: list[int] = []
    known: set[str] = set()
    for event in events:
        if event.kind in {"takeover", "recovered", "handover"}:
            verdict.counts[f"{event.kind} events"] += 1
        # Of results that are answered together some may be older, from the ledger; and a message may be on record again.
        new = {
            found[0]: int(found[1]) for found in _DID.findall(event.message or "") if found[0] not in known
        }
        known |= new.keys()
        if new:
            epochs.append(max(new.values()))
        if event.run_id is None or not event.kind.startswith(_OF_A_RUN):
            continue
        if event.run_id in over:
            problem = f"{session_id}: {event.seq} {event.kind} of run {event.run_id}, which was over"
            verdict.add("stale writes accepted", [problem])
        if event.run_id != current:
            if current is not None:
                over.add(current)
            current = event.run_id
    if epochs != sorted(epochs):
        verdict.add("stale writes accepted", [f"{session_id}: results of epochs {epochs}"])


def _judge_times(session_id: str, sent: list[Sent], events: list[Event], verdict: Verdict) -> None:
    """No timer fires before its time, by the clock of the database, and no wait of a turn ends twice."""
    early = "timers that fired early, or waits that ended twice"
    due = {each.submission_id: each.deliver_at for each in sent if each.deliver_at is not None}
    turn = ""
    ended: Counter[tuple[str, str]] = Counter()
    for event in events:
        if event.kind == "submission_started":
            turn = json.loads(event.payload)["submission_id"]
            at = due.pop(turn, None)
            verdict.counts["messages for later"] += at is not None
            if at is not None and event.at < at:
                verdict.add(early, [f"{session_id}: {event.seq} of {turn} before {at}"])
        elif event.kind == "approval_answered":
            by = "by default" if json.loads(event.payload).get("by") == "deadline" else "by a person"
            verdict.counts[f"questions answered {by}"] += 1
        elif event.kind == "wait_ended":
            wait = json.loads(event.payload)
            verdict.counts[f"waits ended by a {wait['wait']}"] += 1
            ended["" if wait["call_id"].startswith("k") else turn, wait["call_id"]] += 1
            if wait["ended_by"] == "time" and event.at < datetime.fromisoformat(wait["until"]):
                verdict.add(early, [f"{session_id}: {event.seq} before {wait['until']}"])
    twice = [f"{session_id}: {wait} ended {times} times" for wait, times in ended.items() if times > 1]
    verdict.add(early, twice)


async def _judge_history(
    store: Store,
    session_id: str,
    submissions: list[Submission],
    sent: list[Sent],
    effects: Effects,
    verdict: Verdict,
) -> None:
    """The history can be sent to a provider, and every turn in it is what was asked for, once."""
    # As the next message would find it: calls that a turn which was given up has left open are closed there.
    history = (await find_resume_point(store, session_id, None)).messages
    if not is_provider_valid(history):
        verdict.add("histories that no provider would take", [session_id])
    retried = _retried(submissions)
    states = {s.idempotency_key: retried.get(s.id, s.state) for s in submissions}
    words = Counter(
        part.content
        for message in history
        if isinstance(message, ModelResponse)
        for part in message.parts
        if isinstance(part, TextPart)
    )
    results = {
        part.tool_call_id: str(part.content)
        for message in history
        for part in message.parts
        if isinstance(part, ToolReturnPart)
    }
    for text in words:
        if text.startswith('{"results"'):  # a plain agent has added them
            results |= json.loads(text)["results"]
    wrong = "submissions done twice, or done wrongly"
    for each in sent:
        if states.get(each.key) != "done":
            continue
        if words[answer(each.key)] != 1:
            verdict.add(wrong, [f"{each.key} of {session_id} was answered {words[answer(each.key)]} times"])
        for step, calls in enumerate(each.plan):
            for number in range(len(calls)):
                call = call_id(each.key, step, number)
                result = results.get(call, "")
                if result.startswith(f"did {call} "):
                    verdict.counts["results recorded"] += 1
                    if not (effects.ended[call] or effects.stored.get(call)):
                        verdict.add(UNRECORDED, [call])
                elif _UNKNOWN in result:
                    verdict.counts["results unknown, and the model told so"] += 1
                else:
                    verdict.add(wrong, [f"call {call} of {session_id} has the result {result!r}"])


async def _judge_fork(store: Store, fork: Fork, verdict: Verdict) -> None:
    """A fork that is done is there once, with a whole history. One of a session that had none yet fails."""
    broken = "forks that are missing or not whole"
    submissions = await _all_submissions(store, fork.session_id)
    found = [s for s in submissions if s.idempotency_key == fork.key]
    if len(found) != 1 or found[0].id != fork.submission_id:
        verdict.add(broken, [f"{fork.key}: {len(found)} submissions; answered was {fork.submission_id}"])
        return
    verdict.counts[f"forks {found[0].state}"] += 1
    if found[0].state != "done":
        excused = found[0].state == "dead" or "no history yet" in str(found[0].reason)
        verdict.add(broken, [] if excused else [f"{fork.key} is {found[0].state}: {found[0].reason}"])
        return
    # Its id is that of its submission, since none was asked for.
    told = [event for event in await _all_events(store, fork.session_id) if event.kind == "forked"]
    if sum(json.loads(event.payload)["session_id"] == found[0].id for event in told) != 1:
        verdict.add(broken, [f"{fork.key} was not announced once"])
    try:
        history = (await find_resume_point(store, found[0].id, None)).messages
    except NotFound:
        history = []
    if not history or not is_provider_valid(history):
        verdict.add(broken, [f"{fork.key}: {len(history)} messages"])


async def _judge_effects(
    store: Store,
    session_id: str,
    events: list[Event],
    effects: Effects,
    given_up: set[str],
    verdict: Verdict,
) -> set[str]:
    """What was begun once stays begun once, unless its tool is safe to retry, or a person said so."""
    repeated = "completed effects repeated"
    starts: Counter[str] = Counter()
    over: set[str] = set()
    for event in events:
        if not event.kind.startswith(("tool_call_", "step_")):
            continue
        call = _call(json.loads(event.payload)["call_id"])
        if event.kind.endswith("_started"):
            starts[call] += 1
            if call in over:
                verdict.add(repeated, [f"{session_id}: {call} was begun again after its end"])
        else:
            over.add(call)
    cursor = None
    recorded: set[str] = set()
    while True:
        page = await store.effects(session_id, cursor=cursor)
        for effect in page.items:
            call = _call(effect.call_id)
            recorded.add(call)
            if _judge_effect(effect, call, starts[call], effects, verdict):
                # No probe is asked about a step whose turn is not continued any more.
                where = " in turns given up" if call.partition(".")[0] in given_up else ""
                verdict.counts[f"effects with a probe that stay unknown{where}"] += 1
        cursor = page.next_cursor
        if cursor is None:
            return recorded


def _call(entry: str) -> str:
    """Return the name of a call, or of a step of a tool or of a plain agent, as it is in the file of effects."""
    return entry.removeprefix("turn/")


def _judge_effect(effect: Effect, call: str, starts: int, effects: Effects, verdict: Verdict) -> bool:
    """Judge one entry of the ledger, and return whether it has a probe and stays unknown."""
    repeated = "completed effects repeated"
    where = f"{effect.session_id}: {effect.tool} {call}"
    if effect.tool in {"sleep", "signal"}:
        verdict.counts[f"waits {effect.state}"] += 1
        return False
    verdict.counts[f"ledger {effect.state}"] += 1
    begun = effects.begun.get(call, [])
    is_safe = begun and POLICIES[begun[0]["tool"]] in {"retry", "ask", "steps"}
    most = starts if is_safe else 1
    if _changes_nothing(begun):  # it may run before its call is on record, and then again under another key
        verdict.counts["ledger, read only"] += 1
    else:
        if len(begun) > most:
            verdict.add(repeated, [f"{where} ran {len(begun)} times, not {most}"])
        if any(facts["key"] != effect.idempotency_key for facts in begun):
            verdict.add(repeated, [f"{where} ran under several keys"])
    if len(begun) > 1:
        verdict.counts["safe calls that were run again"] += 1
    if effect.state == "completed" and not begun:
        verdict.add(UNRECORDED, [where])
    if not any(facts.get("probed") for facts in begun):
        return False
    stored = effects.stored.get(call, [])
    if len(stored) > 1:
        verdict.add(repeated, [f"{where} was stored {len(stored)} times"])
    if effect.state == "completed" and not stored:
        verdict.add(UNRECORDED, [where])
    verdict.counts["effects with a probe"] += 1
    return effect.state == "started"


def _changes_nothing(begun: list[dict[str, Any]]) -> bool:
    return bool(begun) and POLICIES[begun[0]["tool"]] == "readonly"


async def _all_events(store: Store, session_id: str) -> list[Event]:
    found: list[Event] = []
    while page := await store.events(session_id, after=found[-1].seq if found else 0, limit=1000):
        found += page
    return found


async def _all_submissions(store: Store, session_id: str) -> list[Submission]:
    found: list[Submission] = []
    cursor = None
    while True:
        page = await store.submissions(session_id, cursor=cursor, limit=1000)
        found += page.items
        cursor = page.next_cursor
        if cursor is None:
            return found
