"""Object fields: one value per row, as TensorDict leaves and as bytes. `_values.object_values` says which values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import repeat

import numpy as np
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDictBase, is_non_tensor

from dataplane_client._common.arrays import Int64Array, ObjectArray
from dataplane_client._values.object_values import ObjectPacker, unpack_object
from dataplane_client.errors import UnsupportedTypeError

_ROWS = ("O", "U", "S")
"""Kinds of NumPy arrays that are rows of objects."""

RowName = Callable[[int], str]
"""How an error names a row."""


def row_number(row: int) -> str:
    """The name of a row of which only its place is known."""
    return f"row {row}"


def counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


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
    """Whether each row of a leaf is an object: a non-tensor leaf, or an array of dtype object."""
    return is_non_tensor(leaf) or (isinstance(leaf, np.ndarray) and leaf.dtype == object)


def count_rows(leaf: object) -> int | None:
    """The leading dim of a tensor, an array or an object leaf; None if the leaf has none."""
    if isinstance(leaf, torch.Tensor):
        return int(leaf.size(0)) if leaf.dim() else None
    payload = unwrap_wire_stripped_payload(leaf)
    if isinstance(payload, np.ndarray) and payload.dtype.kind in _ROWS:
        return len(payload) if payload.ndim else None
    if isinstance(leaf, NonTensorData | NonTensorStack) and leaf.batch_size:
        return int(leaf.batch_size[0])
    return None


def object_rows(field: str, leaf: object, n_rows: int) -> ObjectArray:
    """The values of the rows, ``(n_rows,)``: those of a stack, or of a NonTensorData's array of objects or text.
    Another NonTensorData payload is every row's value.

    Raises ValueError, naming the field, if the leaf has another number of rows, and TypeError for a NonTensorData of
    one tensor or array of numbers, which may be meant either way.
    """
    if isinstance(leaf, NonTensorStack):
        return object_array(field, [stack_item(item) for item in leaf.unbind(0)], n_rows)
    payload = unwrap_wire_stripped_payload(leaf)
    if isinstance(payload, np.ndarray) and payload.dtype.kind in _ROWS:
        if payload.ndim != 1 or len(payload) != n_rows:
            found = f"object array of shape {payload.shape}"
            raise ValueError(f"field {field!r}: {found}, but the batch has {counted(n_rows, 'row')}")
        return payload.astype(object, copy=False)
    if isinstance(payload, (np.ndarray, torch.Tensor)):
        kind = "numpy.ndarray" if isinstance(payload, np.ndarray) else "torch.Tensor"
        raise TypeError(f"field {field!r}: one {kind} in a NonTensorData; give one for each row in a NonTensorStack")
    return object_array(field, list(repeat(payload, n_rows)), n_rows)


def stack_item(item: object) -> object:
    """The value of a row. A row that is itself a stack is a list: a TensorDict stores lists of equal length so."""
    return item.tolist() if isinstance(item, NonTensorStack) else unwrap_wire_stripped_payload(item)


def object_leaf(values: Sequence[object]) -> NonTensorStack | NonTensorData:
    """The leaf of a TensorDict with these values as its rows."""
    if not values:  # tensordict before 0.15 takes no empty stack
        return NonTensorData([], batch_size=[0])
    return NonTensorStack(*map(NonTensorData, values))


def object_array(field: str, items: Sequence[object], n_rows: int) -> ObjectArray:
    """An array (n_rows,) of any objects, lists and arrays among them. ValueError, naming the field, for another number
    of items.
    """
    if len(items) != n_rows:
        found = counted(len(items), "object")
        raise ValueError(f"field {field!r}: {found}, but the batch has {counted(n_rows, 'row')}")
    return np.fromiter(items, object, n_rows)  # np.array would unpack lists, an assignment arrays without dimensions


def pack_objects(field: str, rows: ObjectArray, row_name: RowName = row_number) -> tuple[Int64Array, bytes]:
    """The bytes of all rows, one after the other, and the bytes of each.

    Raises TypeError for an unsupported type and ValueError for an unsupported value, naming the field and the row.
    """
    packer = ObjectPacker()
    packed = [_pack(packer, field, value, row, row_name) for row, value in enumerate(rows)]
    return np.array([len(data) for data in packed], np.int64), b"".join(packed)


def _pack(packer: ObjectPacker, field: str, value: object, row: int, row_name: RowName) -> bytes:
    try:
        return packer.pack(value)
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"field {field!r}, {row_name(row)}: {error}") from None


def unpack_objects(field: str, lengths: Int64Array, values: memoryview) -> list[object]:
    """The inverse of pack_objects; lengths must sum to the size of values.

    Raises ValueError for bytes that pack_objects could not have written, and UnsupportedTypeError for a type that this
    process has not registered. Both name the field and the row.
    """
    begins = (np.cumsum(lengths) - lengths).tolist()
    return [
        _unpack(field, row, values[begin : begin + size])
        for row, (begin, size) in enumerate(zip(begins, lengths.tolist(), strict=True))
    ]


def _unpack(field: str, row: int, data: memoryview) -> object:
    try:
        return unpack_object(data)
    except LookupError as error:
        raise UnsupportedTypeError(f"field {field!r}, row {row}: {error}") from None
    except ValueError as error:
        raise ValueError(f"field {field!r}, row {row}: not valid msgpack: {error}") from None
