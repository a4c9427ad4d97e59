"""All operations."""

from holdfast.operations import (
    commands,
    credentials,
    events,
    inbox,
    registry,
    retention,
    runs,
    sessions,
    submissions,
    workers,
)

TOPICS = (sessions, submissions, events, commands, credentials, runs, inbox, retention, workers)
OPERATIONS = registry.OPERATIONS
"""Every operation; the imports above register them."""
