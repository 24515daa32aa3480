"""Every panel, recording rule and alert, asked of a real Prometheus that scrapes a real server under load."""

from __future__ import annotations

import json
import math
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from scripts.dashboard_file import load_panels
from scripts.prometheus_server import Prometheus, find_command, running_prometheus
from tests.deploy.monitoring.expressions import asked
from tests.deploy.monitoring.load import MEMORY, Load
from tests.deploy.monitoring.rule_files import RULE_FILES, load_rules

pytestmark = [pytest.mark.xdist_group("monitoring"), pytest.mark.long]

LOAD_S = 4.0
STEP_S = 0.25
RATE_INTERVAL = "2s"
GRAPHS = [panel for panel in load_panels(RATE_INTERVAL) if panel.kind != "row"]
DEFECTS = re.compile(r"INTERNAL|memory_budget")
"""What no server does that is well: its series are not there."""


@dataclass(frozen=True)
class Watched:
    """What Prometheus saw between two times."""

    prometheus: Prometheus
    start: float
    end: float

    def values(self, expr: str) -> list[float]:
        """The finite ones of all series."""
        series = self.prometheus.query_range(expr, self.start, self.end, STEP_S)
        return [value for each in series for _, value in each.points if math.isfinite(value)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The address of a server of its own process, and host:port of its metrics."""
    folder = tmp_path_factory.mktemp("server")
    flags = ["--listen", f"unix://{folder}/dp.sock", "--http", "127.0.0.1:0", "--memory", MEMORY, "--grace", "1"]
    command: list[str | Path] = [Path(sys.executable).parent / "dataplane-server", *flags]
    with (folder / "log").open("wb") as log, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log) as process:
        assert process.stdout is not None
        try:
            yield f"unix://{folder}/dp.sock", json.loads(process.stdout.readline())["http"]
        finally:
            process.send_signal(signal.SIGTERM)
            process.stdout.read()


@pytest.fixture(scope="module")
def watched(server: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    if find_command("prometheus") is None:
        pytest.skip("there is no prometheus on PATH or in the environment, and `make test` could not fetch it")
    address, metrics = server
    folder = tmp_path_factory.mktemp("prometheus")
    with running_prometheus(folder, [metrics], interval="250ms", rules=RULE_FILES) as prometheus:
        start = time.time()
        Load(address, LOAD_S).run()
        yield Watched(prometheus, start, time.time())


def test_every_query_of_a_panel_returns_data(watched: Watched) -> None:
    queries = [(panel.title, target.expr) for panel in GRAPHS for target in panel.targets]
    assert len(queries) > 40
    assert [(title, expr) for title, expr in queries if not watched.values(expr)] == []


def test_every_recording_rule_records(watched: Watched) -> None:
    assert [name for name in load_rules("record") if not watched.values(name)] == []


def test_every_rule_is_evaluated_without_an_error(watched: Watched) -> None:
    rules: list[dict[str, Any]] = [r for g in watched.prometheus.get("rules")["groups"] for r in g["rules"]]
    assert {rule["name"] for rule in rules} == set(load_rules("alert")) | set(load_rules("record"))
    assert [rule for rule in rules if rule["health"] != "ok"] == []


def test_everything_that_alerts_watch_is_there(watched: Watched) -> None:
    asked_for = {text for rule in load_rules("alert").values() for _, _, text in asked(rule["expr"]).selectors}
    here = {text for text in asked_for if " offset " not in text and not DEFECTS.search(text)}
    assert [text for text in here if not watched.values(text)] == []


def test_the_dashboard_is_drawn(watched: Watched, tmp_path: Path) -> None:
    from scripts.draw_dashboard import draw_dashboard  # not imported above: it takes a second, which each run would pay

    picture = tmp_path / "dashboard.png"
    sections = ("Now", "Who waits for whom", "Calls")  # numbers, areas and lines, and a logarithmic scale
    draw_dashboard(watched.prometheus, picture, watched.start, watched.end, RATE_INTERVAL, sections)
    assert picture.read_bytes().startswith(b"\x89PNG")
