"""The spans and counters of a test, and a server that traces."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry

from dataplane_client import observe
from dataplane_server.config import ServerConfig
from dataplane_server.core.calls.limits import Limits
from dataplane_server.testing import ServerThread

Spans = Callable[..., list[ReadableSpan]]


@pytest.fixture(params=["grpc", "shm"])
def way(request: pytest.FixtureRequest) -> str:
    """One kind of socket for each transport is enough here."""
    return str(request.param)


@pytest.fixture(scope="session")
def exporter() -> InMemorySpanExporter:
    """The exporter of the global tracer provider, which a process can set once."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return exporter


@pytest.fixture
def spans(exporter: InMemorySpanExporter) -> Iterator[Spans]:
    """Trace the calls of this test. Returns the spans that have ended, by verb and kind."""
    tracer = observe.trace_calls()
    exporter.clear()

    def of(verb: str, kind: trace.SpanKind = trace.SpanKind.CLIENT) -> list[ReadableSpan]:
        finished = [span for span in exporter.get_finished_spans() if span.kind is kind]
        return [span for span in finished if span.name == f"rl_dataplane.v1.DataPlaneService/{verb}"]

    yield of
    observe.remove(tracer)


@pytest.fixture
def tracing_server(exporter: InMemorySpanExporter, listen: str) -> Iterator[ServerThread]:
    server = ServerThread(ServerConfig(listen=(listen,), tracing=True, limits=Limits(memory_bytes=16 << 20)))
    yield server
    server.stop()


@pytest.fixture
def registry() -> Iterator[CollectorRegistry]:
    """A registry that counts the calls of this test."""
    registry = CollectorRegistry()
    counters = observe.count_calls(registry)
    yield registry
    observe.remove(counters)
