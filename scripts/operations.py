"""The operations of Holdfast: which handle method, HTTP route and command do the same. It becomes docs/reference/operations.md."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation. A missing route or command has a reason."""

    method: str
    route: str
    command: str | None = None
    reason: str = ""


_S = "/api/sessions/{session_id}"
_R = "/api/runs/{run_id}"
_FOR_PROGRAMS = "for programs"
_SHOWN = "part of `holdfast sessions show`"

OPERATIONS = (
    Operation("Client.session", "POST /api/sessions", "send", "`holdfast send --agent` creates a session"),
    Operation("Client.sessions", "GET /api/sessions", "sessions list"),
    Operation("Client.run", f"GET {_R}", "runs show"),
    Operation("Client.runs", "GET /api/runs", "runs list"),
    Operation("Client.inbox", "GET /api/inbox", "inbox"),
    Operation(
        "Client.media", "GET /api/media/{sha256}", None, "`holdfast media show` shows what is known of it"
    ),
    Operation("Client.me", "GET /api/me", None, _FOR_PROGRAMS),
    Operation("Client.workers", "GET /api/workers", "workers"),
    Operation("Client.audit", "GET /api/audit", "audit"),
    Operation("Client.sweep", "POST /api/retention/sweep", "sweep"),
    Operation("Client.ready", "GET /ready", "doctor"),
    Operation("Client.server_info", "GET /server_info", None, _FOR_PROGRAMS),
    Operation("Client.metrics", "GET /metrics", "top"),
    Operation("SessionHandle.info", f"GET {_S}", "sessions show"),
    Operation(
        "SessionHandle.update", f"PATCH {_S}", "sessions hold", "the title and the metadata are for programs"
    ),
    Operation("SessionHandle.send", f"POST {_S}/submissions", "send"),
    Operation("SessionHandle.turn", f"GET {_S}/submissions/{{submission_id}}", None, _SHOWN),
    Operation("SessionHandle.submissions", f"GET {_S}/submissions", None, _SHOWN),
    Operation("SessionHandle.interrupt", f"POST {_S}/interrupt", "interrupt"),
    Operation("SessionHandle.approve", f"POST {_S}/approvals", "approve"),
    Operation("SessionHandle.deny", f"POST {_S}/approvals", "approve", "`holdfast approve --deny`"),
    Operation("SessionHandle.dismiss", f"POST {_S}/dismiss", "dismiss"),
    Operation("SessionHandle.undo", f"POST {_S}/undo", "undo"),
    Operation("SessionHandle.rewind", f"POST {_S}/rewind", "rewind"),
    Operation("SessionHandle.compact", f"POST {_S}/compact", "compact"),
    Operation("SessionHandle.fork", f"POST {_S}/fork", "fork", "`holdfast fork --wait`"),
    Operation("SessionHandle.start_fork", f"POST {_S}/fork", "fork"),
    Operation(
        "SessionHandle.background", f"POST {_S}/background", None, "for front ends that attach sessions"
    ),
    Operation("SessionHandle.events", f"GET {_S}/events", "tail"),
    Operation("SessionHandle.journal", f"GET {_S}/events", "tail"),
    Operation(
        "SessionHandle.messages", f"GET {_S}/messages", None, "`holdfast tail` prints them with the events"
    ),
    Operation("SessionHandle.conversation", f"GET {_S}/conversation", "sessions conversation"),
    Operation("SessionHandle.records", f"GET {_S}/records", None, _FOR_PROGRAMS),
    Operation("SessionHandle.runs", f"GET {_S}/runs", "runs list"),
    Operation("SessionHandle.state", f"GET {_S}/state", None, _FOR_PROGRAMS),
    Operation("SessionHandle.states", f"GET {_S}/states", None, _FOR_PROGRAMS),
    Operation("SessionHandle.set_state", f"PUT {_S}/state", None, _FOR_PROGRAMS),
    Operation("SessionHandle.cursors", f"GET {_S}/cursors", None, _FOR_PROGRAMS),
    Operation("SessionHandle.set_cursor", f"PUT {_S}/cursors/{{consumer}}", None, _FOR_PROGRAMS),
    Operation("SessionHandle.commands", f"GET {_S}/commands", "shell list"),
    Operation("SessionHandle.command_output", f"GET {_S}/commands/{{command_id}}/output", "shell output"),
    Operation("SessionHandle.set_credential", f"PUT {_S}/credentials/{{name}}", "credentials set"),
    Operation("SessionHandle.credentials", f"GET {_S}/credentials", "credentials list"),
    Operation("SessionHandle.delete_credential", f"DELETE {_S}/credentials/{{name}}", "credentials delete"),
    Operation("SessionHandle.archive", f"GET {_S}/export", "sessions export"),
    Operation("SessionHandle.export", f"GET {_S}/export", "sessions export"),
    Operation("SessionHandle.clean", f"POST {_S}/clean", "sessions clean"),
    Operation("SessionHandle.rehydrate", f"POST {_S}/rehydrate", "sessions rehydrate"),
    Operation("SessionHandle.erase", f"DELETE {_S}", "sessions erase"),
    Operation("SessionHandle.retention", f"GET {_S}/retention", "sessions retention"),
    Operation("TurnHandle.info", f"GET {_S}/submissions/{{submission_id}}", None, _SHOWN),
    Operation("TurnHandle.events", f"GET {_S}/events", "tail"),
    Operation("TurnHandle.result", f"GET {_S}/events", "send", "`holdfast send --wait`"),
    Operation("TurnHandle.problem", f"GET {_S}", None, _SHOWN),
    Operation("TurnHandle.retry", f"POST {_S}/retry", "retry"),
    Operation("TurnHandle.cancel", f"POST {_S}/interrupt", "interrupt"),
    Operation("RunHandle.info", f"GET {_R}", "runs show"),
    Operation("RunHandle.delegates", f"GET {_R}/runs", "runs tree"),
    Operation("RunHandle.events", f"GET {_R}/events", "runs events"),
    Operation("RunHandle.journal", f"GET {_R}/events", "runs events"),
    Operation("RunHandle.checkpoints", f"GET {_R}/checkpoints", "runs show"),
    Operation("RunHandle.effects", f"GET {_R}/effects", "runs effects"),
    Operation("RunHandle.settle", f"POST {_R}/effects/{{call_id}}", "settle"),
    Operation(
        "ShellHandle.start",
        "POST /api/bash/start_bash_command",
        None,
        "`holdfast shell run` waits for the end",
    ),
    Operation("ShellHandle.run", "POST /api/bash/execute_bash_command", "shell run"),
    Operation("ShellHandle.info", "GET /api/bash/{command_id}", "shell list"),
    Operation("ShellHandle.stop", "POST /api/bash/{command_id}/stop", "shell stop"),
    Operation("ShellHandle.output", "GET /api/bash/{command_id}/output", "shell output"),
    Operation("ShellHandle.events", "GET /api/bash/bash_events/search", "shell list"),
    Operation("ShellHandle.clear", "DELETE /api/bash/bash_events", "shell sweep"),
)

OTHER_ROUTES = {
    "GET /": "the page",
    "GET /docs": "the page of the HTTP API",
    "GET /static/{name}": "files of the page",
    "POST /sign-in": "for browsers; a client sends its token",
    "POST /sign-out": "for browsers",
    "GET /alive": "for clients of other agent servers; `GET /ready` checks more",
    "GET /health": "for load balancers; `GET /ready` checks more",
    "GET /api/bash/bash_events/": "for clients of other agent servers",
    "GET /api/bash/bash_events/{event_id}": "for clients of other agent servers",
    "POST /api/chat": "for `useChat` of the Vercel AI SDK",
    "GET /api/chat/{session_id}": "for `useChat` of the Vercel AI SDK",
    "GET /api/chat/{session_id}/stream": "for `useChat` of the Vercel AI SDK",
    "GET /api/streams/{session_id}": "for clients of Durable Streams; `SessionHandle.events` streams the same events",
    "HEAD /api/streams/{session_id}": "for clients of Durable Streams",
    "POST /api/ag-ui": "for the `HttpAgent` of AG-UI",
    "WEBSOCKET /sockets/bash-events": "for clients of other agent servers; `ShellHandle.output` streams over HTTP",
}
"""The routes that no handle method uses, with the reason."""

OTHER_COMMANDS = {
    "serve": "runs the API server itself",
    "worker": "runs a worker; `connect(agents=…)` runs one in your process",
    "demo": "starts its own server",
    "copy": "needs two databases",
    "runs resume": "runs an agent in the terminal; `holdfast.resume` is its function",
    "runs fork": "works on a store without a worker; `holdfast.fork` is its function",
    "archive verify": "needs no store",
    "archive show": "needs no store",
    "archive build": "needs no store",
    "archive import": "needs the database",
    "media list": "needs the database",
    "media show": "needs the database",
    "media gc": "needs the database",
    "media move": "needs the database",
    "media verify": "needs the database",
    "import harness": "needs the database",
    "import agentex": "needs the database",
    "import ml-intern": "needs the database",
    "import openhands": "needs the database",
    "db upgrade": "needs the database",
    "db status": "needs the database",
    "db stats": "needs the database",
    "db check": "needs the database",
    "token create": "tokens are created where the database is",
    "token list": "tokens are created where the database is",
    "token revoke": "tokens are created where the database is",
}
"""The commands that no handle method matches, with the reason."""


def page() -> str:
    """Return the page of all operations."""
    lines = [
        "# Operations\n",
        (
            "Every operation has one name in the client, in the HTTP API and on the command line. "
            "`scripts/operations.py` is the source of this page; a test compares it with the code.\n"
        ),
        "| Client | HTTP | Command |",
        "|---|---|---|",
    ]
    for operation in OPERATIONS:
        command = f"`holdfast {operation.command}`" if operation.command else "none"
        reason = f" ({operation.reason})" if operation.reason else ""
        lines.append(f"| `{operation.method}` | `{operation.route}` | {command}{reason} |")
    lines += ["\n## Routes without a method\n", "| Route | Reason |", "|---|---|"]
    lines += [f"| `{route}` | {reason} |" for route, reason in OTHER_ROUTES.items()]
    lines += ["\n## Commands without a method\n", "| Command | Reason |", "|---|---|"]
    lines += [f"| `holdfast {command}` | {reason} |" for command, reason in OTHER_COMMANDS.items()]
    return "\n".join(lines) + "\n"
