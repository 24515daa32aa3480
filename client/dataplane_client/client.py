"""The blocking client, and batches over it."""

from dataplane_client._verbs._sync.claim import Claim
from dataplane_client._verbs._sync.client import DataPlaneClient, connect, connect_later
from dataplane_client._verbs._sync.columns import kv_first_write, read_columns, write_columns
from dataplane_client._verbs._sync.group import Group

__all__ = [
    "Claim",
    "DataPlaneClient",
    "Group",
    "connect",
    "connect_later",
    "kv_first_write",
    "read_columns",
    "write_columns",
]
