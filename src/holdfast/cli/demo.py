"""`holdfast demo` shows in a minute what this is for: a server, two workers and a scripted agent on a store that is thrown away."""

import os
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from holdfast.errors import BadInput
from holdfast.logs import start_logging


def demo(
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 takes a free one.")] = 0,
    keep: Annotated[
        Path | None,
        typer.Option(help="Keep the store, the scratch folder and the ledger file in this folder."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="Run the same agent on this model, such as openai:gpt-5-mini; its key is needed."),
    ] = None,
) -> None:
    """Start a server with a scripted agent that needs no key and no network, and say what to try."""
    from holdfast.cli.serve import run_server
    from holdfast.config import load_settings
    from holdfast.demo import FOLDER, LEDGER, MODEL

    _check(model)
    scratch = tempfile.TemporaryDirectory(prefix="holdfast-demo-") if keep is None else nullcontext(keep)
    with scratch as chosen:
        folder = Path(chosen).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        os.environ[FOLDER] = str(folder)
        if model is not None:
            os.environ[MODEL] = model
        words = (
            "Open the address below, press `Prepare a release`, and while it works:",
            "  1. close the tab, and come back: the turn went on without you;",
            f"  2. press `Kill the worker`: another goes on, and {folder / LEDGER} has its line once;",
            "  3. export, clean, rehydrate: in the view Retention.",
            "Ctrl-C ends it." if keep else "Ctrl-C ends it and throws all of it away.",
        )
        settings = load_settings(store=f"sqlite:///{folder / 'demo.db'}", host="127.0.0.1", port=port)
        start_logging(settings.log_format)
        code = run_server("holdfast.demo:agents", settings, workers=2, shell=True, demo=words)  # noqa: S604 - ours
        raise typer.Exit(code)


def _check(model: str | None) -> None:
    """Refuse a model that cannot be used before anything is started."""
    if model is None:
        return
    from pydantic_ai.exceptions import UserError
    from pydantic_ai.models import infer_model

    try:
        infer_model(model)
    except (UserError, ImportError, ValueError) as error:
        said = " ".join(str(error).split())
        raise BadInput(problem=f"the model {model!r} cannot be used: {said}") from error
