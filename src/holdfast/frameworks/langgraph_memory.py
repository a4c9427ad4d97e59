"""The facts that the saver for LangGraph remembers of what it read and wrote, so that a put reads little. All of it is bounded in bytes."""

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from holdfast.frameworks.langgraph_compare import Frozen
from holdfast.frameworks.recent import Recent

Ref: TypeAlias = dict[str, Any]
"""Where a value is: `{"v": encoded}`, `{"k": key of a value record}`, or `{"s": segment, "n": length}` for a list."""

_MOST: Final = 64
"""How many facts of each kind the memory of a session has."""
_MOST_BYTES: Final = 16 << 20
_MOST_LIST_BYTES: Final = 64 << 20
_ENTRY_BYTES: Final = 256
"""About what a small fact takes."""
_CHANNEL_BYTES: Final = 1024
"""About what a channel takes in a head: a version, and a reference, which contains a small value."""
_ELEMENT_BYTES: Final = 1024
"""About what an element of a list takes, without its text."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a segment begins: it continues the first `start` elements of `parent`, which is empty for the first segment."""

    parent: str = ""
    start: int = 0
    depth: int = 0


@dataclass(slots=True)
class Kept:
    """A list that was read or written: its elements as they were serialized, and a copy to compare with.

    It stays valid, because the elements of a segment are never replaced.
    """

    segment: str
    stored: list[tuple[str, bytes]]
    frozen: Frozen

    def is_at(self, ref: Ref) -> bool:
        """Return whether it is the list at this place."""
        return self.segment == ref["s"] and len(self.stored) == ref["n"]

    @property
    def size(self) -> int:
        """About how many bytes it takes. The copy has the text of the elements a second time."""
        return _ENTRY_BYTES + sum(_ELEMENT_BYTES + 2 * len(data) for _, data in self.stored)


Lists: TypeAlias = Recent[tuple[str, str, str], Kept]
"""The last list of each channel, by session and namespace."""


@dataclass(frozen=True, slots=True)
class ThreadHead:
    """The checkpoint that was written last in its namespace."""

    id: str = ""
    versions: dict[str, Any] = field(default_factory=dict[str, Any])
    refs: dict[str, Ref] = field(default_factory=dict[str, Ref])

    @property
    def size(self) -> int:
        """About how many bytes it takes."""
        channels = self.versions.keys() | self.refs.keys()
        return _ENTRY_BYTES + len(self.id) + sum(_CHANNEL_BYTES + len(channel) for channel in channels)


@dataclass(slots=True)
class Memory:
    """Facts about the latest writes of this process to a session: where texts, heads and lists are, and which records exist.

    They are valid as long as no other process writes, which the lease's epoch shows. They have digests and keys, never content.
    """

    epoch: int = 0
    next_text: int | None = None
    texts: OrderedDict[bytes, int] = field(default_factory=OrderedDict[bytes, int])
    """The numbers of texts, by a hash of each."""
    heads: OrderedDict[str, ThreadHead] = field(default_factory=OrderedDict[str, ThreadHead])
    """By the key of the namespace."""
    tails: OrderedDict[str, int] = field(default_factory=OrderedDict[str, int])
    origins: OrderedDict[str, Origin] = field(default_factory=OrderedDict[str, Origin])
    runs: OrderedDict[str, None] = field(default_factory=OrderedDict[str, None])
    tasks: OrderedDict[str, None] = field(default_factory=OrderedDict[str, None])
    """The keys of the tasks whose writes are stored."""
    has_all_tasks: bool = True
    """Whether `tasks` has all writes since the first head."""

    def trim(self) -> None:
        """Forget what was used longest ago."""
        self.has_all_tasks = self.has_all_tasks and len(self.tasks) <= _MOST
        for kind in (self.texts, self.heads, self.tails, self.origins, self.runs, self.tasks):
            while len(kind) > _MOST:
                kind.popitem(last=False)

    @property
    def size(self) -> int:
        """About how many bytes it takes."""
        small = (self.texts, self.tails, self.origins, self.runs, self.tasks)
        return _ENTRY_BYTES * (1 + sum(map(len, small))) + sum(head.size for head in self.heads.values())


def new_lists() -> Lists:
    """Return the memory of lists, which may take 64 MiB."""
    return Recent(_MOST_LIST_BYTES, lambda _, kept: kept.size)


def new_memories() -> Recent[str, Memory]:
    """Return the memory of all sessions, which may take 16 MiB."""
    return Recent(_MOST_BYTES, lambda _, memory: memory.size)
