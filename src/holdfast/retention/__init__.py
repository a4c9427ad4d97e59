"""Retention: archive, clean, rehydrate and erase sessions, on request or by policy in the sweep."""

from holdfast.retention.archive import Archive, spool, verify_archive, write_archive
from holdfast.retention.clean import Cleaned, clean
from holdfast.retention.copying import Copied, copy, undo_copy
from holdfast.retention.erase import Erased, erase
from holdfast.retention.forecast import Forecast, forecast
from holdfast.retention.outlook import Outlook, outlook
from holdfast.retention.rehydrate import Restored, import_archive, rehydrate
from holdfast.retention.sweep import Outcome, Swept, sweep

__all__ = [
    "Archive",
    "Cleaned",
    "Copied",
    "Erased",
    "Forecast",
    "Outcome",
    "Outlook",
    "Restored",
    "Swept",
    "clean",
    "copy",
    "erase",
    "forecast",
    "import_archive",
    "outlook",
    "rehydrate",
    "spool",
    "sweep",
    "undo_copy",
    "verify_archive",
    "write_archive",
]
