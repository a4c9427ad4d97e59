"""Turn a conversation that another system stored for display into a history that providers accept.

Each tool result directly follows its call. A call without a result is in the ledger with an unknown outcome, or waits for a person.
"""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, TypeGuard

from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from holdfast.importers.report import Notes, microseconds
from holdfast.importers.session import Body, Place, SessionDraft
from holdfast.jsontext import lenient_json
from holdfast.record import ledger
from holdfast.record.ending import approval_request
from holdfast.record.history import dump

_LOST: Final = "The result of this call was not recorded when the conversation was imported."


@dataclass(slots=True)
class TurnDraft:
    """One message of the history, and the messages of the other system from which it was made."""

    by_model: bool
    at: datetime
    parts: list[Any] = field(default_factory=list[Any])
    of: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    answers: "TurnDraft | None" = None

    def add(self, part: Any, of: dict[str, Any]) -> None:
        """Add a part, and the remaining fields of its original message."""
        self.parts.append(part)
        self.of.append(of)

    def calls(self) -> list[ToolCallPart]:
        """Return its tool calls."""
        return [part for part in self.parts if isinstance(part, ToolCallPart)]

    def answered(self) -> set[str]:
        """Return the ids of the calls that have a result."""
        return set() if self.answers is None else {part.tool_call_id for part in self.answers.parts}


class Conversation:
    """Collects the messages of a conversation, then adds them to a session as one run.

    `key` is the key in the payload of a message's event for fields that the history cannot store.
    """

    def __init__(self, draft: SessionDraft, *, agent: str, key: str, began: datetime, notes: Notes) -> None:
        self._draft = draft
        self._agent = agent
        self._key = key
        self._began = began
        self._notes = notes
        self._run_id = f"{key}-{draft.id}"[:128]
        self._turns: list[TurnDraft] = []
        self._asked: list[ToolCallPart] = []
        """The calls about which a person decides."""

    def turn(self, *, by_model: bool, at: datetime, fresh: bool = False) -> TurnDraft:
        """Return the last message of the history if it can be extended, else a new one."""
        last = self._turns[-1] if self._turns else None
        if last is None or fresh or last.by_model != by_model or last.answers is not None:
            last = TurnDraft(by_model, at)
            self._turns.append(last)
        return last

    def call(self, call: ToolCallPart, at: datetime, of: dict[str, Any]) -> None:
        """Add a tool call. A second call with the same id starts a new message."""
        turn = self.turn(by_model=True, at=at)
        if any(other.tool_call_id == call.tool_call_id for other in turn.calls()):
            turn = self.turn(by_model=True, at=at, fresh=True)
        turn.add(call, of)

    def answer(self, answer: ToolReturnPart, at: datetime, of: dict[str, Any], where: str) -> None:
        """Add a result directly after its call, even if other messages are in between."""
        for turn in reversed(self._turns):
            if any(call.tool_call_id == answer.tool_call_id for call in turn.calls()):
                if answer.tool_call_id in turn.answered():
                    break
                turn.answers = turn.answers or TurnDraft(by_model=False, at=at)
                turn.answers.add(answer, of)
                return
        self._notes.add("tool responses without a request: kept as text", where)
        result = answer.content if isinstance(answer.content, str) else lenient_json(answer.content)
        text = f"Result of the tool {answer.tool_name} ({answer.tool_call_id}): {result}"
        self.turn(by_model=False, at=at).add(UserPromptPart(text, timestamp=at), of)

    def finish(self, waiting: Collection[str] = ()) -> None:
        """Add the run to the session: its events, its history and its tool calls.

        If all calls at the end that have no result are among `waiting`, a person decides about them.
        """
        draft, began, run_id = self._draft, microseconds(self._began), self._run_id
        draft.event("imported", began, {"system": draft.system})
        self._asked = self._open_calls()
        if not {call.tool_call_id for call in self._asked} <= {*waiting}:
            self._asked = []
        if self._asked:
            draft.waiting_for = ", ".join(f"{call.tool_name} ({call.tool_call_id})" for call in self._asked)
            draft.submission(began, self._last_prompt(), run_id=run_id)
        first = draft.event("run_started", began, {"agent": self._agent, "parent": None}, run_id=run_id)
        turns, pending = self._closed()
        if turns:
            bodies = [Body(dump(self._message(turn))) for turn in turns]
            segment, places = draft.history.add(bodies)
            for turn, place in zip(turns, places, strict=True):
                payload = {self._key: turn.of} if turn.of else {}
                draft.event("message", microseconds(turn.at), payload, run_id=run_id, message=place)
            kind = "interrupted" if pending else "settled"
            draft.checkpoint(draft.latest, kind, segment, len(places), run_id=run_id, step=None)
            self._add_calls(turns, places)
        status = "waiting" if self._asked else "interrupted" if pending else "completed"
        if self._asked:
            draft.event(
                "approval_requested",
                draft.latest,
                {"calls": [approval_request(call) for call in self._asked]},
                run_id=run_id,
            )
        else:
            draft.event(f"run_{status}", draft.latest, run_id=run_id)
        draft.add(
            "runs",
            id=run_id,
            parent_id=None,
            agent=self._agent,
            status=status,
            error=None,
            metadata=lenient_json({"imported_from": draft.system}),
            first_seq=first,
            started_at=began,
            ended_at=None if self._asked else draft.latest,
        )

    def _open_calls(self) -> list[ToolCallPart]:
        """Return the calls at the end of the conversation that have no result."""
        last = self._turns[-1] if self._turns else None
        return (
            []
            if last is None
            else [call for call in last.calls() if call.tool_call_id not in last.answered()]
        )

    def _last_prompt(self) -> str:
        prompts = [part for turn in self._turns for part in turn.parts if isinstance(part, UserPromptPart)]
        return str(prompts[-1].content) if prompts else ""

    def _closed(self) -> tuple[list[TurnDraft], bool]:
        """Return the history with a result for every call except those at its end, and whether such calls are pending."""
        turns: list[TurnDraft] = []
        pending = False
        for turn in self._turns:
            turns.append(turn)
            missing = [call for call in turn.calls() if call.tool_call_id not in turn.answered()]
            answers = turn.answers
            if missing and turn is self._turns[-1]:
                pending = True
            elif missing:
                answers = answers or TurnDraft(by_model=False, at=turn.at)
                for call in missing:
                    part = ToolReturnPart(
                        call.tool_name, _LOST, call.tool_call_id, timestamp=turn.at, outcome="interrupted"
                    )
                    answers.parts.append(part)
            for call in missing if not (self._asked and turn is self._turns[-1]) else ():
                self._notes.add(
                    "tool requests without a response: their outcome is unknown", call.tool_call_id
                )
            if answers is not None:
                turns.append(answers)
        return turns, pending

    def _message(self, turn: TurnDraft) -> ModelMessage:
        session_id, run_id = self._draft.id, self._run_id
        if turn.by_model:
            return ModelResponse(
                parts=turn.parts, timestamp=turn.at, run_id=run_id, conversation_id=session_id
            )
        return ModelRequest(parts=turn.parts, timestamp=turn.at, run_id=run_id, conversation_id=session_id)

    def _add_calls(self, turns: list[TurnDraft], places: list[Place]) -> None:
        """Add a ledger entry for each call. A call without a result was started, and its outcome is unknown, unless it waits."""
        made: Counter[str] = Counter()
        for turn, following, place in zip(turns, [*turns[1:], None], [*places[1:], None], strict=True):
            for call in turn.calls():
                name = ledger.entry(call.tool_call_id, made[call.tool_call_id])
                made[call.tool_call_id] += 1
                answers = [] if following is None else following.parts
                answer: ToolReturnPart[Any] | None = next(
                    (part for part in answers if _answers(part, call.tool_call_id)), None
                )
                waits = any(call is asked for asked in self._asked)
                failed = answer is not None and answer.outcome == "failed"
                state = "started" if answer is None else "failed" if failed else "completed"
                segment, position = (None, None) if answer is None or place is None else place
                began = microseconds(turn.at)
                self._draft.add(
                    "effects",
                    run_id=self._run_id,
                    call_id=name,
                    tool=call.tool_name,
                    state=state,
                    step=None,
                    arguments_digest=ledger.digest(call.args_as_dict()),
                    idempotency_key=None,
                    result=ledger.deferred("approval") if waits else None,
                    error="the tool reported an error" if failed else None,
                    summary=None,
                    undo=None,
                    segment=segment,
                    position=position,
                    attempts=0 if waits else 1,
                    started_at=began,
                    ended_at=None if answer is None else max(began, microseconds(answer.timestamp)),
                )


def _answers(part: object, call_id: str) -> TypeGuard[ToolReturnPart[Any]]:
    """Return whether a part has the result of a call."""
    return isinstance(part, ToolReturnPart) and part.tool_call_id == call_id and part.outcome != "interrupted"
