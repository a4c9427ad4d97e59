"""The line: the order in which sessions are claimed if more of them are ready than a claim takes.

Each agent has a line. A claim first gives places to the sessions that have become ready since the last claim, and then takes the lowest places.
The sessions of an owner have places at a distance of two, so that the owners take turns. This is start-time fair queuing: the next session
of an owner is placed after the last one of that owner, which may have been claimed already, or at the beginning of the line if
that is later. There it comes before all owners that have had a turn: its place is odd, and the places that continue those of an owner are even.

Places are numbers that only increase. A line that was empty begins with the time in microseconds, which is later than all places that were claimed.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from holdfast.config import Settings
from holdfast.store.rows import Row, Rows
from holdfast.store.transactions import Transactions, Tx, op

PLACED_AT_ONCE = 500
"""How many sessions of an agent get a place in one transaction."""
_PARKED_AT_ONCE = 1000
_ROUNDS = 20
"""How often a claim looks further along the line after it has found sessions of owners who run as many as allowed."""

_Line: TypeAlias = "tuple[str, str]"
"""An agent and an owner."""


@dataclass(slots=True)
class Rooms:
    """How many more sessions may run."""

    per_agent: float = math.inf
    per_owner: float = math.inf
    agents: Counter[str] = field(default_factory=Counter[str])
    owners: Counter[str] = field(default_factory=Counter[str])

    def add(self, agent: str, owner: str, sessions: int = 1) -> None:
        """Count sessions that run."""
        self.agents[agent] += sessions
        self.owners[owner] += sessions

    def of_agent(self, agent: str) -> float:
        """Return how many more sessions of an agent may run."""
        return max(0, self.per_agent - self.agents[agent])

    def of_owner(self, owner: str) -> float:
        """Return how many more sessions of an owner may run."""
        return max(0, self.per_owner - self.owners[owner])


class LineMethods(Transactions):
    """The statements of line.sql, as parts of the transaction of a claim."""

    def __init__(self, url: str, settings: Settings) -> None:
        super().__init__(url, settings)
        self._per_agent = settings.max_running_per_agent or math.inf
        self._per_owner = settings.max_running_per_owner or math.inf

    def _rooms(self) -> Tx[Rooms]:
        """Lock the line if the number of running sessions is limited, and count them."""
        rooms = Rooms(self._per_agent, self._per_owner)
        if self.limits_running:
            yield op("lock_line")
            for row in (yield op("running")):
                rooms.add(row["agent"], row["owner"], row["sessions"])
        return rooms

    def _unpark(self, agents: Sequence[str], limit: int, rooms: Rooms) -> Tx[None]:
        """Let sessions continue that waited because their owner ran as many as allowed. Without that limit these are all."""
        for row in (yield op("parked_owners", agents=agents)):
            most = limit if self._per_owner < math.inf else _PARKED_AT_ONCE
            if room := int(min(rooms.of_owner(row["owner"]), most)):
                yield op("unpark", agent=row["agent"], owner=row["owner"], limit=room)

    def _line_up(self, agents: Sequence[str]) -> Tx[bool]:
        """Give places to sessions that have become ready; return whether there may be more of them."""
        rows = yield op("newly_ready", agents=agents, limit=PLACED_AT_ONCE)
        if rows:
            yield from self._move(places_of(rows))
        return len(rows) >= PLACED_AT_ONCE

    def _move(self, places: dict[str, int]) -> Tx[None]:
        ids, numbers = list(places), list(places.values())
        yield op("set_places", session_ids=ids, places=numbers, moves=[list(move) for move in places.items()])

    def _choose(self, agents: Sequence[str], limit: int, rooms: Rooms) -> Tx[list[str]]:
        """Return the sessions to claim: the line determines their owners, and the priorities which sessions of these."""
        chosen: list[str] = []
        for _ in range(_ROUNDS):
            slots, full = _take_slots((yield op("line", agents=agents, limit=limit)), limit, rooms)
            by_line: dict[_Line, list[Row]] = {line: [] for line in sorted(full)}
            for slot in slots:
                by_line.setdefault((slot["agent"], slot["owner"]), []).append(slot)
            chosen = []
            for line, own in by_line.items():
                best = yield from self._best(line, own)
                chosen += best
                if line in full:
                    yield op("park", agent=line[0], owner=line[1], kept=best, limit=_PARKED_AT_ONCE)
            if not full:
                break
        return chosen

    def _best(self, line: _Line, slots: Sequence[Row]) -> Tx[list[str]]:
        """Return the sessions of an owner with the highest priorities, and give them the places of these slots."""
        if not slots:
            return []
        rows = yield op("best_of_owner", agent=line[0], owner=line[1], limit=len(slots))
        first = {row["session_id"]: row["place"] for row in slots}
        best = {row["session_id"]: row["place"] for row in rows}
        later = [each for each in first if each not in best]
        sooner = [each for each in best if each not in first]
        moves = {a: best[b] for a, b in zip(later, sooner, strict=False)}
        moves |= {b: first[a] for a, b in zip(later, sooner, strict=False)}
        if moves:
            yield from self._move(moves)
        return list(best)


def places_of(rows: Rows) -> dict[str, int]:
    """Return the places of sessions that have become ready, in this order."""
    begin: dict[str, int] = {}
    latest: dict[_Line, int] = {}
    places: dict[str, int] = {}
    for row in rows:
        line = (row["agent"], row["owner"])
        first = begin.setdefault(
            row["agent"], (row["now"] if row["lowest"] is None else row["lowest"] - 1) | 1
        )
        if line in latest:
            place = _after(latest[line])
        elif row["latest"] is None or row["highest"] is None:
            place = first
        else:  # not beyond the end of the line, if the clock was set back meanwhile
            place = max(first, min(_after(row["latest"]), _after(row["highest"])))
        latest[line] = places[row["session_id"]] = place
    return places


def _after(place: int) -> int:
    return (place // 2 + 1) * 2


def _take_slots(slots: Rows, limit: int, rooms: Rooms) -> tuple[list[Row], set[_Line]]:
    """Return the first of these sessions that may run, and the owners for whom one more would be too many."""
    taken = Rooms(rooms.per_agent, rooms.per_owner, rooms.agents.copy(), rooms.owners.copy())
    chosen: list[Row] = []
    full: set[_Line] = set()
    for slot in slots:
        if len(chosen) == limit:
            return chosen, set()
        if not taken.of_owner(slot["owner"]):
            full.add((slot["agent"], slot["owner"]))
        elif taken.of_agent(slot["agent"]):
            taken.add(slot["agent"], slot["owner"])
            chosen.append(slot)
    return chosen, full
