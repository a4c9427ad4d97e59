"""Settings of PostgreSQL that a server, a database or a role can change: those that our connections set, and those that they cannot."""

from collections.abc import Mapping
from typing import Final

from holdfast.diagnostics import ServerSetting

SETTINGS: Final = {
    "search_path": "holdfast",
    # A process that is paused in a transaction must not keep its locks for longer than its lease.
    "idle_in_transaction_session_timeout": "5s",
    # Every statement is keyed. Plans are made once; without these settings, a plan made for an empty table would remain a scan.
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_indexscan": "on",
    "enable_indexonlyscan": "on",
    "enable_bitmapscan": "on",
    "enable_nestloop": "on",
    # A keyed statement takes less time than its compilation, or than the start of parallel workers.
    "jit": "off",
    "max_parallel_workers_per_gather": "0",
    # Whatever the defaults of the server, the database and the role are. Time limits are set per call.
    "synchronous_commit": "on",
    "default_transaction_isolation": "read committed",
    "standard_conforming_strings": "on",
    "transform_null_equals": "off",
    "statement_timeout": "0",
    "lock_timeout": "0",
}
OWN_SETTINGS: Final = {**SETTINGS, "idle_session_timeout": "0"}

_OURS: Final = frozenset(
    {"search_path", "plan_cache_mode", "enable_seqscan", "idle_in_transaction_session_timeout"}
)
"""Set for our own reasons: no other value works against the store."""
_LOGGED: Final = "log_parameter_max_length"
_LOGS: Final = ("log_statement", "log_min_duration_statement", "log_min_duration_sample")
_NOT_LOGGING: Final = {"none", "ddl", "-1"}
_HARMFUL: Final[Mapping[str, tuple[str, str]]] = {
    "fsync": ("on", "a crash of the machine loses or damages data"),
    "full_page_writes": ("on", "a crash of the machine loses or damages data"),
    "autovacuum": ("on", "deleted content keeps its disk space, and queries become slower"),
    "track_counts": ("on", "autovacuum does not run"),
    "default_transaction_read_only": ("off", "every write is refused"),
    "session_replication_role": ("origin", "the constraints of the schema are not checked"),
    "log_parameter_max_length_on_error": ("0", "the server's log has the content of failed statements"),
}
"""Settings that our connections do not override: their safe value, and the effect of any other."""

SETTING_NAMES: Final = [*OWN_SETTINGS, *_HARMFUL, _LOGGED, *_LOGS]


def harmful_settings(rows: Mapping[str, tuple[str, str]]) -> list[ServerSetting]:
    """Return the settings that work against a store, from the value of this connection and the server's default for it."""
    results = [
        ServerSetting(name=name, value=default, overridden=True)
        for name, (value, default) in rows.items()
        if name in OWN_SETTINGS and name not in _OURS and value != default
    ]
    results += [
        ServerSetting(name=name, value=rows[name][0], effect=effect, wanted=safe)
        for name, (safe, effect) in _HARMFUL.items()
        if name in rows and rows[name][0] != safe
    ]
    if rows.get(_LOGGED, ("0", ""))[0] != "0":
        effect = "the server's log has the content of statements"
        results += [
            ServerSetting(name=name, value=rows[name][0], effect=effect, wanted=f"none, or {_LOGGED} = 0")
            for name in _LOGS
            if name in rows and rows[name][0] not in _NOT_LOGGING
        ]
    return results
