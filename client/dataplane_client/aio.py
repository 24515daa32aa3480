"""The asynchronous client: the same verbs, to be awaited."""

from dataplane_client._async.claim import AsyncClaim
from dataplane_client._async.client import AsyncDataPlaneClient, connect
from dataplane_client._async.columns import kv_first_write, read_columns, write_columns
from dataplane_client._async.group import AsyncGroup

__all__ = [
    "AsyncClaim",
    "AsyncDataPlaneClient",
    "AsyncGroup",
    "connect",
    "kv_first_write",
    "read_columns",
    "write_columns",
]
