"""What the contract's numbers for kinds and element types mean. No numpy: the command line describes fields, too."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rl_dataplane.v1 import data_plane_pb2 as pb

if TYPE_CHECKING:
    from dataplane_client.columns_layout import Kind

KINDS: dict[int, Kind] = {
    pb.FIELD_KIND_DENSE: "dense",
    pb.FIELD_KIND_JAGGED: "jagged",
    pb.FIELD_KIND_OBJECT: "object",
}
DTYPES = {number: name.removeprefix("DATA_TYPE_").lower() for name, number in pb.DataType.items() if number}


def field_layout(message: pb.FieldDescription) -> tuple[Kind | None, str, tuple[int, ...]]:
    """Kind (None before the first put), element type and row shape of a described field."""
    return KINDS.get(message.kind), DTYPES.get(message.data_type, ""), tuple(message.row_shape)
