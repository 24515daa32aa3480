"""The kinds of fields and the element types of tensors: names and item sizes.

The tables are normative: a peer reads columns by them without torch. This module imports neither protobuf nor NumPy, so
that the server's core can use it. `element_numbers` has the numbers that stand for these names in messages.
"""

from __future__ import annotations

from typing import Final, Literal, get_args

Kind = Literal["dense", "jagged", "object"]
"""How the rows of a field are shaped: all alike, ragged in their first dimension, or one msgpack value each."""

KINDS: Final[tuple[Kind, ...]] = get_args(Kind)

ITEM_SIZES: Final[dict[str, int]] = {
    "bool": 1,
    "uint8": 1,
    "uint16": 2,
    "uint32": 4,
    "uint64": 8,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "float4_e2m1fn_x2": 1,
    "float8_e4m3fn": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
    "complex32": 4,
    "complex64": 8,
    "complex128": 16,
}
"""Bytes of one element, by the element type's canonical name: torch's own without its ``torch.`` prefix."""
