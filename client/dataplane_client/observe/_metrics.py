"""Counters of calls, for Prometheus."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from dataplane_client.errors import DataPlaneError
from dataplane_client.observe._call import Call
from dataplane_client.observe._catalog import CALLS, RETRIES, SECONDS, SESSIONS, VALUE_BYTES
from dataplane_client.observe._observers import Observer, add_one

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Counter, Histogram


def count_calls(registry: CollectorRegistry | None = None) -> Observer:
    """Count every call of every client of this process from now on, in a registry (None: prometheus-client's own,
    which `prometheus_client.start_http_server` serves). Asking again for the same registry is fine. Returns what can be
    removed.

    CLIENT_METRICS lists what is counted. Heartbeats are not calls. Raises ImportError without prometheus-client.
    """
    try:
        from prometheus_client import REGISTRY
    except ImportError as error:
        raise ImportError("counting calls needs prometheus-client: pip install 'rl-dataplane[metrics]'") from error
    return add_one(CallCounters, REGISTRY if registry is None else registry)


class _Way(NamedTuple):
    """The series of one verb and transport; to look them up by labels takes longer than to count."""

    ended_well: Counter
    seconds: Histogram
    value_bytes: Counter | None
    """None for calls that carry none."""


class CallCounters(Observer):
    """The client's metrics in one registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        from prometheus_client import Counter, Gauge, Histogram

        self._calls = Counter(CALLS.name, CALLS.text, CALLS.labels, registry=registry)
        self._seconds = Histogram(
            SECONDS.name, SECONDS.text, SECONDS.labels, buckets=SECONDS.buckets, registry=registry
        )
        self._value_bytes = Counter(VALUE_BYTES.name, VALUE_BYTES.text, VALUE_BYTES.labels, registry=registry)
        self._retries = Counter(RETRIES.name, RETRIES.text, RETRIES.labels, registry=registry)
        Gauge(SESSIONS.name, SESSIONS.text, registry=registry).set_function(_live_sessions)
        self._ways: dict[tuple[str, str, bool], _Way] = {}

    def retried(self, call: Call, error: DataPlaneError) -> None:
        self._retries.labels(call.verb).inc()

    def ended(self, call: Call) -> None:
        carried = call.sent_bytes + call.received_bytes
        labels = (call.verb, call.transport, carried > 0)
        way = self._ways.get(labels) or self._way(*labels)
        way.seconds.observe(call.seconds)
        if call.error is not None:
            self._calls.labels(call.verb, call.transport, call.code).inc()
            return
        way.ended_well.inc()
        if way.value_bytes is not None:
            way.value_bytes.inc(carried)

    def _way(self, verb: str, transport: str, carrying: bool) -> _Way:
        value_bytes = self._value_bytes.labels(verb, transport) if carrying else None
        way = _Way(self._calls.labels(verb, transport, "OK"), self._seconds.labels(verb, transport), value_bytes)
        self._ways[verb, transport, carrying] = way
        return way


def _live_sessions() -> float:
    from dataplane_client._session import live_sessions

    return live_sessions()
