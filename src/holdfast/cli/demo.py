"""`holdfast demo` shows in a minute what this is for: a server, a worker and a scripted agent on a store that is thrown away."""

import os
import tempfile
from pathlib import Path
from typing import Annotated

import typer


def demo(
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 takes a free one.")] = 0,
    keep: Annotated[
        Path | None, typer.Option(help="Keep the store and the ledger file in this folder.")
    ] = None,
) -> None:
    """Start a server with a scripted agent that needs no key and no network, and say what to try."""
    from holdfast.cli.serve import serve
    from holdfast.demo import LEDGER

    with tempfile.TemporaryDirectory(prefix="holdfast-demo-") as scratch:
        folder = Path(scratch) if keep is None else keep.absolute()
        folder.mkdir(parents=True, exist_ok=True)
        store, ledger = f"sqlite:///{folder}/demo.db", folder / "ledger.txt"
        os.environ[LEDGER] = str(ledger)
        typer.echo("Open the address below, make a session, say `prepare a release`, and while it works:")
        typer.echo("  1. close the tab;")
        typer.echo(f"  2. kill the worker: kill -9 $(pgrep -f 'holdfast worker.*{folder.name}/demo.db');")
        typer.echo(f"  3. come back: the turn went on, and {ledger} has its line once.")
        serve("holdfast.demo:agent", store=store, host="127.0.0.1", port=port, role="all", workers=1)
