"""Log one line per fact, as text or JSON, with the session and the run that it concerns.

Logs never contain content or secrets: only the messages of Holdfast's own errors are logged. For other errors, the type and the
place are logged; the message is recorded with the run.
"""

import json
import logging
import re
import sys
import time
import traceback
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Literal, TypeAlias

from holdfast.errors import HoldfastError

LogFormat: TypeAlias = Literal["text", "json"]
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_context: ContextVar[Callable[[], dict[str, str | None]] | None] = ContextVar(
    "holdfast_log_context", default=None
)


def log_context(facts: Callable[[], dict[str, str | None]]) -> None:
    """Add these facts to the log lines of this task and of the tasks it starts. The function is called for each line."""
    _context.set(facts)


def start_logging(format: LogFormat) -> None:
    """Log to standard error: Holdfast's own messages, and the warnings of other libraries."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter() if format == "json" else _TextFormatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("holdfast").setLevel(logging.INFO)


class _LogFormatter(logging.Formatter):
    """The common base of both formats."""

    converter = time.gmtime

    def formatException(self, ei: Any) -> str:  # noqa: N802 - logging defines the name
        """Return the type of an error and where it was raised; the message only if it is Holdfast's own error."""
        error: BaseException | None = ei[1]
        lines: list[str] = []
        seen: set[int] = set()
        while error is not None and id(error) not in seen:
            seen.add(id(error))
            frames = traceback.extract_tb(error.__traceback__)
            text = f": {error}" if isinstance(error, HoldfastError) else ""
            where = " < ".join(
                f"{frame.name} ({frame.filename}:{frame.lineno})" for frame in reversed(frames)
            )
            lines.append(f"{type(error).__module__}.{type(error).__qualname__}{text} in {where}")
            error = error.__cause__ or error.__context__
        return "\n".join(lines)

    def facts(self, record: logging.LogRecord) -> dict[str, str]:
        """Return the message of a record and its context."""
        message = record.getMessage()
        if not record.name.startswith("holdfast"):
            message = message.split("\n", 1)[0]  # asyncio, for example, appends a dump of the task
        facts: dict[str, str] = {
            "at": self.formatTime(record, "%Y-%m-%dT%H:%M:%S") + f".{int(record.msecs):03}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": message,
        }
        context = _context.get()
        facts |= {name: value for name, value in (context() if context else {}).items() if value is not None}
        if record.exc_info:
            facts["error"] = self.formatException(record.exc_info)
        return facts


class _JsonFormatter(_LogFormatter):
    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(self.facts(record))


class _TextFormatter(_LogFormatter):
    def format(self, record: logging.LogRecord) -> str:
        facts = self.facts(record)
        line = " ".join([facts.pop("at"), facts.pop("level").upper(), facts.pop("logger") + ":"])
        error = facts.pop("error", None)
        message = facts.pop("message")
        rest = "".join(f" {name}={value}" for name, value in facts.items())
        shown = _CONTROL.sub(lambda match: repr(match[0])[1:-1], f"{message}{rest}")  # one line per entry
        return f"{line} {shown}" + ("" if error is None else f"\n{error}")
