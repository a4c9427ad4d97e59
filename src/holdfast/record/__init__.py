"""Record runs of Pydantic AI agents, and recover them exactly."""

from holdfast.record.capability import Holdfast, annotate_effect
from holdfast.record.external import ExternalMedia
from holdfast.record.forking import fork
from holdfast.record.ledger import Policy, idempotency_key
from holdfast.record.open_calls import is_provider_valid
from holdfast.record.probes import Done, NotDone, Probe, ProbeAnswer, Unknown, Unsettled
from holdfast.record.recovery import RunReport, continue_session, inspect_run, resume, rewind
from holdfast.record.resume_point import load_history
from holdfast.record.retries import Retry
from holdfast.record.steps import step
from holdfast.record.undo import CompletedStep, Undo
from holdfast.record.wait_requests import signal, sleep, sleep_until

__all__ = [
    "CompletedStep",
    "Done",
    "ExternalMedia",
    "Holdfast",
    "NotDone",
    "Policy",
    "Probe",
    "ProbeAnswer",
    "Retry",
    "RunReport",
    "Undo",
    "Unknown",
    "Unsettled",
    "annotate_effect",
    "continue_session",
    "fork",
    "idempotency_key",
    "inspect_run",
    "is_provider_valid",
    "load_history",
    "resume",
    "rewind",
    "signal",
    "sleep",
    "sleep_until",
    "step",
]
