"""What a client tells of itself: counters for Prometheus, spans for OpenTelemetry, and the hook that feeds both.

    from dataplane_client import observe

    observe.count_calls()  # from here on every call of every client of this process is counted
    observe.trace_calls()  # and traced

Both are for the process, not for one client: trainers and loaders open clients of their own. Importing this package
loads neither library.
"""

from dataplane_client.observe._call import Call
from dataplane_client.observe._catalog import CLIENT_METRICS, ClientMetric
from dataplane_client.observe._metrics import count_calls
from dataplane_client.observe._observers import Observer, add, remove
from dataplane_client.observe._tracing import producer_links, trace_calls

__all__ = [
    "CLIENT_METRICS",
    "Call",
    "ClientMetric",
    "Observer",
    "add",
    "count_calls",
    "producer_links",
    "remove",
    "trace_calls",
]
