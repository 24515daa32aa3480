"""What the server tells Prometheus.

Counters and histograms are fed by the service as calls end. Gauges are read from the core at each scrape, so they
cannot drift and a dropped partition takes its series with it. Labels are bounded: verbs and codes by the contract,
partitions and tasks by the core's limits, states and reasons by what the core knows.
"""

from __future__ import annotations

import time
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

from dataplane_server.core.calls import PartitionInfo, TaskInfo
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
        infos = self._plane.partition_infos(time.monotonic())
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
            ("sessions", "Sessions that live.", totals.sessions),
        ):
            yield GaugeMetricFamily(f"dataplane_{name}", text, value=value)


def _partition_metrics(infos: list[PartitionInfo]) -> Iterable[Metric]:
    rows = GaugeMetricFamily("dataplane_rows", "Resident rows.", labels=["partition"])
    size = GaugeMetricFamily("dataplane_stored_bytes", "Bytes of the values of resident rows.", labels=["partition"])
    put = CounterMetricFamily("dataplane_rows_put", "Rows created by puts.", labels=["partition"])
    cleared = CounterMetricFamily("dataplane_rows_cleared", "Rows that are gone.", labels=["partition"])
    removed = CounterMetricFamily(
        "dataplane_rows_removed", "Rows that are gone, by why.", labels=["partition", "reason"]
    )
    groups = GaugeMetricFamily(
        "dataplane_open_groups", "Groups that are reserved and not finished.", labels=["partition"]
    )
    for info in infos:
        label = [info.definition.partition_id]
        rows.add_metric(label, info.rows)
        size.add_metric(label, info.size_bytes)
        put.add_metric(label, info.rows_put_total)
        cleared.add_metric(label, info.rows_cleared_total)
        groups.add_metric(label, info.open_groups)
        for reason, count in info.removed_rows.items():
            removed.add_metric([*label, reason], count)
    return (rows, size, put, cleared, removed, groups)


def _task_metrics(infos: list[PartitionInfo]) -> Iterable[Metric]:
    labels = ["partition", "task"]
    rows = GaugeMetricFamily("dataplane_task_rows", "Resident rows by task and state.", labels=[*labels, "state"])
    consumed = CounterMetricFamily("dataplane_rows_consumed", "Rows consumed by tasks.", labels=labels)
    delivered = CounterMetricFamily(
        "dataplane_row_deliveries", "Rows handed out to tasks, each as often as it was.", labels=labels
    )
    ended = CounterMetricFamily(
        "dataplane_row_deliveries_ended", "Deliveries of rows that have ended, by how.", labels=[*labels, "how"]
    )
    seconds = CounterMetricFamily(
        "dataplane_task_state_seconds", "For how long tasks have been in a state.", labels=[*labels, "state"]
    )
    for label, task in (([info.definition.partition_id, task.task], task) for info in infos for task in info.tasks):
        for state, count in _rows_by_state(task):
            rows.add_metric([*label, state], count)
        consumed.add_metric(label, task.consumed_rows_total)
        delivered.add_metric(label, task.delivered_rows_total)
        for how, count in task.ended_deliveries.items():
            ended.add_metric([*label, how], count)
        for state, spent in task.state_seconds.items():
            seconds.add_metric([*label, state], spent)
    return (rows, consumed, delivered, ended, seconds)


def _rows_by_state(task: TaskInfo) -> Iterable[tuple[str, int]]:
    return (
        ("untaken", task.untaken_rows),
        ("claimed", task.claimed_rows),
        ("consumed", task.consumed_rows),
        ("delayed", task.delayed_rows),
        ("dead", task.dead_rows),
    )
