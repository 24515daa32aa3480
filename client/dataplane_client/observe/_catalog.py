"""All metrics of the client: name, kind, labels and meaning. The client exports no others.

The label sets are bounded: verbs and transports by the contract, codes by the exception classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

CALL_SECONDS = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 300)
"""The same buckets as the server's, so that both sides can be compared."""


@dataclass(frozen=True, slots=True)
class ClientMetric:
    """One metric. buckets: upper bounds in seconds; only histograms have them."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    text: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


CALLS = ClientMetric(
    "dataplane_client_calls_total",
    "counter",
    "Calls ended, by verb, transport (of the last attempt) and code: OK, or the class of the exception.",
    ("verb", "transport", "code"),
)
SECONDS = ClientMetric(
    "dataplane_client_call_seconds",
    "histogram",
    "Duration of calls, waits and all attempts included, by verb and transport.",
    ("verb", "transport"),
    CALL_SECONDS,
)
VALUE_BYTES = ClientMetric(
    "dataplane_client_value_bytes_total",
    "counter",
    "Bytes of values that successful calls carried, by verb and transport.",
    ("verb", "transport"),
)
RETRIES = ClientMetric(
    "dataplane_client_retries_total",
    "counter",
    "Attempts after the first, made since the server could not be reached, by verb.",
    ("verb",),
)
SESSIONS = ClientMetric(
    "dataplane_client_sessions",
    "gauge",
    "Sessions of this process that live as far as it knows: one for each client that has claimed or reserved rows.",
)

CLIENT_METRICS = (CALLS, SECONDS, VALUE_BYTES, RETRIES, SESSIONS)
"""Of `count_calls`."""
