"""Find stores and media stores in other packages, which register their URL scheme as an entry point."""

from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any, Final

STORES: Final = "holdfast.stores"
"""The entry point group for stores. An entry point is called as `make(url, upgrade=…, settings=…)` and returns a `Store`."""
MEDIA: Final = "holdfast.media"
"""The entry point group for media stores. An entry point is called as `make(url, store=…)` and returns a `MediaStore`."""


def find_plugin(group: str, scheme: str) -> Callable[..., Any] | None:
    """Return the entry point that a package registered for a URL scheme, or None."""
    for point in entry_points(group=group, name=scheme):
        return point.load()
    return None
