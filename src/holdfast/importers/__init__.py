"""Import sessions and shell commands from other systems.

Importers never change their source. They count and report what they do not support, and drop nothing silently.
"""

from holdfast.importers.agentex import import_agentex
from holdfast.importers.build import build_archive
from holdfast.importers.harness import import_harness
from holdfast.importers.ml_intern import import_ml_intern
from holdfast.importers.openhands import import_openhands
from holdfast.importers.report import Note, Report

__all__ = [
    "Note",
    "Report",
    "build_archive",
    "import_agentex",
    "import_harness",
    "import_ml_intern",
    "import_openhands",
]
