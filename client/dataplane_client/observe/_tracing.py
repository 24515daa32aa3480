"""OpenTelemetry spans of calls, and the trace context that rows carry from their producer to their consumer.

A call is one span of kind CLIENT, however many attempts it makes. The server's spans are its children. Rows carry the
context of the span that put them as a tag (see `_messages`), and the span of a claim links to the puts of its rows. So
a trace shows the work of one process, and links lead from a trainer's step to the rollouts that it used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from dataplane_client.errors import DataPlaneError
from dataplane_client.observe._call import Call, Observer, add_one
from dataplane_client.observe._messages import TAG
from dataplane_client.records.meta import KVBatchMeta

if TYPE_CHECKING:
    from opentelemetry.trace import Link, Span, SpanContext, TracerProvider

_MOST_LINKS = 32
_SERVICE = "rl_dataplane.v1.DataPlaneService"
_SYSTEMS = {"grpc": "grpc", "shm": "rl_dataplane_local", "direct": "rl_dataplane_direct"}


def trace_calls(tracer_provider: TracerProvider | None = None) -> Observer:
    """Make a span of every call of every client of this process from now on. Returns an observer for `remove`.

    tracer_provider: None for OpenTelemetry's global provider. A second call with the same provider has no effect. Each
    span is a child of the caller's current span. Rows that are put by their ids get the tag `traceparent`. Raises
    ImportError without opentelemetry-api.
    """
    return add_one(CallTracer, tracer_provider)


def producer_links(meta: KVBatchMeta) -> list[Link]:
    """Links to the spans that put the rows of a meta, at most 32, for a span that the caller makes.

    The attribute `dataplane.rows` of a link is the number of its rows.
    """
    marks = [tags.get(TAG) for tags in meta.tags or ()]
    return _links(Counter(mark for mark in marks if isinstance(mark, str)))


class CallTracer(Observer):
    """Makes a span of each call."""

    def __init__(self, provider: TracerProvider | None) -> None:
        try:
            from opentelemetry import trace
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ImportError as error:
            raise ImportError("tracing calls needs opentelemetry-api: pip install 'rl-dataplane[tracing]'") from error
        self._tracer = trace.get_tracer("dataplane_client", tracer_provider=provider)
        self._trace = trace
        self._propagator = TraceContextTextMapPropagator()

    def began(self, call: Call) -> None:
        span = self._tracer.start_span(
            f"{_SERVICE}/{call.verb}",
            kind=self._trace.SpanKind.CLIENT,
            attributes={"rpc.service": _SERVICE, "rpc.method": call.verb, "dataplane.server": call.target},
        )
        call.kept[self] = span
        call.traceparent = self._traceparent(span)
        if call.verb == "PutSamples" and span.get_span_context().trace_flags.sampled:
            call.mark_rows(call.traceparent)

    def _traceparent(self, span: Span) -> str:
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier, self._trace.set_span_in_context(span))
        return carrier.get(TAG, "")

    def retried(self, call: Call, error: DataPlaneError) -> None:
        call.kept[self].add_event("retry", {"error.type": type(error).__name__, "error.message": str(error)})

    def ended(self, call: Call) -> None:
        span: Span = call.kept[self]
        if span.is_recording():
            span.set_attributes(_attributes(call))
            for link in _links(call.producers):
                span.add_link(link.context, link.attributes)
            if call.error is not None:
                span.set_attribute("error.type", call.code)
                span.set_status(self._trace.StatusCode.ERROR, str(call.error))
        span.end()


def _attributes(call: Call) -> dict[str, str | int]:
    attributes: dict[str, str | int] = {
        "rpc.system": _SYSTEMS[call.transport],
        "dataplane.transport": call.transport,
        "dataplane.partition": call.partition,
        "dataplane.task": call.task,
        "dataplane.bytes": call.sent_bytes + call.received_bytes,
    }
    if call.rows is not None:
        attributes["dataplane.rows"] = call.rows
    return {name: value for name, value in attributes.items() if value != ""}


def _links(producers: Mapping[str, int]) -> list[Link]:
    """Links to the trace contexts; invalid marks are left out."""
    from opentelemetry.trace import Link

    contexts = [(_context(mark), rows) for mark, rows in list(producers.items())[:_MOST_LINKS]]
    return [Link(context, {"dataplane.rows": rows}) for context, rows in contexts if context.is_valid]


def _context(traceparent: str) -> SpanContext:
    from opentelemetry import trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    found = TraceContextTextMapPropagator().extract({TAG: traceparent})
    return trace.get_current_span(found).get_span_context()
