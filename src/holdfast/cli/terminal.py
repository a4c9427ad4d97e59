"""How commands show things: tables, JSON, and text that cannot steer a terminal."""

import json
import os
import re
import sys
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from datetime import datetime
from typing import Any, TypeVar

import typer
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
from rich.table import Table
from rich.text import Text

from holdfast.types import Page

T = TypeVar("T")

_UNLIMITED = 1_000_000
_LEAST = {"agent": 8, "tool": 8, "status": 11, "state": 9, "outcome": 16}  # columns, on a narrow terminal
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters but newline and tab, characters that reverse the direction of text, and lone surrogates."""
_COLOURS = {
    "completed": "green",
    "failed": "red",
    "interrupted": "yellow",
    "started": "yellow",
    "waiting": "yellow",
}


async def all_pages(read: Callable[[str | None], Awaitable[Page[T]]]) -> list[T]:
    """Return the items of all pages."""
    page = await read(None)
    items = list(page.items)
    while page.next_cursor is not None:
        page = await read(page.next_cursor)
        items += page.items
    return items


def new_console(*, limited: bool | None = None) -> Console:
    """Return a console as wide as the terminal; where there is none, nothing is cut off."""
    if limited is None:
        limited = sys.stdout.isatty() or "COLUMNS" in os.environ
    console = Console(width=None if limited else _UNLIMITED, highlight=False, markup=False, emoji=False)
    console.push_render_hook(_Sanitizer())
    return console


class _Sanitizer(RenderHook):
    """Replaces control characters in whatever is printed; the styles of the console itself are not text."""

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [_Sanitized(each) for each in renderables]


class _Sanitized:
    def __init__(self, content: ConsoleRenderable) -> None:
        self._content = content

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for segment in console.render(self._content, options):
            yield segment if segment.control else Segment(safe(segment.text), segment.style)


def echo(text: str, *, err: bool = False) -> None:
    """Print text without the control characters that could steer a terminal."""
    typer.echo(safe(text), err=err)


def new_table(first: str, *others: str) -> Table:
    """Return a table whose columns are as wide as their content needs."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(first, no_wrap=True, min_width=36)
    for name in others:
        least = _LEAST.get(name, len(name))
        table.add_column(name, no_wrap=True, overflow="ellipsis", min_width=least)
    return table


@contextmanager
def progress_bar(
    what: str, total: int | None = None, *, shown: bool = True, as_bytes: bool = False
) -> Generator[Callable[[int], None], None, None]:
    """Show on a terminal how far something is, by calls that say by how much it moved on; elsewhere nothing."""
    console = Console(stderr=True)
    amount = DownloadColumn() if as_bytes else MofNCompleteColumn()
    columns = (TextColumn("{task.description}"), BarColumn(), amount, TimeElapsedColumn())
    with Progress(
        *columns, console=console, disable=not (shown and console.is_terminal), transient=True
    ) as bar:
        task = bar.add_task(what, total=total)
        yield lambda by: bar.advance(task, by)


def print_json(value: object) -> None:
    """Print a value as one line of JSON."""
    typer.echo(json.dumps(plain(value)))


def plain(value: object) -> Any:
    """Return a value as what JSON knows."""
    return to_jsonable_python(value, bytes_mode="base64", fallback=repr)


def safe(text: str) -> str:
    """Return text that cannot steer a terminal: control characters are shown as escapes, newlines and tabs are kept."""
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text.replace("\r\n", "\n"))


def one_line(text: str | None) -> Text:
    """Return text on one line."""
    return Text(safe(" ".join((text or "").split())))


def said(error: Exception) -> str:
    """Return what an error says, on one line."""
    text = safe(" ".join(str(error).split())).rstrip(".")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def coloured(status: str) -> Text:
    """Return a status in its colour."""
    return Text(status, style=_COLOURS.get(status, ""))


def time_text(at: datetime | None) -> Text:
    """Return a time as text."""
    return Text("" if at is None else f"{at:%Y-%m-%d %H:%M:%S}Z")


def duration(start: datetime | None, end: datetime | None) -> Text:
    """Return how long something took, as text; nothing if it has no recorded end."""
    if start is None or end is None:
        return Text()
    seconds = (end - start).total_seconds()
    if seconds < 60:  # noqa: PLR2004
        return Text(f"{seconds:.2f}s")
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return Text(f"{hours}h{minutes:02}m{rest:02}s" if hours else f"{minutes}m{rest:02}s")
