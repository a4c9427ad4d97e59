"""Import the bash event files of the OpenHands agent server: its commands and their output, with their ids and times.

A command without a recorded end is `lost`: its outcome is unknown.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, Literal, TypeVar
from uuid import UUID

from pydantic import BaseModel, ConfigDict, ValidationError

from holdfast.commands import Command, CommandState, Output
from holdfast.errors import BadImport, BadInput, NotFound
from holdfast.ids import check_name, check_text
from holdfast.importers.report import Notes, Progress, Report, nothing
from holdfast.jsontext import lenient_json
from holdfast.store import Store

SYSTEM: Final = "openhands"
_AT_ONCE: Final = 100
"""The most commands in one transaction; a large amount of output ends a transaction earlier."""
_BYTES_AT_ONCE: Final = 4 * 1024 * 1024
_TICK: Final = timedelta(microseconds=1)


class _LoggedEvent(BaseModel):
    model_config = ConfigDict(extra="allow")

    id: UUID
    timestamp: datetime


class _LoggedCommand(_LoggedEvent):
    kind: Literal["BashCommand"]
    command: str
    cwd: str | None = None
    timeout: int | None = None


class _LoggedOutput(_LoggedEvent):
    kind: Literal["BashOutput"]
    command_id: UUID
    order: int = 0
    exit_code: int | None = None
    stdout: str | None = None
    stderr: str | None = None


E = TypeVar("E", bound=_LoggedEvent)


@dataclass(frozen=True, slots=True)
class _LogFiles:
    """The files of one command: its own, and those of its outputs."""

    command: Path
    outputs: list[Path]


async def import_openhands(
    store: Store,
    folder: Path,
    *,
    owner: str = "local",
    session_id: str | None = None,
    actor: str,
    dry_run: bool = False,
    progress: Progress = nothing,
) -> Report:
    """Import the new commands in a folder of bash event files, as commands of a session if one is given.

    All files are read and checked before the first command is imported; each command is imported atomically. Raises `BadImport`.
    """
    reader = _LogReader(folder, owner, session_id)
    try:
        check_name(owner, "owner")
    except BadInput as error:
        raise BadImport(source=str(folder), problem=str(error).rstrip(".")) from None
    if session_id is not None:
        reader.owner = (await store.session(session_id)).owner
    notes, left = Notes(), Notes()
    result = await asyncio.to_thread(reader.find, notes)
    progress(0, len(result))
    new: list[_LogFiles] = []
    present = 0
    records: Counter[str] = Counter()
    for files in result:
        command, outputs = await asyncio.to_thread(reader.read, files, notes)
        how = await _import_status(store, command, outputs)
        if how is None:
            new.append(files)
            records.update({"commands": 1, "outputs": len(outputs)})
        elif how:
            left.add(how, command.id)
        else:
            present += 1
        progress(1, None)
    if not dry_run:
        progress(0, len(result) + len(new))
        detail: dict[str, Any] = {"system": SYSTEM, "imported": dict(records)}
        for batch in _batches(new):
            made = [await asyncio.to_thread(reader.read, files, Notes()) for files in batch]
            await store.import_commands(made)
            progress(len(batch), None)
        if new:
            await store.audit(
                actor=actor, action="import", session_id=session_id, detail=lenient_json(detail)
            )
    return Report(
        system=SYSTEM,
        source=str(folder),
        unit="commands",
        dry_run=dry_run,
        found=len(result),
        imported=len(new),
        already_present=present,
        records=dict(records),
        skipped=left.all(),
        not_understood=notes.all(),
    )


async def _import_status(store: Store, command: Command, outputs: list[Output]) -> str | None:
    """Compare a command with the existing one: None if there is none, an empty text if it is the same, else the difference."""
    try:
        known = await store.command(command.id)
    except NotFound:
        return None
    if known.started_at != command.started_at or known.host != SYSTEM:
        return "a command with this id already exists, from another source"
    if (known.outputs, known.state, known.exit_code) != (len(outputs), command.state, command.exit_code):
        return "it has changed in the source since it was imported; the existing one was kept"
    return ""


def _batches(files: Iterable[_LogFiles]) -> Iterator[list[_LogFiles]]:
    batch: list[_LogFiles] = []
    size = 0
    for each in files:
        batch.append(each)
        size += sum(path.stat().st_size for path in each.outputs)
        if len(batch) >= _AT_ONCE or size >= _BYTES_AT_ONCE:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


class _LogReader:
    """Reads a folder. Blocks, so call it on a thread."""

    def __init__(self, folder: Path, owner: str, session_id: str | None) -> None:
        self.owner = owner
        self._folder = folder
        self._session_id = session_id

    def find(self, notes: Notes) -> list[_LogFiles]:
        """Return the files of all commands, oldest first; add notes for other files."""
        try:
            paths = sorted(path for path in self._folder.iterdir())
        except OSError as error:
            raise self._bad(error.strerror or str(error)) from error
        commands: dict[str, _LogFiles] = {}
        outputs: dict[str, list[Path]] = {}
        for path in paths:
            match path.name.split("_"):
                case [_, "BashCommand", id]:
                    commands[id] = _LogFiles(path, [])
                case [_, "BashOutput", command_id, _]:
                    outputs.setdefault(command_id, []).append(path)
                case [_, kind, *_] if kind.startswith("Bash"):
                    notes.add(f"events of an unsupported kind: {kind}"[:200], path.name)
                case _:
                    notes.add("files that are not bash events", path.name)
        if not commands and not outputs:
            raise self._bad("it contains no bash events, so it is not a folder of the OpenHands agent server")
        for command_id, written in outputs.items():
            if command_id in commands:
                commands[command_id].outputs.extend(written)
            else:
                notes.add("output of commands whose own files are missing", command_id, len(written))
        return list(commands.values())

    def read(self, files: _LogFiles, notes: Notes) -> tuple[Command, list[Output]]:
        """Return a command and its outputs with all known facts. Raises `BadImport`."""
        event = self._event(files.command, _LoggedCommand, notes)
        read = [(self._event(path, _LoggedOutput, notes), path) for path in files.outputs]
        read.sort(key=lambda each: (each[0].order, each[0].timestamp, each[0].id))
        last = started = _aware(event.timestamp)
        outputs: list[Output] = []
        damaged = False
        for number, (output, path) in enumerate(read):
            if output.command_id != event.id:
                raise self._bad(f"{path.name} is output of command {output.command_id}, not {event.id}")
            if output.order != number:
                notes.add(
                    "outputs that were renumbered because earlier ones are missing or duplicated",
                    path.name,
                )
            last = max(last + _TICK, _aware(output.timestamp))
            texts, cut = zip(*(_storable(text) for text in (output.stdout, output.stderr)), strict=True)
            damaged = damaged or any(cut)
            outputs.append(
                Output(
                    id=str(output.id),
                    command_id=str(event.id),
                    order=number,
                    stdout=texts[0],
                    stderr=texts[1],
                    damaged=any(cut),
                    at=last,
                )
            )
        ended = next((output for output, _ in reversed(read) if output.exit_code is not None), None)
        state, exit_code = _end(event, ended, last - started)
        if ended is None:
            notes.add("commands without a recorded end: they count as lost", str(event.id))
        else:
            outputs[-1] = replace(outputs[-1], exit_code=exit_code)
        command = Command(
            id=str(event.id),
            command=_storable(event.command)[0] or "",
            cwd=event.cwd,
            timeout=event.timeout,
            owner=self.owner,
            session_id=self._session_id,
            holder=SYSTEM,
            host=SYSTEM,
            state=state,
            exit_code=exit_code,
            outputs=len(outputs),
            stdout_bytes=sum(len((output.stdout or "").encode()) for output in outputs),
            stderr_bytes=sum(len((output.stderr or "").encode()) for output in outputs),
            damaged=damaged,
            started_at=started,
            ended_at=last,
        )
        return command, outputs

    def _event(self, path: Path, kind: type[E], notes: Notes) -> E:
        try:
            text = path.read_bytes()
            event = kind.model_validate(json.loads(text))
        except OSError as error:
            raise self._bad(f"{path.name}: {error.strerror or error}") from error
        except ValidationError as error:
            first = error.errors()[0]
            text = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
            raise self._bad(f"{path.name} is damaged or of an unknown version ({text})") from None
        except (ValueError, RecursionError) as error:
            raise self._bad(f"{path.name} is not valid JSON, or is truncated ({error})") from None
        if not path.name.endswith(event.id.hex):
            raise self._bad(f"{path.name} contains the event {event.id.hex}, which does not match its name")
        for name in event.model_extra or ():
            notes.add(f"an unknown field of a {path.name.split('_')[1]}: {name}"[:200], path.name)
        return event

    def _bad(self, problem: str) -> BadImport:
        return BadImport(source=str(self._folder), problem=problem)


def _end(command: _LoggedCommand, last: _LoggedOutput | None, took: timedelta) -> tuple[CommandState, int]:
    """Return how a command ended. OpenHands uses -1 both for a timeout and for a command that could not be run."""
    if last is None or last.exit_code is None:
        return "lost", -1
    if last.exit_code >= 0:
        return "done", last.exit_code
    if last.exit_code < -1:
        return "done", 128 - last.exit_code  # ended by a signal
    timed_out = command.timeout is not None and took >= timedelta(seconds=command.timeout)
    return ("timed_out" if timed_out else "lost"), -1


def _storable(text: str | None) -> tuple[str | None, bool]:
    """Return a text that every engine can store, and whether some of it had to be replaced."""
    if text is None:
        return None, False
    try:
        check_text(text, "output")
    except BadInput:
        kept = text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode()
        return kept, True
    return text, False


def _aware(at: datetime) -> datetime:
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at
