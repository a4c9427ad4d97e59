"""What other systems really wrote, put up where they would have it. How it was made stands with each fixture."""

import json
import sqlite3
from pathlib import Path
from typing import Any

import asyncpg

HARNESS = Path(__file__).parent / "fixtures" / "harness"


def harness_folder(root: Path) -> Path:
    """A folder of the harness's `FileStepStore`."""
    folder = root / "steps"
    for name, text in json.loads((HARNESS / "folder.json").read_text()).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def harness_sqlite(root: Path) -> Path:
    """A file of its `SqliteStepStore`."""
    file = root / "steps.db"
    connection = sqlite3.connect(file)
    connection.executescript((HARNESS / "sqlite.sql").read_text())
    connection.close()
    return file


async def harness_postgres(url: str) -> str:
    """The tables of its `PostgresStepStore`."""
    connection: Any = await asyncpg.connect(url)
    await connection.execute((HARNESS / "postgres.sql").read_text())
    await connection.close()
    return url
