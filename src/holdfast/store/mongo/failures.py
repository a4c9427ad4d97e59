"""Errors of the driver: whether a retry may succeed, and which error of Holdfast they become."""

from typing import Final

from bson.errors import InvalidDocument
from pymongo.errors import (
    ConfigurationError,
    ConnectionFailure,
    DocumentTooLarge,
    DuplicateKeyError,
    ExecutionTimeout,
    OperationFailure,
    PyMongoError,
)

from holdfast.errors import (
    BadInput,
    BadText,
    Conflict,
    HoldfastError,
    StoreBusy,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
)

BUSY_SECONDS = 30.0
"""How long a transaction is retried that conflicts with others."""


def translate(error: BaseException, url: str, database: str) -> BaseException:
    """Return the Holdfast error for an error of the driver; other errors unchanged."""
    match error:
        case HoldfastError():
            return error
        case _ if is_unknown(error):
            return StoreUnavailable(url=url, problem=f"the outcome of the commit is unknown: {_short(error)}")
        case DuplicateKeyError():
            details = error.details or {}
            return Conflict(problem=f"{details.get('keyValue')} already exists ({details.get('keyPattern')})")
        case UnicodeEncodeError():
            return BadText(what="text", problem=f"contains a lone surrogate at {error.start}")
        case OverflowError():
            return BadInput(problem=f"a number does not fit into 64 bits: {error}")
        case InvalidDocument() | DocumentTooLarge():
            return BadInput(problem=str(error))
        case ConfigurationError():
            return StoreError(url=url, problem=f"its URL is invalid: {error}")
        case ConnectionFailure() | ExecutionTimeout():
            return StoreUnavailable(url=url, problem=_short(error))
        case OperationFailure():
            return _refused(error, url, database)
        case PyMongoError():
            return StoreError(url=url, problem=_short(error))
        case ValueError():
            return BadInput(problem=str(error))
        case RuntimeError() if "event loop" in str(error):
            problem = (
                "its client belongs to another event loop. Create it in the event loop that opens the store"
            )
            return StoreError(url=url, problem=problem)
        case _:
            return error


def _refused(error: OperationFailure, url: str, database: str) -> HoldfastError:
    match error.code:
        case 13:
            problem = f"{_short(error)}. This requires the role readWrite on the database {database}"
            return StoreReadOnly(url=url, problem=problem)
        case 18 | 8000:
            return StoreUnavailable(url=url, problem=_short(error))
        case 14031:
            return StoreFull(url=url)
        case 10334 | 388:  # a document or a transaction that is too large for the server
            return BadInput(problem=_short(error))
        case 290:
            problem = "it aborted a transaction that took too long; raise transactionLifetimeLimitSeconds"
            return StoreError(url=url, problem=problem)
        case 239:  # for long reads on one snapshot, such as an export or a check
            problem = (
                "it no longer has the snapshot that was being read; raise minSnapshotHistoryWindowInSeconds"
            )
            return StoreError(url=url, problem=problem)
        case code if code in _NOT_YET:
            return StoreUnavailable(url=url, problem=_short(error))
        case _ if is_transient(error):
            return StoreBusy(url=url, seconds=BUSY_SECONDS)
        case _:
            return StoreError(url=url, problem=_short(error))


_NOT_YET: Final = frozenset({134, 187, 262})
"""ReadConcernMajorityNotAvailableYet, LinearizableReadConcernError, ExceededTimeLimit: in an election, without a label."""
_AGAIN: Final = _NOT_YET | {112, 239, 246, 251}
"""And WriteConflict, SnapshotTooOld, SnapshotUnavailable, NoSuchTransaction."""


def is_transient(error: BaseException) -> bool:
    """Return whether a retry may succeed: there was a conflict, or the server is unavailable."""
    if isinstance(error, OperationFailure) and error.code in _AGAIN:
        return True
    if isinstance(error, ConnectionFailure):
        return True
    labels = ("TransientTransactionError", "RetryableWriteError")
    return isinstance(error, PyMongoError) and any(error.has_error_label(label) for label in labels)


def is_unknown(error: BaseException) -> bool:
    """Return whether the outcome of a commit is unknown, so that running the transaction again might do it twice."""
    return isinstance(error, PyMongoError) and error.has_error_label("UnknownTransactionCommitResult")


def _short(error: BaseException) -> str:
    """Return the message of a driver's error without the state of the whole topology."""
    return str(error).split(", full error:", 1)[0].split(", Timeout:", 1)[0].rstrip(".")
