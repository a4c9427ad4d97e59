import subprocess
import sys

import pytest

from holdfast.errors import MissingExtra

WITHOUT_EXTRA = """
import sys
sys.modules.update(fastapi=None, uvicorn=None)
from holdfast.cli import main
main()
"""


@pytest.mark.parametrize("command", ["demo", "serve bot:agent"])
def test_a_server_without_its_extra_says_what_to_install(command: str):
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_EXTRA, *command.split()],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (2, f"error: {MissingExtra(extra='server')}\n")
