"""The simulation of coordinators agrees with queueing theory, with arithmetic, and with a run in real time."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

simulation = import_module("benchmarks.scaling.simulation")
scaling_inputs = Path(__file__).parents[2] / "benchmarks" / "scaling" / "inputs.json"

STEP = ("claim", "read", "commit", "finish", "plain_commit", "clear")


def times_of(seconds: float, beat: float = 0.0) -> Any:
    """Each call takes so long, the finish of a put nothing."""
    calls = {f"{operation} 64": [seconds] for operation in STEP}
    return simulation.ServiceTimes(calls | {"put 16": [seconds], "finish 16": [0.0]}, 0.0, {1: beat, 2: beat})


def test_random_puts_wait_as_long_as_in_a_queue_with_one_server_and_equal_service_times() -> None:
    service_s, load = 0.001, 0.6
    workload = simulation.Workload(16 * load / service_s, 16, 64, nodes=1_000, ranks=0, copy_s=0.02)
    reports = [simulation.simulate(workload, times_of(service_s), seed) for seed in range(3)]
    assert fmean(report.utilisation for report in reports) == pytest.approx(load, rel=0.05)
    waits = [wait for report in reports for wait in report.waits]
    assert fmean(waits) == pytest.approx(load * service_s / (2 * (1 - load)), rel=0.15)


def test_as_many_coordinators_are_needed_as_keep_the_busiest_below_its_limit() -> None:
    number = simulation.coordinators_for(100_000.0, 30_000.0)
    assert number is not None
    assert 100_000 * simulation.busiest_share(number) <= 30_000 < 100_000 * simulation.busiest_share(number - 1)
    assert simulation.coordinators_for(100.0, 100.0) == 1
    assert simulation.coordinators_for(100_000.0, 1.0) is None


def test_the_committed_times_predict_how_busy_a_real_coordinator_was() -> None:
    inputs = json.loads(scaling_inputs.read_text())
    check = inputs["check"]
    workload, times = simulation.Workload(**check["workload"]), simulation.ServiceTimes.of_nodes(inputs)
    simulated = simulation.simulate(workload, times)
    assert check["measured"]["calls_per_s"] == pytest.approx(simulated.calls_per_s, rel=0.1)
    assert simulated.utilisation / 1.5 < check["measured"]["utilisation"] < simulated.utilisation * 1.5
