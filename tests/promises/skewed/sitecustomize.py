"""Puts the clock of a process wrong by SKEW seconds, as Python sees it."""

import os
import time

_seconds = float(os.environ["SKEW"])
_right, _right_ns = time.time, time.time_ns
time.time = lambda: _right() + _seconds
time.time_ns = lambda: _right_ns() + round(_seconds * 1e9)
