"""Create spans in processes that have set up OpenTelemetry; elsewhere do nothing. Spans contain ids, never content.

The trace context of the submitter is stored with the submission. The turn that processes it, in any process and at any
time, therefore belongs to the same trace, and Pydantic AI's own spans of the run belong to the turn.
"""

from collections.abc import Generator
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

SUBMIT = SpanKind.PRODUCER
TURN = SpanKind.CONSUMER
_FIELD = "traceparent"
_propagator = TraceContextTextMapPropagator()


def carried() -> str | None:
    """Return the current trace context as text to be stored; None if there is none."""
    carrier: dict[str, str] = {}
    _propagator.inject(carrier)
    return carrier.get(_FIELD)


def mark_span(**ids: str) -> None:
    """Set ids on the current span, such as that of the run in Pydantic AI's instrumentation."""
    trace.get_current_span().set_attributes({f"holdfast.{key}": value for key, value in ids.items()})


@contextmanager
def span(name: str, role: SpanKind, *, within: str | None = None, **ids: str) -> Generator[Span, None, None]:
    """Run the block in a span, as a child of the stored context `within` if given. Record an error by its type only."""
    context = None
    if within is not None and not trace.get_current_span().get_span_context().is_valid:
        context = _propagator.extract({_FIELD: within})
    attributes = {f"holdfast.{key}": value for key, value in ids.items()}
    with trace.get_tracer("holdfast").start_as_current_span(
        name, context, role, attributes, record_exception=False, set_status_on_exception=False
    ) as current:
        try:
            yield current
        except Exception as error:
            current.set_status(trace.StatusCode.ERROR, type(error).__name__)
            raise
