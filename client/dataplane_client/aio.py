"""The asynchronous client: the same verbs, to be awaited."""

from dataplane_client._async.claim import AsyncClaim
from dataplane_client._async.client import AsyncDataPlaneClient, connect
from dataplane_client._async.columns import kv_first_write, read_columns, write_columns

__all__ = ["AsyncClaim", "AsyncDataPlaneClient", "connect", "kv_first_write", "read_columns", "write_columns"]
