"""The keys of the records of a thread: checkpoints and writes of a namespace, in their order."""

import hashlib
import re
from typing import Final
from urllib.parse import quote

CLOSED: Final = "~"
"""The end of the key that marks a segment as not continued, because its last elements were deleted. It sorts after all positions."""
_SAFE: Final = re.compile(r"[\w.:-]{1,80}", re.ASCII)


def digest(*texts: str, length: int = 32) -> str:
    """Return a hash of texts for a key."""
    return hashlib.sha256("\0".join(texts).encode("utf-8", "surrogatepass")).hexdigest()[:length]


def checkpoint_key(ns: str, checkpoint_id: str) -> str:
    """Return the key of a checkpoint. LangGraph's own ids are used as they are, and sort by time."""
    return f"{namespace_key(ns)}/{id_key(checkpoint_id)}"


def namespace_key(ns: str) -> str:
    """Return a namespace as part of a key."""
    return digest(ns, length=16) if ns else "-"


def id_key(id: str) -> str:
    """Return the id of a checkpoint or a task as part of a key."""
    if _SAFE.fullmatch(id):
        return id
    return f"{quote(id, safe='', errors='surrogatepass')[:40]}~{digest(id)}"


def end_of(key: str) -> int:
    """Return the position after an element; -1 for the mark of a segment that is not continued."""
    position = key.partition("/")[2]
    return -1 if position == CLOSED else int(position) + 1
