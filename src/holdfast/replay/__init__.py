"""Replay: check what today's code of an agent would do with a recorded session. Nothing is written, and no model is asked."""

from holdfast.replay.check import check_archive, replay
from holdfast.replay.report import Difference, ReplayReport

__all__ = ["Difference", "ReplayReport", "check_archive", "replay"]
