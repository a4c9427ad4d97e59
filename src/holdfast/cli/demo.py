"""`holdfast demo`: a server, two workers and a scripted agent on a temporary store."""

import os
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from holdfast.errors import BadInput
from holdfast.logs import start_logging


def demo(
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 selects a free one.")] = 0,
    keep: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Keep the store and the files of the demo in this folder."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="Use this model instead of the script, such as openai:gpt-5-mini. Needs its API key."
        ),
    ] = None,
) -> None:
    """Start a server with a scripted agent, and print things to try.

    The agent needs no API key and no network. The store is deleted at the end, unless you pass --keep.

    Examples:
        holdfast demo
        holdfast demo --keep ./demo --port 8350
    """
    from holdfast.cli.serve import run_server
    from holdfast.config import load_settings
    from holdfast.demo import FOLDER, MODEL, RELEASE_LOG

    _check(model)
    scratch = tempfile.TemporaryDirectory(prefix="holdfast-demo-") if keep is None else nullcontext(keep)
    with scratch as chosen:
        folder = Path(chosen).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        os.environ[FOLDER] = str(folder)
        if model is not None:
            os.environ[MODEL] = model
        instructions = (
            "Open the address below and press `Prepare a release`. While it runs:",
            "  1. Close the tab and open it again: the turn has continued.",
            f"  2. Press `Kill the worker`: another worker continues, and {folder / RELEASE_LOG} has its line only once.",
            "  3. Export, clean and rehydrate the session in the view Retention.",
            "  4. Press `Publish later`: the agent sleeps, wakes up and asks. Do not answer, and it takes the default.",
            "Press Ctrl-C to stop." if keep else "Press Ctrl-C to stop and delete everything.",
        )
        settings = load_settings(store=f"sqlite:///{folder / 'demo.db'}", host="127.0.0.1", port=port)
        start_logging(settings.log_format)
        code = run_server("holdfast.demo:agents", settings, workers=2, shell=True, demo=instructions)  # noqa: S604 - ours
        raise typer.Exit(code)


def _check(model: str | None) -> None:
    """Raise `BadInput` for a model that cannot be used, before anything is started."""
    if model is None:
        return
    from pydantic_ai.exceptions import UserError
    from pydantic_ai.models import infer_model

    try:
        infer_model(model)
    except (UserError, ImportError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise BadInput(problem=f"the model {model!r} cannot be used: {reason}") from error
