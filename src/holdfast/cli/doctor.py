"""`holdfast doctor` checks an installation; `holdfast top` shows sessions and workers live."""

import asyncio
import importlib.util
import platform
import shutil
import sqlite3
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer
from rich.console import Group
from rich.text import Text

from holdfast.cli.exit_codes import ExitCode
from holdfast.cli.options import AsJson, ServerUrl, StoreUrl, chosen_store, connected
from holdfast.cli.terminal import TextTable, coloured, new_console, one_line, print_json, record
from holdfast.config import FILE, Settings, foreign_variables, load_settings
from holdfast.diagnostics import ServerSetting
from holdfast.errors import HoldfastError, StoreMissing, StoreTooOld
from holdfast.leases import no_worker
from holdfast.store import Store

if TYPE_CHECKING:
    from holdfast.api.models import SessionInfo, WorkerInfo
    from holdfast.client import Client

Verdict: TypeAlias = Literal["ok", "warn", "error"]

_COLOURS: dict[Verdict, str] = {"ok": "green", "warn": "yellow", "error": "red"}
_SKEW_SECONDS = 2.0
_SLOW_SECONDS = 0.25
_LOW_DISK_BYTES = 1024**3
_JOIN_SECONDS = 30.0
EXTRAS = {
    "server": "uvicorn",
    "postgres": "asyncpg",
    "mongo": "pymongo",
    "s3": "obstore",
    "credentials": "cryptography",
    "ag-ui": "ag_ui",
    "testing": "pytest_asyncio",
    "adk": "google.adk",
    "claude-agent-sdk": "claude_agent_sdk",
    "harness": "pydantic_ai_harness",
    "langgraph": "langgraph.checkpoint.base",
    "openai-agents": "agents",
}
_MAX_SESSIONS = 20


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    check: str
    verdict: Verdict
    detail: str
    action: str = ""


def doctor(store: StoreUrl = None, as_json: AsJson = False) -> None:
    """Check settings, store, migrations, workers, clock and disk.

    Prints a remedy for each problem. Exits with 1 if a check fails; warnings do not count.

    Examples:
        holdfast doctor
        holdfast doctor --store postgresql://localhost/holdfast --json
    """
    findings = asyncio.run(_all(store))
    if as_json:
        print_json({"findings": [asdict(each) for each in findings]})
    else:
        console = new_console()
        for each in findings:
            mark = Text(f"{each.verdict:<6}", style=_COLOURS[each.verdict])
            console.print(mark + Text(f"{each.check:<12} ") + one_line(each.detail), soft_wrap=True)
            if each.action:
                console.print(f"      {'':<12} → {each.action}", soft_wrap=True)
    raise typer.Exit(ExitCode.FAILED if any(each.verdict == "error" for each in findings) else ExitCode.OK)


async def _all(url: str | None) -> list[Finding]:
    results = [_system()]
    try:
        settings = load_settings() if url is None else load_settings(store=url)
    except HoldfastError as error:
        return [
            *results,
            Finding("settings", "error", str(error), "Correct the settings and run `holdfast doctor` again."),
        ]
    results.append(_settings(settings))
    results += _foreign()
    return results + [each async for each in _store(settings)]


def _system() -> Finding:
    extras = [name for name, module in EXTRAS.items() if _is_installed(module)]
    detail = f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}, extras: {', '.join(extras) or 'none'}"
    return Finding("system", "ok", detail)


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # not even the package around it
        return False


def _settings(settings: Settings) -> Finding:
    source = f"{FILE} and the environment" if FILE.exists() else "the environment and defaults"
    beyond = settings.host not in {"127.0.0.1", "::1", "localhost"}
    if beyond and settings.token is None and settings.jwt_keys is None:
        return Finding(
            "settings",
            "warn",
            f"from {source}; the server listens on {settings.host} and creates a new token at each start",
            "Set HOLDFAST_TOKEN or HOLDFAST_JWT_KEYS.",
        )
    return Finding("settings", "ok", f"from {source}")


def _foreign() -> list[Finding]:
    """Return a warning if the environment has variables that look like settings and have no effect."""
    hints = foreign_variables()
    if not hints:
        return []
    action = " ".join(["Remove them, or use the settings of Holdfast.", *filter(None, hints.values())])
    return [Finding("environment", "warn", f"Holdfast does not read {', '.join(hints)}", action)]


async def _store(settings: Settings) -> AsyncIterator[Finding]:
    closed = chosen_store(settings.store)
    try:
        async with closed as opened:
            schema = await opened.schema()
            yield Finding(
                "store", "ok", f"{opened.url}: {schema.sessions:,} sessions, {schema.events:,} events"
            )
            yield Finding("migrations", "ok", f"version {schema.version}, the latest")
            for each in _server(await opened.harmful_settings()):
                yield each
            for each in (await _clock(opened), await _workers(opened, schema.pending)):
                yield each
            async for each in _unserved(opened):
                yield each
    except StoreTooOld as old:
        yield Finding("store", "ok", closed.url)
        yield Finding("migrations", "error", str(old), "Run `holdfast db upgrade`.")
    except StoreMissing as missing:
        yield Finding(
            "store",
            "error",
            str(missing),
            "Check HOLDFAST_STORE, or run `holdfast db upgrade` to create the store.",
        )
    except HoldfastError as error:
        yield Finding("store", "error", str(error), "Check HOLDFAST_STORE, and that the database is running.")
    for place in _places(settings):
        yield _disk(place)
    if settings.mirror is not None:
        yield _mirror(settings.mirror)


def _server(settings: Sequence[ServerSetting]) -> Iterable[Finding]:
    overridden = ", ".join(f"{each.name} = {each.value}" for each in settings if each.overridden)
    if overridden:
        yield Finding("overridden", "ok", f"the store's connections do not use {overridden}")
    harmful = [each for each in settings if not each.overridden]
    if harmful:
        detail = "; ".join(f"{each.name} = {each.value}: {each.effect}" for each in harmful)
        wanted = ", ".join(f"{each.name} = {each.wanted}" for each in harmful)
        yield Finding("server", "warn", detail, f"Set {wanted} for the server, the database or the role.")


async def _clock(store: Store) -> Finding:
    """Measure a commit and the database's clock with a small row, which is deleted again."""
    began, before = time.perf_counter(), datetime.now(UTC)
    holder = await store.join("doctor", ttl=_JOIN_SECONDS)
    took = time.perf_counter() - began
    await store.leave(holder)
    theirs = holder.deadline - timedelta(seconds=_JOIN_SECONDS)
    skew = (theirs - before).total_seconds()
    detail = f"a commit took {took * 1000:.0f} ms; the database's clock is {abs(skew):.1f} s {'ahead' if skew > 0 else 'behind'}"
    if abs(skew) > _SKEW_SECONDS + took:
        return Finding(
            "clock",
            "warn",
            detail,
            "Leases use the database's clock and are not affected. Synchronize the clocks to compare times.",
        )
    if took > _SLOW_SECONDS:
        return Finding(
            "clock", "warn", detail, "Every step waits for a commit. Check the disk and the network."
        )
    return Finding("clock", "ok", detail)


async def _workers(store: Store, pending: int) -> Finding:
    holders = [holder for holder in await store.holders() if holder.name != "doctor"]
    now = datetime.now(UTC)
    alive = [holder for holder in holders if holder.deadline > now]
    sessions = sum(holder.sessions for holder in holders)
    detail = f"{len(alive)} alive, {len(holders) - len(alive)} past their deadline, {sessions} sessions held, {pending} submissions pending"
    if pending and not alive:
        return Finding(
            "workers", "error", detail, "No worker is running. Start `holdfast worker` or `holdfast serve`."
        )
    if len(alive) < len(holders):
        return Finding("workers", "warn", detail, "A live worker takes over their sessions.")
    return Finding("workers", "ok", detail)


async def _unserved(store: Store) -> AsyncIterator[Finding]:
    """Find agents with waiting sessions but no live worker."""
    now = await store.now()
    alive = [holder for holder in await store.holders() if holder.deadline > now]
    served = {agent for holder in alive for agent in holder.agents}
    if not alive:
        return
    for agent, sessions in (await store.ready_agents()).items():
        if agent not in served:
            detail = f"{sessions} sessions wait for agent {agent!r}. {no_worker(agent, served)}"
            yield Finding(
                "agents", "error", detail, "Start a worker that serves this agent, or correct the name."
            )


def _places(settings: Settings) -> Iterable[Path]:
    if settings.store.startswith("sqlite:///"):
        yield Path(settings.store.removeprefix("sqlite:///")).absolute().parent
    if settings.media.startswith("disk://"):
        yield Path(settings.media.removeprefix("disk://")).absolute()
    if settings.mirror is not None:
        yield settings.mirror


def _disk(place: Path) -> Finding:
    there = next((folder for folder in (place, *place.parents) if folder.exists()), Path("/"))
    free = shutil.disk_usage(there).free
    detail = f"{free / 1024**3:.1f} GiB free at {place}"
    if free < _LOW_DISK_BYTES:
        return Finding("disk", "warn", detail, "Clean sessions, or add disk space.")
    return Finding("disk", "ok", detail)


def _mirror(folder: Path) -> Finding:
    """Check that a file can be created in the folder of the mirror, or in the folder above if a worker has to create it."""
    there = next((each for each in (folder, *folder.parents) if each.exists()), Path("/"))
    try:
        with TemporaryFile(dir=there):
            pass
    except OSError as error:
        return Finding(
            "mirror",
            "error",
            f"this user cannot write to {there}: {error.strerror}",
            "Grant the user of the workers access to the folder, or free disk space.",
        )
    return Finding("mirror", "ok", f"{folder} can be written")


def top(
    store: StoreUrl = None,
    url: ServerUrl = None,
    interval: Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="Time between updates.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print once and exit.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the latest sessions and the workers, live.

    Updates until Ctrl-C. Prints once with --once or --json, or without a terminal.

    Examples:
        holdfast top
        holdfast top --once --json
    """
    live = not once and not as_json and sys.stdout.isatty()
    with suppress(KeyboardInterrupt):
        asyncio.run(_top(store, url, interval, live=live, as_json=as_json))


async def _top(store: str | None, url: str | None, interval: float, *, live: bool, as_json: bool) -> None:
    async with connected(store, url) as client:
        snapshots = _snapshots(client, interval)
        async for sessions, holders in snapshots:
            if as_json:
                results = {
                    "sessions": [record(each) for each in sessions],
                    "workers": [record(each) for each in holders],
                }
                print_json(results)
            else:
                console = new_console()
                if live:
                    console.clear()
                console.print(_tables(sessions, holders))
            if not live:
                await snapshots.aclose()
                return


async def _snapshots(
    client: "Client", interval: float
) -> "AsyncGenerator[tuple[list[SessionInfo], list[WorkerInfo]], None]":
    from holdfast.api.models import Items, SessionInfo

    while True:
        params = {"limit": _MAX_SESSIONS}
        page = await client.transport.call(Items[SessionInfo], "GET", "/api/sessions", params=params)
        yield page.items, await client.workers()
        await asyncio.sleep(interval)


def _tables(sessions: "list[SessionInfo]", holders: "list[WorkerInfo]") -> Any:
    now = datetime.now(UTC)
    table = TextTable("session", "status", "title", "agent", "active", "pending", "holder")
    for each in sessions:
        table.add_row(
            one_line(each.id),
            coloured(each.status),
            one_line(each.title),
            one_line(each.agent),
            Text(_ago(now, each.active_at)),
            str(each.pending),
            one_line(each.holder),
        )
    workers = TextTable("worker", "sessions", "deadline")
    for each in holders:
        left = (each.deadline - now).total_seconds()
        deadline = Text(
            f"in {left:.0f} s" if left > 0 else f"{-left:.0f} s ago", style="green" if left > 0 else "red"
        )
        workers.add_row(one_line(each.name), str(each.sessions), deadline)
    return Group(table, Text(), workers)


def _ago(now: datetime, then: datetime) -> str:
    seconds = max(0, round((now - then).total_seconds()))
    if seconds < 120:  # noqa: PLR2004
        return f"{seconds} s ago"
    return f"{seconds // 60} min ago" if seconds < 7200 else f"{seconds // 3600} h ago"  # noqa: PLR2004
