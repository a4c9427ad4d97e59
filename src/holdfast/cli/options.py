"""What the commands have in common: their options, and how they open the store that these name."""

from typing import Annotated

import typer

from holdfast.config import load_settings
from holdfast.store import Store, open_store

StoreUrl = Annotated[
    str | None,
    typer.Option(
        "--store", help="The store's URL; else HOLDFAST_STORE, else holdfast.toml.", show_default=False
    ),
]
LogAs = Annotated[
    str | None,
    typer.Option(
        "--log-format", help="text or json; else HOLDFAST_LOG_FORMAT, else holdfast.toml.", show_default=False
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for other programs.")]


def chosen_store(url: str | None, *, upgrade: bool = False) -> Store:
    """Return the store of `--store`, else that of the settings. Its schema is left alone unless `upgrade`."""
    settings = load_settings() if url is None else load_settings(store=url)
    return open_store(upgrade=upgrade, settings=settings)
