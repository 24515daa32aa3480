"""Batches over the blocking client."""

from dataplane_client._verbs._sync.columns import kv_first_write, read_columns, write_columns

__all__ = ["kv_first_write", "read_columns", "write_columns"]
