"""Columns between the tensors of trainers and the ragged layout of the wire: padded and jagged, what kind a column is,
the rows of object and ragged columns, element types. Adapters of frameworks build on these.
"""

from dataplane_client._values.codec import (
    maybe_pack_jagged,
    pack_jagged_fields,
    pack_per_token_field,
    response_from_nested,
    stack_or_nest,
    to_nested_by_length,
    with_padded_rows,
)
from dataplane_client._values.columns_layout import Layout
from dataplane_client._values.dtypes import WIRE_DTYPES, dtype_name, torch_dtype
from dataplane_client._values.jagged import JaggedRows, read_jagged
from dataplane_client._values.object_leaves import (
    count_rows,
    is_object_leaf,
    object_array,
    object_leaf,
    object_rows,
    unwrap_wire_stripped_payload,
)
from dataplane_client._values.plain_columns import plain_column
from dataplane_client._values.registered_types import register_type
from dataplane_client.batched_data_dict import materialize

__all__ = [
    "WIRE_DTYPES",
    "JaggedRows",
    "Layout",
    "count_rows",
    "dtype_name",
    "is_object_leaf",
    "materialize",
    "maybe_pack_jagged",
    "object_array",
    "object_leaf",
    "object_rows",
    "pack_jagged_fields",
    "pack_per_token_field",
    "plain_column",
    "read_jagged",
    "register_type",
    "response_from_nested",
    "stack_or_nest",
    "to_nested_by_length",
    "torch_dtype",
    "unwrap_wire_stripped_payload",
    "with_padded_rows",
]
