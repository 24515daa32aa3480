"""Spans of the server's calls, for OpenTelemetry's global tracer provider: whoever starts the server sets one up, as
`opentelemetry-instrument dataplane-server --tracing` does from OTEL_* variables.

A span is made when its call has ended, with the time at which it began: nothing within a call asks for its span, and a
call costs no more than that. Its parent is the client's span, whose context comes as gRPC metadata or in the frame.
"""

from __future__ import annotations

import time

import grpc

from dataplane_server.observe.log import get_log
from dataplane_server.observe.metrics import Transport

_SERVICE = "rl_dataplane.v1.DataPlaneService"
_SYSTEMS: dict[Transport, str] = {"grpc": "grpc", "shm": "rl_dataplane_local"}
_FAULTS = ("INTERNAL", "UNAVAILABLE")
"""Codes for which the server is to blame; a refusal is an answer."""


class Tracing:
    """Makes the spans. Raises ImportError without opentelemetry-api."""

    def __init__(self) -> None:
        try:
            from opentelemetry import trace
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ImportError as error:
            raise ImportError("--tracing needs opentelemetry-api: pip install 'rl-dataplane[tracing]'") from error
        if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
            get_log().warning("tracing_unconfigured", why="no tracer provider is set, so spans go nowhere")
        self._trace = trace
        self._tracer = trace.get_tracer("dataplane_server")
        self._propagator = TraceContextTextMapPropagator()

    def call(self, verb: str, transport: Transport, code: str, seconds: float, traceparent: str) -> None:
        """A call has ended now. traceparent: the client's trace context, "" or malformed for none."""
        ended_ns = time.time_ns()
        span = self._tracer.start_span(
            f"{_SERVICE}/{verb}",
            self._propagator.extract({"traceparent": traceparent}),
            kind=self._trace.SpanKind.SERVER,
            attributes={
                "rpc.system": _SYSTEMS[transport],
                "rpc.service": _SERVICE,
                "rpc.method": verb,
                "rpc.grpc.status_code": grpc.StatusCode[code].value[0],
                "dataplane.transport": transport,
            },
            start_time=ended_ns - int(seconds * 1e9),
        )
        if code in _FAULTS:
            span.set_status(self._trace.StatusCode.ERROR, code)
        span.end(ended_ns)
