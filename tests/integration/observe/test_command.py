"""`dataplane-server --tracing`: spans by the tracer provider of the process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.integration.observe.conftest import Spans

from dataplane_client.client import connect

_SET_UP = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(formatter=lambda span: span.to_json(None) + "\\n")))
trace.set_tracer_provider(provider)
"""
_SERVE = "from dataplane_server.cli import main; main()"
_WITHOUT = "import sys; sys.modules['opentelemetry'] = None; "


def server(code: str, *flags: str) -> subprocess.Popen[str]:
    """A process that runs this code, then the command."""
    arguments = [sys.executable, "-c", code + _SERVE, "--tracing", "--http=", "--memory=16MiB", *flags]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_call_is_one_trace_across_two_processes(tmp_path: Path, spans: Spans) -> None:
    with server(_SET_UP, f"--listen=unix://{tmp_path}/dataplane.sock") as process:
        with connect(f"unix://{tmp_path}/dataplane.sock", transport="shm") as client:
            client.partitions()
        process.terminate()
        out, errors = process.communicate(timeout=200)
    assert process.returncode == 0, errors
    lines = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    (server_span,) = [span for span in lines if span.get("name", "").endswith("/ListPartitions")]
    (client_span,) = spans("ListPartitions")
    assert server_span["parent_id"] == f"0x{client_span.context.span_id:016x}"
    assert server_span["context"]["trace_id"] == f"0x{client_span.context.trace_id:032x}"
    assert (server_span["kind"], server_span["attributes"]["dataplane.transport"]) == ("SpanKind.SERVER", "shm")


def test_without_a_provider_it_serves_and_warns_that_tracing_is_unconfigured(tmp_path: Path) -> None:
    with server("", f"--listen=unix://{tmp_path}/dataplane.sock") as process:
        connect(f"unix://{tmp_path}/dataplane.sock").close()
        process.terminate()
        _, errors = process.communicate(timeout=200)
    events = [json.loads(line) for line in errors.splitlines()]
    assert [(event["event"], event["level"]) for event in events] == [
        ("tracing_unconfigured", "warning"),
        ("draining", "info"),
        ("stopped", "info"),
    ]


def test_without_opentelemetry_it_names_the_extra_and_exits() -> None:
    with server(_WITHOUT) as process:
        out, errors = process.communicate(timeout=200)
    assert (process.returncode, out) == (1, "")
    assert json.loads(errors)["why"] == "--tracing needs opentelemetry-api: pip install 'rl-dataplane[tracing]'"
