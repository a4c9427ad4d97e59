"""All operations, by topic. A command needs few of them, so that a topic is imported when it is searched."""

from collections.abc import Iterator
from importlib import import_module

from holdfast.operations.registry import OPERATIONS, Operation

_TOPICS = (
    "sessions",
    "submissions",
    "schedules",
    "subscriptions",
    "events",
    "runs",
    "workers",
    "inbox",
    "usage",
    "budgets",
    "credentials",
    "commands",
    "retention",
)


def operations() -> Iterator[Operation]:
    """Yield every operation."""
    for topic in _TOPICS:
        name = f"holdfast.operations.{topic}"
        import_module(name)
        yield from (each for each in OPERATIONS if each.call.__module__ == name)
