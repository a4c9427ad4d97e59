import os
import subprocess
import sys

import pytest

CHILD = """
import ctypes, os, subprocess
from holdfast.shell.hiding import hide_process

def peek():
    return subprocess.run(["/bin/cat", f"/proc/{os.getpid()}/environ"], capture_output=True, cwd="/")

if os.geteuid() == 0:  # root reads everything
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # as a process that was started by this user
before = peek()
hide_process()
after = peek()
print(b"a secret" in before.stdout, b"a secret" in after.stdout, after.returncode != 0)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /proc")
def test_a_command_cannot_read_the_environment_of_a_hidden_process():
    done = subprocess.run(
        [sys.executable, "-c", CHILD],
        env=os.environ | {"HOLDFAST_TEST_SECRET": "a secret"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["True", "False", "True"]
