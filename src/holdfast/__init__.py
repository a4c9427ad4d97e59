"""Durable sessions for AI agents."""

from holdfast.errors import HoldfastError
from holdfast.store import Store, open_store

__all__ = ["HoldfastError", "Store", "open_store"]
