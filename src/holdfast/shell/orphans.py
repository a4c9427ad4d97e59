"""Commands whose service is dead: end their remaining processes and record the outcome.

A service counts as dead when its deadline has passed or, on its own machine, as soon as its process has exited. A process
is identified by its pid and start time, so a process that reuses the pid is never touched.
"""

import contextlib
import os
from dataclasses import replace

from holdfast.commands import Command, Output
from holdfast.errors import CommandLost
from holdfast.ids import new_id
from holdfast.shell.process import end, lives, started_at
from holdfast.store import Store

_PAGE = 100


def service_name(host: str) -> str:
    """Return the name under which a service joins. It identifies its machine and its process."""
    return f"shell {os.getpid()} {started_at(os.getpid()) or 0} {host}"


async def record_orphans(store: Store, host: str) -> list[Command]:
    """End and record the commands of dead services, and return them as recorded."""
    results: list[Command] = []
    page = await store.commands(state="running", limit=_PAGE)
    while page.items:
        for command in page.items:
            if not _is_served(command, host):
                with contextlib.suppress(CommandLost):  # another service was faster
                    results.append(await _record(store, command, host))
        if page.next_cursor is None:
            break
        page = await store.commands(state="running", cursor=page.next_cursor, limit=_PAGE)
    return results


def _is_served(command: Command, host: str) -> bool:
    match (command.service or "").split(" ", 3):
        case [""]:
            return False
        case ["shell", pid, started, where] if where == host and started != "0":
            return lives(int(pid), int(started))
        case _:
            return True


async def _record(store: Store, command: Command, host: str) -> Command:
    killed = command.host == host and await end(command.id, command.pid, command.pid_started)
    how = "was killed" if killed else "had already ended, with an unknown result"
    note = f"[holdfast: the service that ran this command died; the command {how}]\n"
    ended = replace(command, state="killed" if killed else "lost", exit_code=-1)
    return await store.write_outputs(ended, [Output(id=new_id(), stderr=note, exit_code=-1)])
