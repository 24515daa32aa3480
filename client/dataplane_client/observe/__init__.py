"""Counters (Prometheus) and spans (OpenTelemetry) of a client's calls, the hook that feeds both, and log events.

    from dataplane_client import observe

    observe.count_calls()  # count every call of every client of this process from now on
    observe.trace_calls()  # and make a span of each

Both apply to the process, not to one client, because trainers and loaders open clients of their own. Importing this
package loads neither library.
"""

from dataplane_client._connect.log import log_event
from dataplane_client.observe._call import Call, Observer, add, remove
from dataplane_client.observe._catalog import CLIENT_METRICS, ClientMetric
from dataplane_client.observe._metrics import count_calls
from dataplane_client.observe._tracing import producer_links, trace_calls

__all__ = [
    "CLIENT_METRICS",
    "Call",
    "ClientMetric",
    "Observer",
    "add",
    "count_calls",
    "log_event",
    "producer_links",
    "remove",
    "trace_calls",
]
