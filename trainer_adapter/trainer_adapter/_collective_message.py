"""Named values as one msgpack header and a list of byte tensors, for the collectives of `_exchange`.

The header has all names, plain values, and the shapes and dtypes of the tensors, so a receiver can allocate all buffers
from it. Elements are sent as bytes, because collectives support few element types.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple

import msgpack
import numpy as np
import torch

from dataplane_client.batched_data_dict.packed_tensor import PackedTensor
from dataplane_client.codec import dtype_name, torch_dtype

_TENSOR, _OBJECTS, _PACKED_TENSOR = 1, 2, 3  # msgpack's extension types

_Row = list[Any]


class UnsupportedValue(TypeError):
    """A value that cannot be sent to other ranks."""


class CollectiveMessage(NamedTuple):
    """header: names, plain values, and the shapes and dtypes of the tensors.
    buffers: the tensors' elements, (bytes,) uint8 each.
    """

    header: bytes
    buffers: list[torch.Tensor]


def pack_message(values: Mapping[str, Any] | None, device: torch.device) -> CollectiveMessage:
    """Pack the values with their elements on device; tensors that are already there share their memory with the
    message.

    Raises UnsupportedValue naming the value.
    """
    if not isinstance(values, Mapping):
        raise UnsupportedValue(f"values must be a mapping, got {type(values).__name__}")
    tensors = _Tensors(device)
    for key in values:
        if not isinstance(key, str):
            raise UnsupportedValue(f"value name {key!r} must be a str, got {type(key).__name__}")
    packed = {key: _name_errors(key, tensors.pack, value) for key, value in values.items()}
    return CollectiveMessage(msgpack.packb([packed, tensors.table]), tensors.buffers)


def _name_errors(key: object, step: Any, value: Any) -> Any:
    """Run a step; its errors become UnsupportedValue naming the value."""
    try:
        return step(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise UnsupportedValue(f"value {key!r}: {error}") from error


class _Tensors:
    """Collects the tensors of values while these are packed.

    table: one row [dtype, shape, lengths] for each tensor. A nested tensor has the shape of its values and the lengths
    of its rows.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.table: list[_Row] = []
        self.buffers: list[torch.Tensor] = []

    def pack(self, value: object) -> bytes:
        packed: bytes = msgpack.packb(value, default=self._extension)
        return packed

    def _extension(self, value: object) -> object:
        if isinstance(value, torch.Tensor):
            return msgpack.ExtType(_TENSOR, msgpack.packb(self._add(value)))
        if isinstance(value, np.ndarray) and value.dtype == object and value.ndim == 1:
            return msgpack.ExtType(_OBJECTS, self.pack(value.tolist()))
        if isinstance(value, PackedTensor):
            return msgpack.ExtType(_PACKED_TENSOR, self.pack([value.dim_to_pack, value.tensors]))
        if isinstance(value, np.generic):
            return value.item()
        if isinstance(value, Mapping):
            return dict(value)
        raise TypeError(f"unsupported value type {_describe(value)}")

    def _add(self, tensor: torch.Tensor) -> int:
        """Add a tensor to the table and return its index."""
        values, lengths = _values_and_lengths(tensor) if tensor.is_nested else (tensor, None)
        if type(values) not in (torch.Tensor, torch.nn.Parameter) or values.layout is not torch.strided:
            raise TypeError(
                f"unsupported tensor: {type(values).__name__} of layout {values.layout}; make it dense first"
            )
        if values.is_meta:
            raise TypeError("unsupported tensor: it is on the meta device and has no elements")
        self.table.append([dtype_name(values.dtype), list(values.shape), lengths])
        flat = values.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
        # A copy to the host must be done before its bytes are read, so only copies to CUDA are asynchronous.
        self.buffers.append(flat.view(torch.uint8).to(self._device, non_blocking=self._device.type == "cuda"))
        return len(self.table) - 1


def _describe(value: object) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype} array of shape {value.shape}"
    return "int beyond 64 bits" if isinstance(value, int) else type(value).__name__


def _values_and_lengths(nested: torch.Tensor) -> tuple[torch.Tensor, list[int]]:
    """The values of the rows, one row after the other, and the lengths of the rows."""
    sizes: list[object] = list(nested.shape) if nested.layout is torch.jagged else []
    if len(sizes) < 2 or not isinstance(sizes[1], torch.SymInt):
        raise TypeError("a nested tensor must have layout torch.jagged and be ragged in dim 1")
    jagged: Any = nested  # torch's annotations lack these methods
    bounds, held = jagged.offsets().tolist(), jagged.lengths()
    lengths = [end - start for start, end in pairwise(bounds)] if held is None else held.tolist()
    values = nested.values().detach()
    if held is None:
        return values[bounds[0] : bounds[-1]], lengths
    rows = [values[start : start + length] for start, length in zip(bounds, lengths, strict=False)]
    return torch.cat([values[:0], *rows]), lengths


def allocate_buffers(header: bytes, device: torch.device) -> list[torch.Tensor]:
    """Allocate memory for the elements of the tensors in a header."""
    _, table = _unpack_header(header)
    sizes = [prod(shape) * torch_dtype(dtype).itemsize for dtype, shape, _ in table]
    return [torch.empty(size, dtype=torch.uint8, device=device) for size in sizes]


def unpack_message(message: CollectiveMessage) -> dict[str, Any]:
    """Return the values; tensors live in the buffers. Raises UnsupportedValue for a mapping with unhashable keys."""
    packed, table = _unpack_header(message.header)
    reader = _Unpacker(_tensors(table, message.buffers))
    return {key: _name_errors(key, reader.unpack, data) for key, data in packed.items()}


def _unpack_header(header: bytes) -> tuple[dict[str, bytes], list[_Row]]:
    packed, table = msgpack.unpackb(header)
    return packed, table


def _tensors(table: list[_Row], buffers: list[torch.Tensor]) -> list[torch.Tensor]:
    """View the buffers as tensors. Nested tensors with equal rows share one offsets tensor; torch requires that to
    combine them.
    """
    offsets: dict[tuple[int, ...], torch.Tensor] = {}
    tensors = []
    for (dtype, shape, lengths), buffer in zip(table, buffers, strict=True):
        values = buffer.view(torch_dtype(dtype)).reshape(shape)
        tensors.append(values if lengths is None else _nest(values, lengths, offsets))
    return tensors


def _nest(values: torch.Tensor, lengths: list[int], known: dict[tuple[int, ...], torch.Tensor]) -> torch.Tensor:
    ends = known.get(tuple(lengths))
    if ends is None:
        ends = torch.from_numpy(np.cumsum([0, *lengths], dtype=np.int64)).to(values.device)
        known[tuple(lengths)] = ends
    return torch.nested.nested_tensor_from_jagged(
        values, ends, min_seqlen=min(lengths, default=0), max_seqlen=max(lengths, default=0)
    )


class _Unpacker:
    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self._tensors = tensors

    def unpack(self, data: bytes) -> Any:
        return msgpack.unpackb(data, ext_hook=self._extension, strict_map_key=False)

    def _extension(self, code: int, data: bytes) -> object:
        content = self.unpack(data)
        if code == _TENSOR:
            return self._tensors[content]
        if code == _PACKED_TENSOR:
            dim_to_pack, rows = content
            return PackedTensor(rows, dim_to_pack) if rows else PackedTensor([None], dim_to_pack).slice([])
        objects = np.empty(len(content), object)
        for row, item in enumerate(content):  # one by one: numpy would convert lists
            objects[row] = item
        return objects
