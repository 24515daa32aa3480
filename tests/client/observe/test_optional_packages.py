"""prometheus-client and OpenTelemetry are optional, and loaded only when they are used."""

from __future__ import annotations

import subprocess
import sys

import pytest

from dataplane_client import observe

_HIDDEN = "import sys; sys.modules.update(dict.fromkeys(['prometheus_client', 'opentelemetry'])); "


def run_code(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)


def test_importing_the_package_loads_neither() -> None:
    heavy = ["prometheus_client", "opentelemetry", "grpc", "torch", "numpy"]
    done = run_code(f"import sys, dataplane_client.observe; print(*sorted(set(sys.modules) & set({heavy!r})))")
    assert (done.returncode, done.stdout.split()) == (0, []), done.stderr


@pytest.mark.parametrize(("name", "extra"), [("count_calls", "metrics"), ("trace_calls", "tracing")])
def test_an_error_names_the_extra_to_install(name: str, extra: str) -> None:
    done = run_code(f"{_HIDDEN}from dataplane_client import observe; observe.{name}()")
    assert done.stderr.splitlines()[-1].endswith(f"pip install 'rl-dataplane[{extra}]'")
    assert done.stderr.splitlines()[-1].startswith("ImportError: ")


def test_names_of_metrics_follow_prometheus() -> None:
    for metric in observe.CLIENT_METRICS:
        assert metric.name.startswith("dataplane_client_")
        assert metric.name.endswith("_total") == (metric.kind == "counter")
        assert bool(metric.buckets) == (metric.kind == "histogram") == metric.name.endswith("_seconds")
