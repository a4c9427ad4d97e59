"""Makes `schema-N.json`: the statements of the latest schema on each engine, and the rows of a store with sessions in flight.

Run it once, as `python -m tests.upgrade.make`, when a schema is about to be tagged; a tagged file is never made again.
"""

import asyncio
import base64
import json
import sqlite3
import tempfile
from pathlib import Path
from typing import Any

from pydantic_ai import Agent

from holdfast import Holdfast
from holdfast.runtime import Worker
from holdfast.store import open_store
from holdfast.store.schema import LATEST
from holdfast.store.sql import library
from tests.builders import until
from tests.upgrade.app import agent

HERE = Path(__file__).parent


async def main() -> None:
    """Have a worker in the middle of things, and take a copy of its database."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "store.db"
        async with open_store(f"sqlite:///{file}") as store:
            talked = Agent(agent.model, name="agent", capabilities=[Holdfast(store, owner="you")])
            await talked.run("hello", conversation_id="talked")
            for session, text in (("running", "hold"), ("waiting", "deploy"), ("queued", "hello")):
                await store.create_session(
                    agent="other" if session == "queued" else "agent", owner="you", id=session
                )
                await store.submit(session, "message", json.dumps({"text": text}))
            await store.set_state("talked", '{"kept": true}', expected_version=0)
            worker = Worker(store, agent, name="a worker of then", grace=0)
            serving = asyncio.create_task(worker.run())

            async def in_flight() -> bool:
                held = [event.kind for event in await store.events("running")]
                return "tool_call_started" in held and (await store.session("waiting")).status == "waiting"

            await until(in_flight)
            copy = sqlite3.connect(":memory:")
            with sqlite3.connect(file) as source:
                source.backup(copy)
            worker.stop()
            await serving
        copy.row_factory = sqlite3.Row
        names = [row[0] for row in copy.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        rows = {name: [_plain(row) for row in copy.execute(f"SELECT * FROM {name}")] for name in names}
    schema = {
        dialect: [
            *(library.text(name, dialect) for name in ("create_schema", "create_migrations")),
            *(text for _, _, script in library.migrations() for text in library.split(script, dialect)),
        ]
        for dialect in ("sqlite", "postgres")
    }
    made = {"schema": schema, "rows": {name: found for name, found in rows.items() if found}}
    (HERE / f"schema-{LATEST}.json").write_text(json.dumps(made, indent=1) + "\n")


def _plain(row: sqlite3.Row) -> dict[str, Any]:
    return {
        key: {"bytes": base64.b64encode(row[key]).decode()} if isinstance(row[key], bytes) else row[key]
        for key in row.keys()  # noqa: SIM118 - of a row, not of a dictionary
    }


if __name__ == "__main__":
    asyncio.run(main())
