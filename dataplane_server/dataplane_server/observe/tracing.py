"""Spans of the server's calls, for OpenTelemetry's global tracer provider.

The program that starts the server sets the provider up, as `opentelemetry-instrument dataplane-server --tracing` does
from OTEL_* variables. A span is created when its call ends, with the time at which the call began, because nothing
within a call needs its span. Its parent is the client's span, whose context comes in gRPC metadata or in the frame.
"""

from __future__ import annotations

import time

import grpc

from dataplane_server.log import get_log
from dataplane_server.observe.metrics import Transport

_SERVICE = "rl_dataplane.v1.DataPlaneService"
_SYSTEMS: dict[Transport, str] = {"grpc": "grpc", "shm": "rl_dataplane_local", "direct": "rl_dataplane_direct"}
_FAULTS = ("INTERNAL", "UNAVAILABLE")
"""Codes that make a span an error. Other refusals are regular answers."""


class Tracing:
    """Creates the spans. Raises ImportError without opentelemetry-api."""

    def __init__(self) -> None:
        try:
            from opentelemetry import trace
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ImportError as error:
            raise ImportError("--tracing needs opentelemetry-api: pip install 'rl-dataplane[tracing]'") from error
        if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
            get_log().warning("tracing_unconfigured", why="no tracer provider is set, so spans are not exported")
        self._trace = trace
        self._tracer = trace.get_tracer("dataplane_server")
        self._propagator = TraceContextTextMapPropagator()

    def call(self, verb: str, transport: Transport, code: str, seconds: float, traceparent: str) -> None:
        """Create the span of a call that ends now. traceparent: the client's trace context; ignored if malformed."""
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
