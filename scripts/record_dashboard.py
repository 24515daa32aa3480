"""Run the example under Prometheus, and draw the dashboard of the run: `make dashboard`."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from scripts.draw_dashboard import draw_dashboard
from scripts.prometheus_server import Prometheus, free_port, running_prometheus

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "images" / "dashboard.png"
SECTIONS = ("Now", "Flow by task", "Who waits for whom", "Staleness", "Calls")
"""The sections that fit on a page; Grafana has the rest."""
INTERVAL = "1s"
LOOK_BACK_S = 10
"""Look-back of rates in seconds."""


def main() -> int:
    """Run the example and return its exit code. Draw the picture if it is 0."""
    metrics = f"127.0.0.1:{free_port()}"
    example: list[str | Path] = [
        sys.executable,
        ROOT / "examples" / "grpo" / "run.py",
        "--http",
        metrics,
        *sys.argv[1:],
    ]
    with (
        tempfile.TemporaryDirectory() as folder,
        running_prometheus(Path(folder), [metrics], interval=INTERVAL) as prometheus,
    ):
        began = time.time()
        code = subprocess.run(example, check=False).returncode
        if code != 0:
            return code
        start, end = find_learning_span(prometheus, began)
        draw_dashboard(prometheus, PICTURE, start, end, f"{LOOK_BACK_S}s", SECTIONS)
    print(f"dashboard in {PICTURE.relative_to(ROOT)}")
    return 0


def find_learning_span(prometheus: Prometheus, began: float) -> tuple[float, float]:
    """Start and end of the rollouts of a run that began at `began`, in seconds since the epoch.

    The start excludes the time in which rates still include the warm-up.
    """
    expr = 'dataplane_rows_put_total{partition="rollouts"} > 0'
    (series,) = prometheus.query_range(expr, began, time.time(), 1.0)
    return series.points[0][0] + LOOK_BACK_S, series.points[-1][0]


if __name__ == "__main__":
    sys.exit(main())
