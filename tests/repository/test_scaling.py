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


@pytest.mark.parametrize("rows_per_s", [2_000.0, 8_000.0])
def test_a_loop_is_busy_for_as_long_as_its_calls_and_beats_take(rows_per_s: float) -> None:
    workload, times = simulation.Workload(rows_per_s, 16, 64, nodes=100), times_of(0.0003, beat=0.0005)
    report = simulation.simulate(workload, times)
    assert report.utilisation == pytest.approx(simulation.needed(workload, times), rel=0.05)
    assert report.rows_per_s == pytest.approx(rows_per_s, rel=0.05)


def test_calls_that_take_twice_as_long_saturate_a_coordinator_at_half_of_the_rows() -> None:
    workload = simulation.Workload(1, 16, 64, nodes=100, ranks=8)
    fast, slow = (simulation.saturation(workload, times_of(seconds)) for seconds in (0.0002, 0.0004))
    assert fast == pytest.approx(2 * slow, rel=0.1)


def test_as_many_coordinators_are_needed_as_keep_the_busiest_below_its_limit() -> None:
    number = simulation.coordinators_for(100_000.0, 30_000.0)
    assert number is not None
    assert 100_000 * simulation.busiest_share(number) <= 30_000 < 100_000 * simulation.busiest_share(number - 1)
    assert simulation.coordinators_for(100.0, 100.0) == 1
    assert simulation.coordinators_for(100_000.0, 1.0) is None


def test_the_committed_times_predict_how_busy_a_real_coordinator_was() -> None:
    inputs = json.loads(scaling_inputs.read_text())
    check = inputs["check"]
    workload, times = simulation.Workload(**check["workload"]), simulation.ServiceTimes.of_relays(inputs)
    simulated = simulation.simulate(workload, times)
    assert check["measured"]["calls_per_s"] == pytest.approx(simulated.calls_per_s, rel=0.1)
    assert simulated.utilisation / 1.5 < check["measured"]["utilisation"] < simulated.utilisation * 1.5
