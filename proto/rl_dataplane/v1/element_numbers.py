"""The numbers of kinds and element types in messages, both ways.

These tables need the generated classes, `element_types` must not: hence two modules. Lazy imports in one module would
cost a function call for each column of each message.
"""

from __future__ import annotations

from typing import Final

from rl_dataplane.v1 import data_plane_pb2 as pb
from rl_dataplane.v1.element_types import ITEM_SIZES, KINDS, Kind

KIND_NUMBERS: Final = {kind: pb.FieldKind.Value(f"FIELD_KIND_{kind.upper()}") for kind in KINDS}
KINDS_BY_NUMBER: Final[dict[int, Kind]] = {number: kind for kind, number in KIND_NUMBERS.items()}

DTYPE_NUMBERS: Final = {name: pb.DataType.Value(f"DATA_TYPE_{name.upper()}") for name in ITEM_SIZES}
DTYPES_BY_NUMBER: Final[dict[int, str]] = {number: name for name, number in DTYPE_NUMBERS.items()}
