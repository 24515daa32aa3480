"""Figures reach trackers in the call that each of them has, and Prometheus with bounded labels."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from tests import commands

import dataplane_training_figures as training

METRICS = {"dataplane/logprobs/kl_k3": 0.25, "dataplane/rewards/mean": 1.0}


class Run:
    """The shape of a run of Weights & Biases or trackio."""

    def __init__(self) -> None:
        self.logged: list[tuple[dict[str, Any], int | None]] = []

    def log(self, metrics: dict[str, Any], step: int | None = None) -> None:
        self.logged.append((metrics, step))


class Writer:
    """The shape of TensorBoard's SummaryWriter."""

    def __init__(self) -> None:
        self.added: list[tuple[str, float, int | None]] = []

    def add_scalar(self, tag: str, scalar_value: float, global_step: int | None = None) -> None:
        self.added.append((tag, scalar_value, global_step))


def test_a_run_gets_one_dict_and_a_writer_one_scalar_for_each() -> None:
    run, writer = Run(), Writer()
    training.log_metrics(run, METRICS, 7)
    training.log_metrics(writer, METRICS, 7)
    assert run.logged == [(METRICS, 7)]
    assert writer.added == [(name, value, 7) for name, value in METRICS.items()]


def test_tensorboard_has_the_scalars(tmp_path: Path) -> None:
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path)) as writer:
        training.log_metrics(writer, METRICS, 7)
    events = accumulators.EventAccumulator(str(tmp_path)).Reload()
    found = {name: [(e.step, e.value) for e in events.Scalars(name)] for name in events.Tags()["scalars"]}
    assert found == {name: [(7, value)] for name, value in METRICS.items()}


def test_another_object_is_refused() -> None:
    with pytest.raises(TypeError, match=r"tracker: must have log\(metrics, step=\) or add_scalar"):
        training.log_metrics(object(), METRICS, 7)  # type: ignore[arg-type]  # as in a caller without types


def test_gauges_have_the_newest_figures_of_64_partitions() -> None:
    registry = CollectorRegistry()
    gauges = training.TrainingGauges(registry)
    for step in range(100):
        gauges.set({"dataplane/rewards/mean": float(step)}, f"step{step}")
        gauges.set(METRICS | {"dataplane/rewards/mean": float(step)}, "train")
    (family,) = registry.collect()
    values = {(s.labels["partition"], s.labels["figure"]): s.value for s in family.samples}
    assert (family.name, family.type) == ("dataplane_client_training_figure", "gauge")
    assert values == {(f"step{step}", "rewards/mean"): step for step in range(37, 100)} | {
        ("train", "logprobs/kl_k3"): 0.25,
        ("train", "rewards/mean"): 99.0,
    }


def test_neither_a_tracker_nor_prometheus_is_loaded_before_it_is_used() -> None:
    heavy = ["wandb", "trackio", "tensorboard", "torch.utils.tensorboard", "prometheus_client"]
    code = f"""
import sys
for name in {heavy!r}:
    sys.modules.pop(name, None)  # what the process that this one is forked from has loaded
import dataplane_training_figures
print(set(sys.modules) & set({heavy!r}))
"""
    done = commands.run([sys.executable, "-c", code])
    assert (done.returncode, done.stdout, done.stderr) == (0, "set()\n", "")
