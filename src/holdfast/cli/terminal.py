"""Output of commands: tables, JSON, progress bars, and text without control characters."""

import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import typer
from pydantic import BaseModel
from pydantic_core import to_jsonable_python
from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook, RenderResult
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
)
from rich.segment import Segment
from rich.text import Text

_UNLIMITED = 1_000_000
_CAN_SHRINK_TO = {
    **dict.fromkeys(("title", "error", "summary", "detail", "command", "file name"), 12),
    **dict.fromkeys(
        ("agent", "agents", "tool", "owner", "name", "holder", "reason", "session", "scopes"), 10
    ),
}
"""The smallest width of columns whose text may be cut."""
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters except newline and tab, characters that change the direction of text, and lone surrogates."""
_COLOURS = {
    "completed": "green",
    "failed": "red",
    "interrupted": "yellow",
    "started": "yellow",
    "waiting": "yellow",
}


def new_console() -> Console:
    """Return a console as wide as the terminal. Without a terminal, nothing is cut off."""
    limited = sys.stdout.isatty() or "COLUMNS" in os.environ
    console = Console(width=None if limited else _UNLIMITED, highlight=False, markup=False, emoji=False)
    console.push_render_hook(_Sanitizer())
    return console


class _Sanitizer(RenderHook):
    """Replaces control characters in the text that is printed."""

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [_Sanitized(each) for each in renderables]


class _Sanitized:
    def __init__(self, content: ConsoleRenderable) -> None:
        self._content = content

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for segment in console.render(self._content, options):
            yield segment if segment.control else Segment(safe(segment.text), segment.style)


def echo(text: str, *, err: bool = False) -> None:
    """Print text. Control characters, which could control a terminal, are shown as escapes."""
    typer.echo(safe(text), err=err)


class TextTable:
    """A table without borders that fits the terminal.

    If it is too wide, columns without content go first. Then long text is cut with an ellipsis, and the last columns are left
    out: name the most important column first.
    """

    def __init__(self, *names: str) -> None:
        self._names = names
        self._rows: list[list[Text]] = [[Text(name, style="bold") for name in names]]

    def add_row(self, *cells: str | Text) -> None:
        """Add a row with one cell per column."""
        self._rows.append([Text(cell) if isinstance(cell, str) else cell for cell in cells])

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        widths = self._widths(options.max_width)
        last = [*widths][-1]
        for row in self._rows:
            line = Text(no_wrap=True, overflow="ellipsis")
            for column, width in widths.items():
                cell = row[column].copy()
                cell.truncate(width, overflow="ellipsis", pad=column != last)
                line.append_text(cell).append("" if column == last else "  ")
            line.rstrip()
            yield line

    def _widths(self, available: int) -> dict[int, int]:
        """Return the width of each column that is shown."""
        needed = {
            column: max(row[column].cell_len for row in self._rows) for column in range(len(self._names))
        }
        if _total(needed) <= available:
            return needed
        widths = {
            column: width
            for column, width in needed.items()
            if column == 0 or any(row[column] for row in self._rows[1:])
        }
        least = {
            column: min(width, max(_CAN_SHRINK_TO.get(self._names[column], width), len(self._names[column])))
            for column, width in widths.items()
        }
        least[0] = widths[0]  # an id is useless if it is cut
        while len(widths) > 1 and _total(least) > available:
            widths.popitem()
            least.popitem()
        while (excess := _total(widths) - available) > 0:
            column = max(widths, key=lambda each: widths[each] - least[each])
            if widths[column] == least[column]:
                break
            widths[column] -= min(excess, max(1, (widths[column] - least[column]) // 2))
        return widths


def _total(widths: Mapping[int, int]) -> int:
    return sum(widths.values()) + 2 * (len(widths) - 1)


@contextmanager
def progress_bar(
    title: str, total: int | None = None, *, shown: bool = True, as_bytes: bool = False
) -> Generator[Callable[[int], None], None, None]:
    """Show a progress bar on a terminal, and nothing elsewhere. Call the yielded function with each increment."""
    console = Console(stderr=True)
    amount = DownloadColumn() if as_bytes else MofNCompleteColumn()
    columns = (TextColumn("{task.description}"), BarColumn(), amount, TimeElapsedColumn())
    with Progress(
        *columns, console=console, disable=not (shown and console.is_terminal), transient=True
    ) as bar:
        task = bar.add_task(title, total=total)
        yield lambda by: bar.advance(task, by)


def print_json(value: object) -> None:
    """Print a value as one line of JSON."""
    typer.echo(json.dumps(plain(value)))


def record(value: BaseModel) -> dict[str, Any]:
    """Return a response of the API for `--json`. The id of a submission is `id`, as for every other object."""
    fields = value.model_dump(mode="json")
    return {"id": fields.pop("submission_id"), **fields} if "submission_id" in fields else fields


def plain(value: object) -> Any:
    """Return a value that can be written as JSON."""
    return to_jsonable_python(value, bytes_mode="base64", fallback=repr)


def safe(text: str) -> str:
    """Return text with control characters as escapes, except newlines and tabs."""
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text.replace("\r\n", "\n"))


def one_line(text: str | None) -> Text:
    """Return text on one line."""
    return Text(safe(" ".join((text or "").split())))


def retry_command(session_id: str) -> Text:
    """Return the command that continues the last turn of a session if it failed."""
    return one_line(f"holdfast retry {shlex.quote(session_id)}")


def undo_effects_command(session_id: str, submission_id: str) -> Text:
    """Return the command that continues to undo the effects of a turn."""
    return one_line(f"holdfast undo-effects {shlex.quote(session_id)} {shlex.quote(submission_id)} --wait")


def settle_command(run_id: str, call_id: str) -> Text:
    """Return the command that records the outcome of a tool call."""
    command = f"holdfast settle {shlex.quote(run_id)} {shlex.quote(call_id)}"
    return one_line(f"{command} --result '…' # or --error \"…\"")


def result_command(session_id: str, call_id: str) -> Text:
    """Return the command that delivers the result of a tool call that runs outside."""
    command = f"holdfast tool-result {shlex.quote(session_id)} {shlex.quote(call_id)}"
    return one_line(f"{command} --result '…' # or --error \"…\"")


def error_text(error: Exception) -> str:
    """Return the type and message of an error on one line."""
    text = safe(" ".join(str(error).split())).rstrip(".")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def coloured(status: str) -> Text:
    """Return a status in its colour."""
    return Text(status, style=_COLOURS.get(status, ""))


def time_text(at: datetime | None) -> Text:
    """Return a time as text."""
    return Text("" if at is None else f"{at:%Y-%m-%d %H:%M:%S}Z")


def duration(start: datetime | None, end: datetime | None) -> Text:
    """Return a duration as text; empty if the end is not recorded."""
    if start is None or end is None:
        return Text()
    seconds = (end - start).total_seconds()
    if seconds < 60:  # noqa: PLR2004
        return Text(f"{seconds:.2f}s")
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return Text(f"{hours}h{minutes:02}m{rest:02}s" if hours else f"{minutes}m{rest:02}s")


def print_counts(result: dict[str, object], counted: str, as_json: bool, sentence: str) -> None:
    """Print a result as JSON; or a sentence with its total, and the counts by table."""
    if as_json:
        print_json(result)
        return
    counts: dict[str, int] = result[counted]  # pyright: ignore[reportAssignmentType]
    echo(sentence.format(session_id=result["session_id"], total=sum(counts.values())))
    for name, count in counts.items():
        echo(f"{name:<16}{count}")
    if result.get("archive"):
        echo(f"{'archive':<16}{result['archive']}")
    if result.get("files_pending"):
        echo(
            "Files in a mirror are not deleted yet. A worker with the setting mirror deletes them. See `holdfast mirror list`."
        )
