"""Fixtures of replays."""

from tests.record.conftest import memory

__all__ = ["memory"]
