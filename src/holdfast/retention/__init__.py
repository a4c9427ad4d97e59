"""What happens to sessions in the end: archive, clean, rehydrate, erase."""

from holdfast.retention.archive import Archive, spool, verify_archive, write_archive
from holdfast.retention.clean import Cleaned, clean
from holdfast.retention.erase import Erased, erase
from holdfast.retention.rehydrate import Restored, import_archive, rehydrate

__all__ = [
    "Archive",
    "Cleaned",
    "Erased",
    "Restored",
    "clean",
    "erase",
    "import_archive",
    "rehydrate",
    "spool",
    "verify_archive",
    "write_archive",
]
