"""Where figures go: a tracker of experiments, or Prometheus. No tracker is imported."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from dataplane_client.observe import ClientMetric

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

FIGURES = ClientMetric(
    "dataplane_client_training_figure",
    "gauge",
    "The newest figures of training data, by partition and figure, such as logprobs/kl_k3.",
    ("partition", "figure"),
)
"""The metric of `TrainingGauges`."""

_MOST_PARTITIONS = 64


@runtime_checkable
class LogsMetrics(Protocol):
    """A run of Weights & Biases or trackio, or the module of either."""

    def log(self, metrics: dict[str, Any], /, *, step: int) -> object: ...


@runtime_checkable
class AddsScalars(Protocol):
    """torch.utils.tensorboard.SummaryWriter."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int, /) -> object: ...


def log_metrics(tracker: LogsMetrics | AddsScalars, metrics: Mapping[str, float], step: int) -> None:
    """Send figures to a tracker, which must have one of the two methods (TypeError)."""
    if isinstance(tracker, LogsMetrics):
        tracker.log(dict(metrics), step=step)
    elif isinstance(tracker, AddsScalars):
        for name, value in metrics.items():
            tracker.add_scalar(name, value, step)
    else:
        raise TypeError(f"tracker: must have log(metrics, step=) or add_scalar(name, value, step), got {tracker!r}")


class TrainingGauges:
    """The newest figures as gauges of Prometheus; figures are the names of `as_metrics` without `dataplane/`.

    registry: None for prometheus-client's default registry; make one object for each. Raises ImportError without
    prometheus-client. There are at most 64 partitions: one more replaces the one that was set longest ago.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        try:
            from prometheus_client import REGISTRY, Gauge
        except ImportError as error:
            raise ImportError("training gauges need prometheus-client: pip install 'rl-dataplane[metrics]'") from error
        self._gauge = Gauge(FIGURES.name, FIGURES.text, FIGURES.labels, registry=registry or REGISTRY)
        self._partitions: list[str] = []

    def set(self, metrics: Mapping[str, float], partition: str = "") -> None:
        """Set the gauges of a partition from what `as_metrics()` returns."""
        for name, value in metrics.items():
            self._gauge.labels(partition, name.removeprefix("dataplane/")).set(value)
        self._partitions = [*(other for other in self._partitions if other != partition), partition]
        if len(self._partitions) > _MOST_PARTITIONS:
            self._gauge.remove_by_labels({"partition": self._partitions.pop(0)})
