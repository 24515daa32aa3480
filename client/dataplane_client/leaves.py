"""Columns as leaves of a TensorDict, for adapters between this client and another data plane: what kind a column is,
and the rows of object and ragged columns. `codec` has what trainers need.
"""

from dataplane_client._values.jagged import JaggedRows, read_jagged
from dataplane_client._values.object_leaves import count_rows, is_object_leaf, object_array, object_leaf, object_rows
from dataplane_client._values.plain_columns import plain_column

__all__ = [
    "JaggedRows",
    "count_rows",
    "is_object_leaf",
    "object_array",
    "object_leaf",
    "object_rows",
    "plain_column",
    "read_jagged",
]
