"""The server's metrics: `catalog` describes all of them, `exposition` writes those of partitions and tasks.

The service updates the counters and histograms of calls. All other metrics are read from the core at each scrape, so
they cannot drift, and the series of a partition end when it is dropped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import astuple
from typing import Literal

from prometheus_client import (
    CollectorRegistry,
    Counter,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.metrics_core import Metric

from dataplane_server.collection import without_collection
from dataplane_server.core.plane import DataPlane
from dataplane_server.observe.catalog import CALLS, SERVER
from dataplane_server.observe.exposition import Exposition, header_text, label_text
from dataplane_server.observe.verdict import AILMENTS
from dataplane_server.version import VERSION

Transport = Literal["grpc", "shm", "direct"]
"""How a call arrived: over gRPC, from a client of this host that maps the arena, or at the direct port."""

_TURN_S = 0.002
MOST_HOLDERS = 10
"""Clients that are told by name."""

_SPECS = {spec.name: spec for spec in CALLS}


class _Registry(CollectorRegistry):
    """A registry without the `_created` gauge that prometheus-client adds to each series."""

    def collect(self) -> Iterable[Metric]:
        for metric in super().collect():
            metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            yield metric


class Metrics:
    """The metrics of one server. serving: whether it accepts calls."""

    def __init__(
        self, plane: DataPlane, serving: Callable[[], bool], now: Callable[[], float] = time.monotonic
    ) -> None:
        """now: the time of the core's calls, in seconds."""
        self.attached_clients = 0
        self.ailments: Callable[[], Container[str]] = tuple
        self._plane = plane
        self._now = now
        self._serving = serving
        self._scrape_s = 0.0
        self._exposition = Exposition(plane)
        self._registry = _Registry()
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self._registry)
        self._calls = self._counter("dataplane_calls_total")
        self._refusals = self._counter("dataplane_refusals_total")
        self._bytes = self._counter("dataplane_call_value_bytes_total")
        self._seconds = self._histogram("dataplane_call_seconds")
        self._claim_waits = self._histogram("dataplane_claim_wait_seconds")
        self._put_waits = self._histogram("dataplane_put_wait_seconds")
        self._lags = self._histogram("dataplane_event_loop_lag_seconds")

    def _counter(self, name: str) -> Counter:
        spec = _SPECS[name]
        return Counter(name, spec.text, spec.labels, registry=self._registry)

    def _histogram(self, name: str) -> Histogram:
        spec = _SPECS[name]
        return Histogram(name, spec.text, spec.labels, buckets=spec.buckets, registry=self._registry)

    # -- updates by the service ----------------------------------------------------------------------------------------

    def call(self, verb: str, transport: Transport, code: str, seconds: float) -> None:
        self._calls.labels(verb, transport, code).inc()
        self._seconds.labels(verb, transport).observe(seconds)

    def carried(self, verb: str, transport: Transport, size_bytes: int) -> None:
        """Count the value bytes of a call that took effect."""
        self._bytes.labels(verb, transport).inc(size_bytes)

    def refusal(self, verb: str, reason: str) -> None:
        self._refusals.labels(verb, reason).inc()

    def claim_waited(self, seconds: float) -> None:
        self._claim_waits.observe(seconds)

    def put_waited(self, seconds: float) -> None:
        """Record how long a put or commit waited, for space or for room in its partition, whether or not it got any."""
        self._put_waits.observe(seconds)

    def lagged(self, seconds: float) -> None:
        """Record how late the event loop ran a timer."""
        self._lags.observe(seconds)

    def seconds_of_calls(self) -> dict[str, list[float]]:
        """How many calls of each verb have ended within each of CALL_SECONDS, and in all."""
        counts: dict[str, list[float]] = {}
        for sample in next(iter(self._seconds.collect())).samples:
            if sample.name.endswith("_bucket"):
                counts.setdefault(f"{sample.labels['verb']} {sample.labels['transport']}", []).append(sample.value)
        return counts

    # -- scrapes -------------------------------------------------------------------------------------------------------

    def turns(self) -> Iterator[bytes]:
        """All metrics in Prometheus's text format, in parts that take some two milliseconds each. Calls may be served
        between two parts.
        """
        pieces, worked_s, ended = self._pieces(), 0.0, False
        while not ended:
            began, part, ended = time.monotonic(), [], True
            with without_collection():  # a scrape allocates enough to start one, and frees all of it soon
                for piece in pieces:
                    part.append(piece)
                    if time.monotonic() - began >= _TURN_S:
                        ended = False
                        break
            worked_s += time.monotonic() - began
            yield b"".join(part)
        self._scrape_s = worked_s

    def _pieces(self) -> Iterator[bytes]:
        now = self._now()
        yield "".join(self._server_lines(now)).encode()
        yield from self._exposition.pieces(now)
        yield generate_latest(self._registry)

    def _server_lines(self, now: float) -> Iterator[str]:
        values = self._server_values(now)
        for spec in SERVER:
            yield header_text(spec)
            for labels, value in values[spec.name]:
                yield f"{spec.name}{label_text(spec.labels, labels)} {value}\n"

    def _server_values(self, now: float) -> dict[str, Iterable[tuple[tuple[str, ...], float]]]:
        totals, ailments = self._plane.totals(now), self.ailments()
        unlabelled: dict[str, float] = {
            "dataplane_serving": int(self._serving()),
            "dataplane_memory_budget_bytes": totals.memory_budget_bytes,
            "dataplane_memory_used_bytes": totals.memory_used_bytes,
            "dataplane_memory_largest_free_bytes": (
                sum(node.largest_free for node in self._plane.nodes()) or totals.largest_free_bytes
            ),
            "dataplane_memory_held_bytes": totals.held_bytes,
            "dataplane_memory_free_ranges": totals.free_pieces,
            "dataplane_max_rows": self._plane.limits.max_rows,
            "dataplane_partitions": totals.partitions,
            "dataplane_open_claims": totals.open_claims,
            "dataplane_waiting_claims": totals.waiting_claims,
            "dataplane_waiting_puts": totals.waiting_puts,
            "dataplane_calls_waiting_for_room": totals.waiting_for_room,
            "dataplane_longest_put_wait_seconds": totals.longest_put_wait_s or 0.0,
            "dataplane_sessions": totals.sessions,
            "dataplane_sessions_opened_total": totals.sessions_opened,
            "dataplane_attached_clients": self.attached_clients,
            "dataplane_scrape_seconds": self._scrape_s,
        }
        return {
            "dataplane_build_info": [((VERSION,), 1)],
            "dataplane_unhealthy": [((ailment,), int(ailment in ailments)) for ailment in AILMENTS],
            "dataplane_client_held_bytes": [
                ((holder.client_name, kind), size_bytes)
                for holder in self._plane.holders(MOST_HOLDERS)
                for kind, size_bytes in zip(("lent", "leased", "owed"), astuple(holder)[1:], strict=True)
            ],
            "dataplane_sessions_ended_total": [((how,), count) for how, count in totals.sessions_ended.items()],
            **{name: [((), value)] for name, value in unlabelled.items()},
        }
