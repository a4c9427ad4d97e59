"""`holdfast archive`: verify, show, build and import archives of sessions."""

import asyncio
import sys
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, cast

import typer
from rich.text import Text

from holdfast.cli.exit_codes import ExitCode
from holdfast.cli.help import Commands
from holdfast.cli.options import AsJson, MediaUrl, StoreUrl, actor, opened_media
from holdfast.cli.terminal import echo, new_console, one_line, print_counts, print_json, progress_bar
from holdfast.config import load_settings
from holdfast.errors import ArchiveTooNew, BadArchive, BadInput, NotFound

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from holdfast.retention import Archive

app = Commands("Verify, show, build and import archives of sessions.")
File = Annotated[Path, typer.Argument(help="Archive file, plain or compressed.")]
Force = Annotated[
    bool,
    typer.Option(
        "--force",
        help="Accept an archive whose title, metadata or cursors differ from those of the cleaned session.",
    ),
]


@app.command()
def verify(file: File, as_json: AsJson = False) -> None:
    """Verify an archive without a store.

    Reads the whole archive and checks every record. Exits with 1 if it is damaged.

    Examples:
        holdfast archive verify talk.ndjson
    """
    try:
        archive = _verified(file)
    except ArchiveTooNew:
        raise
    except BadArchive as error:
        problem = f"Invalid archive: {error.facts['problem']}."
        if as_json:
            print_json({"error": {"code": error.code, "message": problem, "facts": error.facts}})
        echo(f"error: {problem}", err=True)
        raise typer.Exit(ExitCode.FAILED) from None
    if as_json:
        print_json({"session_id": archive.session_id, "sha256": archive.sha256, "counts": archive.counts})
        return
    echo(
        f"Valid: session {archive.session_id}, {sum(archive.counts.values())} records, SHA-256 {archive.sha256}"
    )
    echo(
        "The digest covers the uncompressed records before the last line, which repeats it. It differs from the digest of the file."
    )


@app.command()
def show(file: File, as_json: AsJson = False) -> None:
    """Show the contents of an archive.

    The archive is verified first.

    Examples:
        holdfast archive show talk.ndjson.gz
    """
    archive = _verified(file)
    if as_json:
        print_json(asdict(archive))
        return
    console = new_console()
    session = archive.session
    lines = {
        "session": archive.session_id,
        "title": session["title"],
        "agent": session["agent"],
        "owner": session["owner"],
        "status": session["status"],
        "version": str(archive.version),
        "sha256": archive.sha256,
        "media bytes": str(archive.blob_bytes),
        **{name: str(count) for name, count in archive.counts.items() if name != "session"},
    }
    for name, value in lines.items():
        console.print(Text(f"{name:<16}").append_text(one_line(value)), soft_wrap=True)


@app.command()
def build(
    lines: Annotated[
        Path, typer.Argument(help="File with JSON lines; - reads standard input.", allow_dash=True)
    ],
    to: Annotated[Path, typer.Option("--to", metavar="FILE", help="File to write the archive to.")],
    as_json: AsJson = False,
) -> None:
    """Build an archive from messages, states and metadata in JSON lines.

    Needs no store. Import the archive with `holdfast archive import`. The lines do not have the format of an archive.

    Examples:
        holdfast archive build lines.jsonl --to talk.ndjson
    """
    from holdfast.client.files import replaced_file
    from holdfast.importers.build import build_archive

    with replaced_file(to) as target:
        with sys.stdin.buffer if str(lines) == "-" else _open(lines) as given:
            target.writelines(build_archive(given, source=str(lines)))
        target.flush()
        archive = _verified(Path(target.name))
    result = {"session_id": archive.session_id, "sha256": archive.sha256, "counts": archive.counts}
    if as_json:
        print_json(result)
    else:
        echo(f"Built {to}: session {archive.session_id}, {sum(archive.counts.values())} records.")


@app.command("import")
def import_(
    file: File,
    force: Force = False,
    store: StoreUrl = None,
    media: MediaUrl = None,
    as_json: AsJson = False,
) -> None:
    """Import the session of an archive into a store.

    All ids stay the same. The session must not exist in the store.

    Examples:
        holdfast archive import talk.ndjson --store postgresql://localhost/holdfast
    """

    async def work() -> dict[str, object]:
        from holdfast.retention import import_archive

        async with opened_media(store, media) as opened:
            with watched(file, "importing", shown=not as_json) as archive:
                restored = await import_archive(opened.store, opened, archive, actor=actor(), force=force)
                return asdict(restored)

    print_counts(asyncio.run(work()), "restored", as_json, "Imported session {session_id}: {total} records.")


def _verified(file: Path) -> "Archive":
    from holdfast.retention import verify_archive
    from holdfast.retention.archive import longest_line

    with _open(file) as archive:
        return verify_archive(archive, longest=longest_line(load_settings().max_payload_bytes))


def _open(file: Path) -> IO[bytes]:
    try:
        return file.open("rb")
    except FileNotFoundError:
        raise NotFound(what="file", id=str(file)) from None
    except OSError as error:
        raise BadInput(problem=f"cannot read {file}: {error.strerror}") from error


class _Watched:
    """A file that reports how many bytes were read."""

    def __init__(self, file: IO[bytes], advance: "Callable[[int], None]") -> None:
        self._file = file
        self._advance = advance
        self.seek = file.seek

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self._advance(len(data))
        return data


@contextmanager
def watched(file: Path, title: str, *, shown: bool) -> "Generator[IO[bytes], None, None]":
    """Open an archive with a progress bar. It is read three times: to verify it, for its media, and for its rows."""
    with (
        _open(file) as archive,
        progress_bar(title, 3 * file.stat().st_size, shown=shown, as_bytes=True) as advance,
    ):
        yield cast("IO[bytes]", _Watched(archive, advance))
