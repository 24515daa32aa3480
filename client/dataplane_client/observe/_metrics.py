"""Counters of calls, for Prometheus."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from dataplane_client.errors import DataPlaneError
from dataplane_client.observe._call import Call, Observer, add_one
from dataplane_client.observe._catalog import CALLS, RETRIES, SECONDS, SESSIONS, VALUE_BYTES

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Counter, Histogram


def count_calls(registry: CollectorRegistry | None = None) -> Observer:
    """Count every call of every client of this process from now on. Returns an observer for `remove`.

    registry: where to register the metrics; None for prometheus-client's default registry, which
    `prometheus_client.start_http_server` serves. A second call with the same registry has no effect. CLIENT_METRICS
    lists the metrics. Heartbeats are not counted. Raises ImportError without prometheus-client.
    """
    try:
        from prometheus_client import REGISTRY
    except ImportError as error:
        raise ImportError("counting calls needs prometheus-client: pip install 'rl-dataplane[metrics]'") from error
    return add_one(CallCounters, REGISTRY if registry is None else registry)


class _Series(NamedTuple):
    """The series of one verb and transport. Cached, because a look-up by labels takes longer than an increment."""

    succeeded: Counter
    seconds: Histogram
    value_bytes: Counter | None
    """None for calls without values."""


class CallCounters(Observer):
    """The client's metrics in one registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        from prometheus_client import Counter, Gauge, Histogram

        from dataplane_client._connect.session import live_sessions

        self._calls = Counter(CALLS.name, CALLS.text, CALLS.labels, registry=registry)
        self._seconds = Histogram(
            SECONDS.name, SECONDS.text, SECONDS.labels, buckets=SECONDS.buckets, registry=registry
        )
        self._value_bytes = Counter(VALUE_BYTES.name, VALUE_BYTES.text, VALUE_BYTES.labels, registry=registry)
        self._retries = Counter(RETRIES.name, RETRIES.text, RETRIES.labels, registry=registry)
        Gauge(SESSIONS.name, SESSIONS.text, registry=registry).set_function(live_sessions)
        self._series: dict[tuple[str, str, bool], _Series] = {}

    def retried(self, call: Call, error: DataPlaneError) -> None:
        self._retries.labels(call.verb).inc()

    def ended(self, call: Call) -> None:
        value_bytes = call.sent_bytes + call.received_bytes
        labels = (call.verb, call.transport, value_bytes > 0)
        series = self._series.get(labels) or self._make_series(*labels)
        series.seconds.observe(call.seconds)
        if call.error is not None:
            self._calls.labels(call.verb, call.transport, call.code).inc()
            return
        series.succeeded.inc()
        if series.value_bytes is not None:
            series.value_bytes.inc(value_bytes)

    def _make_series(self, verb: str, transport: str, has_values: bool) -> _Series:
        value_bytes = self._value_bytes.labels(verb, transport) if has_values else None
        series = _Series(self._calls.labels(verb, transport, "OK"), self._seconds.labels(verb, transport), value_bytes)
        self._series[verb, transport, has_values] = series
        return series
