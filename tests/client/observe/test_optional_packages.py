"""prometheus-client and OpenTelemetry are optional; `tests/repository/test_imports.py` has that they are not loaded."""

from __future__ import annotations

import subprocess
import sys

from dataplane_client import observe

HIDDEN = """
import sys
sys.modules.update(dict.fromkeys(["prometheus_client", "opentelemetry"]))
from dataplane_client import observe
for use in (observe.count_calls, observe.trace_calls):
    try:
        use()
    except ImportError as error:
        print(error)
"""


def test_an_error_names_the_extra_to_install() -> None:
    done = subprocess.run([sys.executable, "-c", HIDDEN], capture_output=True, text=True, timeout=300, check=True)
    for line, extra in zip(done.stdout.splitlines(), ("metrics", "tracing"), strict=True):
        assert line.endswith(f"pip install 'rl-dataplane[{extra}]'")


def test_names_of_metrics_follow_prometheus() -> None:
    for metric in observe.CLIENT_METRICS:
        assert metric.name.startswith("dataplane_client_")
        assert metric.name.endswith("_total") == (metric.kind == "counter")
        assert bool(metric.buckets) == (metric.kind == "histogram") == metric.name.endswith("_seconds")
