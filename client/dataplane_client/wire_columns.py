"""Between TensorDicts and wire columns.

Encoding a contiguous CPU tensor copies nothing: the column's bytes are the tensor's memory, which the column keeps
alive, so the tensor must not be written to until the column is sent. Decoding copies nothing either where the buffer is
writable and aligned to the element size: the tensors then live in the buffer. Objects are always copied.

Decoded jagged fields with equal row lengths share one offsets tensor, so that they can be combined element by element.
Columns come from outside: decode_columns checks every size before it touches the bytes, and fails only with ValueError.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict, TensorDictBase

from dataplane_client._host_staging import on_host
from dataplane_client._jagged import RowSplit, build_jagged, read_jagged, split_rows
from dataplane_client._object_leaves import count_rows, is_object_leaf, object_rows, pack_objects, unpack_objects
from dataplane_client._padded_rows import PaddedRows
from dataplane_client._rows import Int64Array, bits
from dataplane_client.columns_layout import ColumnLayout, WireColumn
from dataplane_client.dtypes import dtype_name, torch_dtype

ByteArray = npt.NDArray[np.uint8]

_CPU: Final = torch.device("cpu")
_MAX_NBYTES: Final = 2**63 - 1


def encode_columns(td: TensorDictBase | Mapping[str, object]) -> list[WireColumn]:
    """One column per field, in the order of the fields; the number of rows is the batch size, for a plain mapping the
    leading dim of the first field that has one.

    Dense and jagged leaves are tensors (jagged: ragged in dim 1); object leaves are a NonTensorStack, a NonTensorData
    (an object array of the rows, or one payload for every row) or an object ndarray. Tensors elsewhere than on the CPU
    are copied to it. Raises TypeError for a leaf, dtype or value type that does not travel, and ValueError for a wrong
    number of rows, naming the field.
    """
    n_rows = _count_rows(td)
    return [_encode(name, leaf, n_rows) for name, leaf in td.items()]


def _count_rows(td: TensorDictBase | Mapping[str, object]) -> int:
    if isinstance(td, TensorDictBase):
        if td.batch_dims == 0:
            raise ValueError("a TensorDict without batch dims has no rows")
        return int(td.batch_size[0])
    for leaf in td.values():
        rows = len(leaf) if isinstance(leaf, PaddedRows) else count_rows(leaf)
        if rows is not None:
            return rows
    if td:
        raise ValueError(f"no field says how many rows there are: {list(td)}")
    return 0


def _encode(name: str, leaf: object, n_rows: int) -> WireColumn:
    if is_object_leaf(leaf):
        lengths, packed = pack_objects(name, object_rows(name, leaf, n_rows))
        return WireColumn(name, "object", "", (), lengths, memoryview(packed))
    if isinstance(leaf, PaddedRows):
        return _encode_padded(name, leaf, n_rows)
    if not isinstance(leaf, torch.Tensor):
        raise TypeError(f"field {name!r}: a leaf of type {type(leaf).__name__} does not travel")
    dtype = dtype_name(leaf.dtype, name)
    rows = count_rows(leaf)
    if rows != n_rows:
        found = "a 0-d tensor" if rows is None else f"{rows} rows"
        raise ValueError(f"field {name!r}: {found}, but the batch has {n_rows} rows")
    if leaf.is_nested:
        jagged = read_jagged(leaf, name)
        values = jagged.packed()
        return WireColumn(name, "jagged", dtype, tuple(values.shape[1:]), jagged.lengths, _bytes_of(name, values))
    if leaf.layout is not torch.strided or leaf.is_meta:
        raise TypeError(f"field {name!r}: a {leaf.layout} tensor on {leaf.device} does not travel; make it dense first")
    return WireColumn(name, "dense", dtype, tuple(leaf.shape[1:]), None, _bytes_of(name, leaf))


def _encode_padded(name: str, leaf: PaddedRows, n_rows: int) -> WireColumn:
    if len(leaf) != n_rows:
        raise ValueError(f"field {name!r}: {len(leaf)} rows, but the batch has {n_rows} rows")
    padded = leaf.padded
    row_bytes = math.prod(padded.shape[1:]) * padded.dtype.itemsize
    starts = np.arange(n_rows, dtype=np.int64) * row_bytes
    dtype, row_shape = dtype_name(padded.dtype, name), tuple(padded.shape[2:])
    return WireColumn(name, "jagged", dtype, row_shape, leaf.lengths, _bytes_of(name, padded), starts)


def _bytes_of(name: str, tensor: torch.Tensor) -> memoryview:
    flat: ByteArray = on_host(bits(tensor).contiguous()).numpy().reshape(-1).view(np.uint8)
    if tensor.dtype is torch.bool:
        _check_bools(name, flat)
    return flat.data.toreadonly()


def _check_bools(name: str, flat: ByteArray) -> None:
    if flat.max(initial=0) > 1:
        raise ValueError(f"field {name!r}: a bool is stored as a byte other than 0 and 1")


def decode_columns(columns: Sequence[WireColumn], n_rows: int) -> TensorDict:
    """A CPU TensorDict of batch size ``[n_rows]`` with one leaf per column: tensors, torch.jagged nested tensors, and
    NonTensorStacks for object columns, so that slicing the TensorDict keeps every field row-aligned.

    The tensors share the columns' buffers where these are writable and aligned, and keep them alive. Raises ValueError,
    naming the field, for a column that contradicts itself or n_rows.
    """
    leaves = {
        name: leaf if isinstance(leaf, torch.Tensor) else NonTensorStack(*map(NonTensorData, leaf))
        for name, leaf in decode_leaves(columns, n_rows).items()
    }
    return TensorDict(leaves, batch_size=[n_rows])


def decode_leaves(columns: Sequence[WireColumn], n_rows: int) -> dict[str, torch.Tensor | list[object]]:
    """The same as decode_columns, as a plain dictionary, with the values of object columns in lists."""
    if n_rows < 0:
        raise ValueError(f"{n_rows} rows")
    splits: dict[bytes, RowSplit] = {}
    leaves: dict[str, torch.Tensor | list[object]] = {}
    for column in columns:
        if column.name in leaves:
            raise ValueError(f"field {column.name!r} comes twice")
        leaves[column.name] = _decode(column, n_rows, splits)
    return leaves


def _decode(column: WireColumn, n_rows: int, splits: dict[bytes, RowSplit]) -> torch.Tensor | list[object]:
    if column.kind == "object":
        lengths = _checked_lengths(column, n_rows)
        _check_nbytes(column, sum(lengths.tolist()), 1)
        return unpack_objects(column.name, lengths, column.values)
    if column.kind == "dense":
        return _tensor_on(column, n_rows)
    if column.kind != "jagged":
        raise ValueError(f"field {column.name!r}: unknown kind {column.kind!r}")
    lengths = _checked_lengths(column, n_rows)
    values = _tensor_on(column, sum(lengths.tolist()))
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


def _tensor_on(column: WireColumn, n_entries: int) -> torch.Tensor:
    """The tensor ``(n_entries, *row_shape)`` on the column's buffer, or on a copy where torch cannot use the buffer."""
    dtype = torch_dtype(column.dtype, column.name)
    if any(size < 0 for size in column.row_shape):
        raise ValueError(f"field {column.name!r}: negative size in row shape {column.row_shape}")
    _check_nbytes(column, n_entries, math.prod(column.row_shape) * dtype.itemsize)
    if max(n_entries, 1) * math.prod(max(size, 1) for size in column.row_shape) * dtype.itemsize > _MAX_NBYTES:
        raise ValueError(f"field {column.name!r}: row shape {column.row_shape} is too large")
    return tensor_on(column, np.frombuffer(column.values, np.uint8), (n_entries, *column.row_shape))


def tensor_on(layout: ColumnLayout, data: ByteArray, shape: tuple[int, ...]) -> torch.Tensor:
    """A tensor of the layout's dtype on data, which must have as many bytes, or on a copy where torch cannot use it."""
    dtype = torch_dtype(layout.dtype, layout.name)
    if dtype is torch.bool:
        _check_bools(layout.name, data)
    if not data.flags.writeable or data.ctypes.data % dtype.itemsize:
        data = data.copy()
    flat = torch.from_numpy(data) if len(data) else torch.empty(0, dtype=torch.uint8)  # an empty array has no stride
    return flat.view(dtype).reshape(shape)


def _check_nbytes(column: WireColumn, n_entries: int, entry_nbytes: int) -> None:
    if n_entries * entry_nbytes != column.values.nbytes:
        raise ValueError(
            f"field {column.name!r}: {n_entries} entries of {entry_nbytes} bytes, but {column.values.nbytes} bytes"
        )
