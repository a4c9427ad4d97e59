"""A job without any model: read a file, convert each line, and write the total. Each line is handled once, whatever is killed.

holdfast serve examples.etl:importer
"""

import json
from pathlib import Path

import holdfast
from holdfast import Done, NotDone, Turn, Unsettled, idempotency_key


def read(source: str) -> list[str]:
    """Return the lines of the source."""
    return Path(source).read_text().splitlines()


def book(line: str, target: str) -> int:
    """Append one booking to the target, with its key."""
    amount = int(line.partition(",")[2])
    with Path(target).open("a") as file:
        file.write(json.dumps({"key": idempotency_key(), "amount": amount}) + "\n")
    return amount


def find_booking(call: Unsettled) -> Done[int] | NotDone:
    """Look up whether a booking that was cut off is in the target."""
    target = Path(call.arguments[1])
    for line in target.read_text().splitlines() if target.exists() else []:
        booked = json.loads(line)
        if booked["key"] == call.key:
            return Done(booked["amount"])
    return NotDone()


@holdfast.agent("importer")
async def importer(turn: Turn) -> dict[str, int]:
    """Import the file that the message names into the one next to it."""
    source = turn.text
    lines = await turn.step("read", read, source, recovery="retry")
    total = 0
    for line in lines:
        total += await turn.step("book", book, line, f"{source}.booked", probe=find_booking)
    return {"lines": len(lines), "total": total}
