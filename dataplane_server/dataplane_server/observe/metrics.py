"""What the server tells Prometheus.

Counters and histograms are fed by the service as calls end. Gauges are read from the core at each scrape, so they
cannot drift and a dropped partition takes its series with it. Labels are bounded: verbs and codes by the contract,
partitions and tasks by the core's limits.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dataplane_server.core.calls import PartitionInfo
from dataplane_server.core.plane import DataPlane

Transport = Literal["grpc", "shm"]
"""How a call came: over gRPC, or from a client of this host that maps the memory."""

_CALL_BUCKETS = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 300)


class Metrics:
    """The metrics of one server, in a registry of its own."""

    def __init__(self, plane: DataPlane) -> None:
        self.registry = CollectorRegistry()
        self._by_partition: list[Counter] = []
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self.registry)
        self.registry.register(_CoreCollector(plane))
        self._calls = self._counter(
            "dataplane_calls", "Calls ended, by verb, transport and status code.", ["verb", "transport", "code"]
        )
        self._refusals = self._counter("dataplane_refusals", "Calls refused, by verb and reason.", ["verb", "reason"])
        self._seconds = Histogram(
            "dataplane_call_seconds",
            "Duration of calls, waits included, by verb and transport.",
            ["verb", "transport"],
            buckets=_CALL_BUCKETS,
            registry=self.registry,
        )
        self.attached_clients = Gauge(
            "dataplane_attached_clients", "Clients of this host that map the memory.", registry=self.registry
        )
        self._put_rows = self._counter("dataplane_put_call_rows", "Rows named by applied puts.", ["partition"])
        self._put_bytes = self._counter("dataplane_put_bytes", "Bytes of values in applied puts.", ["partition"])
        self._commits = self._counter("dataplane_commits", "Claims committed.", ["partition"])
        self._commit_bytes = self._counter(
            "dataplane_commit_bytes", "Bytes of values in the columns of commits.", ["partition"]
        )
        self._read_rows = self._counter("dataplane_read_rows", "Rows read.", ["partition"])
        self._read_bytes = self._counter("dataplane_read_bytes", "Bytes of values read.", ["partition"])
        self._claims = self._counter("dataplane_claims", "Claims granted.", ["partition", "task"])
        self._claim_rows = self._counter("dataplane_claim_rows", "Rows handed out by claims.", ["partition", "task"])
        self._claim_wait = Histogram(
            "dataplane_claim_wait_seconds",
            "How long granted claims waited for rows.",
            ["task"],
            buckets=_CALL_BUCKETS,
            registry=self.registry,
        )

    def _counter(self, name: str, text: str, labels: list[str]) -> Counter:
        counter = Counter(name, text, labels, registry=self.registry)
        if "partition" in labels:
            self._by_partition.append(counter)
        return counter

    def call(self, verb: str, transport: Transport, code: str, seconds: float) -> None:
        self._calls.labels(verb, transport, code).inc()
        self._seconds.labels(verb, transport).observe(seconds)

    def refusal(self, verb: str, reason: str) -> None:
        self._refusals.labels(verb, reason).inc()

    def put(self, partition: str, rows: int, size_bytes: int) -> None:
        self._put_rows.labels(partition).inc(rows)
        self._put_bytes.labels(partition).inc(size_bytes)

    def commit(self, partition: str, size_bytes: int) -> None:
        self._commits.labels(partition).inc()
        self._commit_bytes.labels(partition).inc(size_bytes)

    def read(self, partition: str, rows: int, size_bytes: int) -> None:
        self._read_rows.labels(partition).inc(rows)
        self._read_bytes.labels(partition).inc(size_bytes)

    def claim(self, partition: str, task: str, rows: int, waited_s: float) -> None:
        self._claims.labels(partition, task).inc()
        self._claim_rows.labels(partition, task).inc(rows)
        self._claim_wait.labels(task).observe(waited_s)

    def forget_partition(self, partition: str) -> None:
        """Drop the series of a partition that is gone."""
        for counter in self._by_partition:
            counter.remove_by_labels({"partition": partition})


class _CoreCollector(Collector):
    """Reads the core at scrape time."""

    def __init__(self, plane: DataPlane) -> None:
        self._plane = plane

    def collect(self) -> Iterable[Metric]:
        yield from self._totals()
        infos = self._plane.partition_infos()
        yield from _partition_metrics(infos)
        yield from _task_metrics(infos)

    def _totals(self) -> Iterable[Metric]:
        totals = self._plane.totals()
        for name, text, value in (
            ("memory_budget_bytes", "Budget for the bytes of values.", totals.memory_budget_bytes),
            ("memory_used_bytes", "Bytes of the budget in use.", totals.memory_used_bytes),
            ("partitions", "Registered partitions.", totals.partitions),
            ("open_claims", "Claims handed out and neither committed nor released.", totals.open_claims),
            ("waiting_claims", "Claims that wait for rows.", totals.waiting_claims),
            ("waiting_puts", "Puts and commits that wait for space.", totals.waiting_puts),
        ):
            yield GaugeMetricFamily(f"dataplane_{name}", text, value=value)


def _partition_metrics(infos: list[PartitionInfo]) -> Iterable[Metric]:
    rows = GaugeMetricFamily("dataplane_rows", "Resident rows.", labels=["partition"])
    size = GaugeMetricFamily("dataplane_stored_bytes", "Bytes of the values of resident rows.", labels=["partition"])
    put = CounterMetricFamily("dataplane_rows_put", "Rows created by puts.", labels=["partition"])
    cleared = CounterMetricFamily("dataplane_rows_cleared", "Rows cleared.", labels=["partition"])
    for info in infos:
        label = [info.definition.partition_id]
        rows.add_metric(label, info.rows)
        size.add_metric(label, info.size_bytes)
        put.add_metric(label, info.rows_put_total)
        cleared.add_metric(label, info.rows_cleared_total)
    return (rows, size, put, cleared)


def _task_metrics(infos: list[PartitionInfo]) -> Iterable[Metric]:
    labels = ["partition", "task"]
    rows = GaugeMetricFamily("dataplane_task_rows", "Resident rows by task and state.", labels=[*labels, "state"])
    consumed = CounterMetricFamily("dataplane_rows_consumed", "Rows consumed by tasks.", labels=labels)
    for info in infos:
        for task in info.tasks:
            label = [info.definition.partition_id, task.task]
            rows.add_metric([*label, "untaken"], task.untaken_rows)
            rows.add_metric([*label, "claimed"], task.claimed_rows)
            rows.add_metric([*label, "consumed"], task.consumed_rows)
            consumed.add_metric(label, task.consumed_rows_total)
    return (rows, consumed)
