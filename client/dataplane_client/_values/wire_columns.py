"""Conversion between TensorDicts and wire columns.

Encoding a contiguous CPU tensor copies nothing: the column's bytes are the tensor's memory, which the column keeps
alive. Do not write to the tensor until the column is sent. Decoding copies nothing either if the buffer is writable and
aligned to the element size: the tensors then share the buffer. Objects are always copied.

Decoded jagged fields with equal row lengths share one offsets tensor, so that they can be combined element by element.
Columns to decode come from another process: decode_columns checks every size before it reads the bytes, and raises
only ValueError.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Final

import numpy as np
import torch
from tensordict import LazyStackedTensorDict, TensorDict, TensorDictBase

from dataplane_client._common.arrays import ByteArray, EmptyRows, Int64Array
from dataplane_client._values.columns_layout import ColumnLayout, WireColumn
from dataplane_client._values.dtypes import dtype_name, torch_dtype
from dataplane_client._values.jagged import (
    PaddedRows,
    RowSplit,
    bounds_of_adjoining,
    build_jagged,
    read_jagged,
    split_rows,
)
from dataplane_client._values.object_leaves import (
    RowName,
    count_rows,
    counted,
    object_leaf,
    object_rows,
    pack_objects,
    row_number,
    unpack_objects,
)
from dataplane_client._values.plain_columns import plain_column
from dataplane_client._values.rows import bits
from dataplane_client.errors import InvalidArgumentError

_CPU: Final = torch.device("cpu")
_MAX_NBYTES: Final = 2**63 - 1


def encode_columns(
    td: TensorDictBase | Mapping[str, object], n_samples: int | None = None, sample_ids: Sequence[str] | None = None
) -> list[WireColumn]:
    """One column per field, in the order of the fields. The number of rows is the batch size, for a plain mapping the
    leading dim of the first field that has one.

    Dense and jagged leaves are tensors (jagged: ragged in dim 1). Object leaves are a NonTensorStack, a NonTensorData
    (an object array of the rows, or one payload for every row) or an object ndarray. `_values.plain_columns` says what
    lists and other arrays are. Tensors on other devices are copied to the CPU; those of CUDA devices go through pinned
    memory, and the host waits once for all of them. n_samples: the rows that the call names, if it names any;
    sample_ids: their names, for errors.

    Raises TypeError for an unsupported leaf, dtype or value type, and ValueError for a field with another number of
    rows, naming the field; InvalidArgumentError (ROW_COUNT_MISMATCH) when a field does not have n_samples rows.
    """
    if isinstance(td, TensorDictBase) and not td.batch_dims:
        raise ValueError("a TensorDict must have a batch dim, its rows; this one has none")
    row_name = row_number if sample_ids is None else partial(name_of_row, sample_ids)
    fields = _fields_of_stack(td) if isinstance(td, LazyStackedTensorDict) else td.items()
    leaves = {name: _leaf(name, value, row_name) for name, value in fields}
    n_rows = _count_rows(td, leaves) if n_samples is None else n_samples
    for name, leaf in leaves.items():
        found = _rows_of(leaf)
        if found != n_rows and (found is not None or isinstance(leaf, torch.Tensor)):
            raise _wrong_rows(name, leaf, found, n_rows, n_samples is not None)
    if isinstance(td, TensorDictBase) and td.batch_size[0] != n_rows:  # and no field shows it
        message = f"the TensorDict has {counted(td.batch_size[0], 'row')}, but the call names {n_rows} samples"
        raise InvalidArgumentError(message, reason="ROW_COUNT_MISMATCH")
    return [_encode(name, leaf, n_rows, row_name) for name, leaf in _from_cuda(leaves).items()]


def _fields_of_stack(td: LazyStackedTensorDict) -> Iterable[tuple[str, object]]:
    """The fields and their values: lists where rows differ in shape, which no tensor holds. Raises ValueError for a
    field that only some rows have, which the stack does not show.
    """
    rows = td.unbind(0)
    if partial_fields := set().union(*(row.keys() for row in rows)) - set(td.keys()):
        raise ValueError(f"field {min(partial_fields)!r}: some rows lack it; put the rows that have it by themselves")
    return [(name, _stacked(td, rows, name)) for name in map(str, td.keys())]


def _stacked(td: LazyStackedTensorDict, rows: Sequence[TensorDictBase], name: str) -> object:
    """The value as `items` has it; `get` would make lists of objects."""
    try:
        return dict(td.select(name).items())[name]
    except RuntimeError:
        return [row[name] for row in rows]


def _from_cuda(leaves: Mapping[str, object]) -> Mapping[str, object]:
    """The leaves, with copies in pinned memory of those that are on a CUDA device."""
    on_cuda = {
        name: leaf for name, leaf in leaves.items() if isinstance(leaf, torch.Tensor) and leaf.device.type == "cuda"
    }
    parts = {name: found for name, leaf in on_cuda.items() if (found := _parts(leaf))}
    if not parts:
        return leaves
    staged = {id(part): _queued_copy(part) for found in parts.values() for part in found}  # fields share bounds
    for device in {part.device for found in parts.values() for part in found}:
        torch.cuda.current_stream(device).synchronize()
    copies = dict(leaves)
    for name, found in parts.items():
        values, *bounds = (staged[id(part)] for part in found)
        copies[name] = torch.nested.nested_tensor_from_jagged(values, bounds[0]) if bounds else values
    return copies


def _parts(leaf: torch.Tensor) -> list[torch.Tensor]:
    """The tensors that hold a leaf: itself, or the values and the bounds of rows that adjoin."""
    if not leaf.is_nested:
        return [leaf]
    bounds = bounds_of_adjoining(leaf)
    return [] if bounds is None else [leaf.values(), bounds]


def _queued_copy(tensor: torch.Tensor) -> torch.Tensor:
    staged = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return staged.copy_(tensor.detach(), non_blocking=True)


def name_of_row(sample_ids: Sequence[str], row: int) -> str:
    return f"row {row} (sample {sample_ids[row]!r})" if row < len(sample_ids) else row_number(row)


def _leaf(name: str, value: object, row_name: RowName) -> object:
    """A tensor, an object leaf, or PaddedRows: a list is a jagged column even if all of its rows have one length."""
    if isinstance(value, PaddedRows):
        return value
    leaf = plain_column(name, value, row_name)
    if not isinstance(leaf, torch.Tensor) or leaf.is_nested or leaf.dim() < 2:
        return leaf
    if isinstance(value, (torch.Tensor, np.ndarray)):
        return leaf
    return PaddedRows(leaf, np.full(leaf.shape[0], leaf.shape[1], np.int64))


def _count_rows(td: TensorDictBase | Mapping[str, object], leaves: Mapping[str, object]) -> int:
    if isinstance(td, TensorDictBase):
        return int(td.batch_size[0])
    counts = (_rows_of(leaf) for leaf in leaves.values())
    rows = next((count for count in counts if count is not None), None)
    if rows is None and leaves:
        raise ValueError(f"none of the fields {list(leaves)} has rows")
    return rows or 0


def _rows_of(leaf: object) -> int | None:
    return len(leaf.lengths) if isinstance(leaf, PaddedRows) else count_rows(leaf)


def _wrong_rows(name: str, leaf: object, found: int | None, n_rows: int, are_named: bool) -> ValueError:
    """are_named: whether n_rows is the number of samples that the call names."""
    if found is None:
        return ValueError(
            f"field {name!r}: a 0-d tensor, but the batch has {counted(n_rows, 'row')}; give a tensor of shape "
            f"({n_rows},), one value for each row"
        )
    if not are_named:
        return ValueError(f"field {name!r}: {counted(found, 'row')}, but the batch has {counted(n_rows, 'row')}")
    hint = ""
    if n_rows == 1 and isinstance(leaf, torch.Tensor) and leaf.dim() == 1:
        hint = (
            f"; if they are the tokens of that sample, give a list with one tensor, or shape (1, {found}) and "
            f"sequence_lengths=[{found}]"
        )
    rows = f"field {name!r} has {counted(found, 'row')}"
    message = f"{rows}, but the call names {counted(n_rows, 'sample')}{hint}"
    return InvalidArgumentError(message, reason="ROW_COUNT_MISMATCH")


def _encode(name: str, leaf: object, n_rows: int, row_name: RowName) -> WireColumn:
    if isinstance(leaf, torch.Tensor):
        return _encode_tensor(name, leaf)
    if isinstance(leaf, PaddedRows):
        return _encode_padded(name, leaf)
    rows = object_rows(name, leaf, n_rows)
    lengths, packed = pack_objects(name, rows, row_name)
    of_empty_lists = isinstance(rows, EmptyRows)
    return WireColumn(name, "object", "", (), lengths, memoryview(packed), of_empty_lists=of_empty_lists)


def _encode_tensor(name: str, tensor: torch.Tensor) -> WireColumn:
    dtype = dtype_name(tensor.dtype, name)
    if tensor.is_nested:
        jagged = read_jagged(tensor, name)
        values = jagged.packed()
        return WireColumn(name, "jagged", dtype, tuple(values.shape[1:]), jagged.lengths, _bytes_of(name, values))
    return WireColumn(name, "dense", dtype, tuple(tensor.shape[1:]), None, _bytes_of(name, tensor))


def _encode_padded(name: str, leaf: PaddedRows) -> WireColumn:
    padded = leaf.padded
    row_bytes = math.prod(padded.shape[1:]) * padded.dtype.itemsize
    starts = np.arange(len(leaf.lengths), dtype=np.int64) * row_bytes
    dtype, row_shape = dtype_name(padded.dtype, name), tuple(padded.shape[2:])
    return WireColumn(name, "jagged", dtype, row_shape, leaf.lengths, _bytes_of(name, padded), starts)


def _bytes_of(name: str, tensor: torch.Tensor) -> memoryview:
    if tensor.is_meta:
        raise TypeError(f"field {name!r}: a tensor on the device meta has no values")
    flat: ByteArray = bits(tensor).contiguous().cpu().numpy().reshape(-1).view(np.uint8)
    if tensor.dtype is torch.bool:
        _check_bools(name, flat)
    return flat.data.toreadonly()


def _check_bools(name: str, flat: ByteArray) -> None:
    if flat.max(initial=0) > 1:
        raise ValueError(f"field {name!r}: a byte of a bool must be 0 or 1")


def decode_columns(columns: Sequence[WireColumn], n_rows: int) -> TensorDict:
    """A CPU TensorDict of batch size ``[n_rows]`` with one leaf per column: tensors, torch.jagged nested tensors, and
    NonTensorStacks for object columns (without rows: an empty NonTensorData). Slicing the TensorDict keeps every field
    row-aligned; tensordict slices jagged fields from 0.15.3 on.

    The tensors share the columns' buffers where these are writable and aligned, and keep them alive. Raises ValueError,
    naming the field, for a column that contradicts itself or n_rows.
    """
    leaves = {
        name: leaf if isinstance(leaf, torch.Tensor) else object_leaf(leaf)
        for name, leaf in decode_leaves(columns, n_rows).items()
    }
    return TensorDict(leaves, batch_size=[n_rows])


def decode_leaves(columns: Sequence[WireColumn], n_rows: int) -> dict[str, torch.Tensor | list[object]]:
    """As decode_columns, but a plain dictionary; the values of object columns are lists."""
    if n_rows < 0:
        raise ValueError(f"n_rows must not be negative, got {n_rows}")
    splits: dict[bytes, RowSplit] = {}
    leaves: dict[str, torch.Tensor | list[object]] = {}
    for column in columns:
        if column.name in leaves:
            raise ValueError(f"duplicate field {column.name!r}")
        leaves[column.name] = _decode(column, n_rows, splits)
    return leaves


def _decode(column: WireColumn, n_rows: int, splits: dict[bytes, RowSplit]) -> torch.Tensor | list[object]:
    data = np.frombuffer(column.values, np.uint8)
    if column.kind == "object":
        lengths = _checked_lengths(column, n_rows)
        _check_nbytes(column, data, sum(lengths.tolist()), 1)
        return unpack_objects(column.name, lengths, column.values)
    if column.kind == "dense":
        return tensor_on(column, data, (n_rows, *column.row_shape))
    if column.kind != "jagged":
        raise ValueError(f"field {column.name!r}: unknown kind {column.kind!r}")
    lengths = _checked_lengths(column, n_rows)
    values = tensor_on(column, data, (sum(lengths.tolist()), *column.row_shape))
    split = splits.setdefault(lengths.tobytes(), split_rows(lengths, _CPU))
    return build_jagged(values, split)


def _checked_lengths(column: WireColumn, n_rows: int) -> Int64Array:
    if column.lengths is None or column.lengths.shape != (n_rows,):
        found = "no lengths" if column.lengths is None else f"lengths of shape {column.lengths.shape}"
        raise ValueError(f"field {column.name!r}: {found}, but there are {n_rows} rows")
    lengths = np.ascontiguousarray(column.lengths, np.int64)
    if (lengths < 0).any():
        row = int(np.argmax(lengths < 0))
        raise ValueError(f"field {column.name!r}, row {row}: negative length {lengths[row]}")
    return lengths


def tensor_on(layout: ColumnLayout, data: ByteArray, shape: tuple[int, ...]) -> torch.Tensor:
    """A tensor of the layout's dtype on data, or on a copy if torch cannot use that memory.

    Raises ValueError, naming the field, when data does not have exactly the bytes of the shape.
    """
    dtype = torch_dtype(layout.dtype, layout.name)
    if any(size < 0 for size in shape):
        raise ValueError(f"field {layout.name!r}: negative size in row shape {layout.row_shape}")
    _check_nbytes(layout, data, shape[0], math.prod(shape[1:]) * dtype.itemsize)
    if math.prod(max(size, 1) for size in shape) * dtype.itemsize > _MAX_NBYTES:
        raise ValueError(f"field {layout.name!r}: row shape {layout.row_shape} is too large")
    if dtype is torch.bool:
        _check_bools(layout.name, data)
    if not data.flags.writeable or data.ctypes.data % dtype.itemsize:
        data = data.copy()
    flat = torch.from_numpy(data) if len(data) else torch.empty(0, dtype=torch.uint8)  # an empty array has no stride
    return flat.view(dtype).reshape(shape)


def _check_nbytes(layout: ColumnLayout, data: ByteArray, n_entries: int, entry_bytes: int) -> None:
    if n_entries * entry_bytes != len(data):
        raise ValueError(
            f"field {layout.name!r}: {n_entries} entries of {entry_bytes} bytes, but {len(data)} bytes of values"
        )
