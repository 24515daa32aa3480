"""Object fields: one value per row, as TensorDict leaves and as msgpack bytes.

A value is supported if msgpack returns it equal and of the same type: None, bool, int within 64 bits, float, str,
bytes, and lists and dicts of these, with str keys, at most 128 deep. Types are compared exactly. Tuples, bytearrays,
subclasses (enums, OrderedDict) and NumPy scalars would come back as another type; they are refused, not converted. The
same rule holds for bytes that are read, so msgpack's extension types are refused and no code comes from the wire.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import Final

import msgpack
import numpy as np
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDictBase, is_non_tensor

from dataplane_client._arrays import Int64Array, ObjectArray

_MAX_DEPTH: Final = 128
_SCALARS: Final = frozenset({type(None), bool, int, float, str, bytes})
_SUPPORTED: Final = "None, bool, int, float, str, bytes, list or dict"


def unwrap_wire_stripped_payload(item: object) -> object:
    """The payload of a NonTensorData item; any other item unchanged.

    An encoder that keeps only a TensorDict's tensors turns NonTensorData(None) into an empty TensorDict without batch
    dims; exactly that becomes None.
    """
    non_tensors = getattr(item, "_non_tensordict", None)
    if isinstance(non_tensors, dict) and "data" in non_tensors:
        return non_tensors["data"]
    if isinstance(item, TensorDictBase) and item.batch_dims == 0 and not list(item.keys()):
        return None
    return item


def is_object_leaf(leaf: object) -> bool:
    return is_non_tensor(leaf) or (isinstance(leaf, np.ndarray) and leaf.dtype == object)


def count_rows(leaf: object) -> int | None:
    """The leading dim of a tensor, an array or an object leaf; None if the leaf has none."""
    if isinstance(leaf, torch.Tensor):
        return int(leaf.size(0)) if leaf.dim() else None
    payload = unwrap_wire_stripped_payload(leaf)
    if isinstance(payload, np.ndarray) and payload.dtype == object:
        return len(payload) if payload.ndim else None
    if isinstance(leaf, NonTensorData | NonTensorStack) and leaf.batch_size:
        return int(leaf.batch_size[0])
    return None


def object_rows(field: str, leaf: object, n_rows: int) -> ObjectArray:
    """The values of the rows, ``(n_rows,)``. A NonTensorData payload other than an object array is every row's value.

    Raises ValueError, naming the field, if the leaf has another number of rows.
    """
    if isinstance(leaf, NonTensorStack):
        return object_array(field, [_stack_item(item) for item in leaf.unbind(0)], n_rows)
    payload = unwrap_wire_stripped_payload(leaf)
    if not (isinstance(payload, np.ndarray) and payload.dtype == object):
        return object_array(field, list(repeat(payload, n_rows)), n_rows)
    if payload.ndim != 1 or len(payload) != n_rows:
        raise ValueError(f"field {field!r}: object array of shape {payload.shape}, but there are {n_rows} rows")
    return payload


def _stack_item(item: object) -> object:
    """One row of a stack. A row that is itself a stack is a list: a TensorDict stores lists of equal length so."""
    return item.tolist() if isinstance(item, NonTensorStack) else unwrap_wire_stripped_payload(item)


def object_leaf(values: Sequence[object]) -> NonTensorStack | NonTensorData:
    """The leaf of a TensorDict with these values as its rows."""
    if not values:  # tensordict before 0.15 takes no empty stack
        return NonTensorData([], batch_size=[0])
    return NonTensorStack(*map(NonTensorData, values))


def object_array(field: str, items: Sequence[object], n_rows: int) -> ObjectArray:
    if len(items) != n_rows:
        raise ValueError(f"field {field!r}: {len(items)} objects, but there are {n_rows} rows")
    rows = np.empty(n_rows, object)
    for row, item in enumerate(items):  # one by one: numpy would unpack lists
        rows[row] = item
    return rows


def pack_objects(field: str, rows: ObjectArray) -> tuple[Int64Array, bytes]:
    """The msgpack bytes of all rows, one after the other, and the bytes of each.

    Raises TypeError for an unsupported type and ValueError for an unsupported value, naming the field and the row.
    """
    packed = [_pack(field, row, value) for row, value in enumerate(rows)]
    return np.array([len(data) for data in packed], np.int64), b"".join(packed)


def _pack(field: str, row: int, value: object) -> bytes:
    try:
        _check_supported(value, 0)
        packed: bytes = msgpack.packb(value)
    except TypeError as error:
        raise TypeError(f"field {field!r}, row {row}: {error}") from error
    except (ValueError, OverflowError) as error:  # lone surrogates, integers outside 64 bits, too deep
        raise ValueError(f"field {field!r}, row {row}: {error}") from error
    return packed


def _check_supported(value: object, depth: int) -> None:
    if type(value) in _SCALARS:
        return
    if type(value) is not list and type(value) is not dict:
        raise TypeError(f"unsupported type {_type_name(value)}; use {_SUPPORTED}")
    if depth == _MAX_DEPTH:
        raise ValueError(f"nested deeper than {_MAX_DEPTH} levels")
    if type(value) is dict:
        for key in value:
            if type(key) is not str:
                raise TypeError(f"unsupported dict key of type {_type_name(key)}; use str")
    for item in value.values() if type(value) is dict else value:
        _check_supported(item, depth + 1)


def _type_name(value: object) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def unpack_objects(field: str, lengths: Int64Array, values: memoryview) -> list[object]:
    """The inverse of pack_objects; lengths must sum to the size of values.

    Allocates at most a small multiple of the rows' bytes, whatever they contain. Raises ValueError, naming the field
    and the row, for bytes that are not exactly one msgpack value that pack_objects could have written.
    """
    begins = (np.cumsum(lengths) - lengths).tolist()
    return [
        _unpack(field, row, values[begin : begin + size])
        for row, (begin, size) in enumerate(zip(begins, lengths.tolist(), strict=True))
    ]


def _unpack(field: str, row: int, data: memoryview) -> object:
    try:
        value: object = msgpack.unpackb(data, strict_map_key=True)  # msgpack limits itself to the size of data
        _check_supported(value, 0)
    except (ValueError, TypeError) as error:
        raise ValueError(f"field {field!r}, row {row}: not valid msgpack: {error}") from error
    return value
