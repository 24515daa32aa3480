"""Named values as one msgpack message and a list of byte tensors, for the collectives of `_exchange`.

The message says everything about a tensor but its elements, so whoever receives it can make room for all of them and
needs no further word. Elements travel as bytes, since collectives know few element types and bytes are all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, Protocol, cast

import msgpack
import numpy as np
import torch

from dataplane_client.dtypes import dtype_name, torch_dtype
from dataplane_client.packed_tensor import PackedTensor

_TENSOR, _OBJECTS, _PACKED_TENSOR = 1, 2, 3  # msgpack's extension types

_Row = list[Any]


class NotCarried(TypeError):
    """A value that msgpack does not carry."""


class Parcel(NamedTuple):
    """message: names, plain values and what the tensors look like. buffers: their elements, (bytes,) uint8 each."""

    message: bytes
    buffers: list[torch.Tensor]


class _JaggedTensor(Protocol):
    def offsets(self) -> torch.Tensor: ...
    def lengths(self) -> torch.Tensor | None: ...


def packed_parcel(values: Mapping[str, Any] | None, device: torch.device) -> Parcel:
    """The values with their elements on device; tensors that lie there already share their memory.

    Raises NotCarried, naming the value.
    """
    if not isinstance(values, Mapping):
        raise NotCarried(f"values are a mapping, got {type(values).__name__}")
    tensors = _Tensors(device)
    packed = {_checked_key(key): _named(key, tensors.pack, value) for key, value in values.items()}
    return Parcel(msgpack.packb([packed, tensors.table]), tensors.buffers)


def _checked_key(key: object) -> str:
    if not isinstance(key, str):
        raise NotCarried(f"value {key!r} is named by a {type(key).__name__}, only a str travels")
    return key


def _named(key: object, step: Any, value: Any) -> Any:
    try:
        return step(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise NotCarried(f"value {key!r}: {error}") from error


class _Tensors:
    """What was met of tensors while values were packed. table: a row [dtype, shape, lengths] each; a nested tensor's
    shape is that of its values, and its lengths are those of its rows.
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
            return msgpack.ExtType(_TENSOR, msgpack.packb(self._number(value)))
        if isinstance(value, np.ndarray) and value.dtype == object and value.ndim == 1:
            return msgpack.ExtType(_OBJECTS, self.pack(value.tolist()))
        if isinstance(value, PackedTensor):
            return msgpack.ExtType(_PACKED_TENSOR, self.pack([value.dim_to_pack, value.tensors]))
        if isinstance(value, np.generic):
            return value.item()
        if isinstance(value, Mapping):
            return dict(value)
        raise TypeError(f"{_kind_of(value)} does not travel")

    def _number(self, tensor: torch.Tensor) -> int:
        """Of the tensor in the table, which it is added to."""
        values, lengths = _rows_of(tensor) if tensor.is_nested else (tensor, None)
        if type(values) not in (torch.Tensor, torch.nn.Parameter) or values.layout is not torch.strided:
            raise TypeError(f"a {type(values).__name__} of layout {values.layout} does not travel; make it dense first")
        if values.is_meta:
            raise TypeError("a tensor on the meta device has no elements that could travel")
        self.table.append([dtype_name(values.dtype), list(values.shape), lengths])
        flat = values.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
        # Towards the host the copy has to be done before its bytes are read.
        self.buffers.append(flat.view(torch.uint8).to(self._device, non_blocking=self._device.type == "cuda"))
        return len(self.table) - 1


def _kind_of(value: object) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype} array of shape {value.shape}"
    return "an int beyond 64 bits" if isinstance(value, int) else type(value).__name__


def _rows_of(nested: torch.Tensor) -> tuple[torch.Tensor, list[int]]:
    """The entries of the rows, one row after the other, and the lengths of the rows."""
    sizes: list[object] = list(nested.shape) if nested.layout is torch.jagged else []
    if len(sizes) < 2 or not isinstance(sizes[1], torch.SymInt):
        raise TypeError("a nested tensor must have layout torch.jagged and be ragged in dim 1")
    jagged = cast("_JaggedTensor", nested)
    bounds, held = jagged.offsets().tolist(), jagged.lengths()
    lengths = [end - start for start, end in pairwise(bounds)] if held is None else held.tolist()
    values = nested.values().detach()
    if held is None:
        return values[bounds[0] : bounds[-1]], lengths
    rows = [values[start : start + length] for start, length in zip(bounds, lengths, strict=False)]
    return torch.cat([values[:0], *rows]), lengths


def buffers_for(message: bytes, device: torch.device) -> list[torch.Tensor]:
    """Room for the elements of the tensors that a message announces."""
    _, table = _unpacked(message)
    return [torch.empty(_nbytes(dtype, shape), dtype=torch.uint8, device=device) for dtype, shape, _ in table]


def _nbytes(dtype: str, shape: Sequence[int]) -> int:
    return int(np.prod(shape, dtype=np.int64)) * torch_dtype(dtype).itemsize


def unpacked_parcel(parcel: Parcel) -> dict[str, Any]:
    """The values; tensors live in the buffers. Raises NotCarried for a mapping with keys that cannot be looked up."""
    packed, table = _unpacked(parcel.message)
    reader = _Reader(_tensors(table, parcel.buffers))
    return {key: _named(key, reader.unpack, data) for key, data in packed.items()}


def _unpacked(message: bytes) -> tuple[dict[str, bytes], list[_Row]]:
    packed, table = msgpack.unpackb(message)
    return packed, table


def _tensors(table: list[_Row], buffers: list[torch.Tensor]) -> list[torch.Tensor]:
    """Nested tensors with equal rows share one offsets tensor, without which torch would not combine them."""
    offsets: dict[tuple[int, ...], torch.Tensor] = {}
    tensors = []
    for (dtype, shape, lengths), buffer in zip(table, buffers, strict=True):
        values = buffer.view(torch_dtype(dtype)).reshape(shape)
        tensors.append(values if lengths is None else _nested(values, lengths, offsets))
    return tensors


def _nested(values: torch.Tensor, lengths: list[int], known: dict[tuple[int, ...], torch.Tensor]) -> torch.Tensor:
    ends = known.get(tuple(lengths))
    if ends is None:
        ends = torch.from_numpy(np.cumsum([0, *lengths], dtype=np.int64)).to(values.device)
        known[tuple(lengths)] = ends
    return torch.nested.nested_tensor_from_jagged(
        values, ends, min_seqlen=min(lengths, default=0), max_seqlen=max(lengths, default=0)
    )


class _Reader:
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
        for row, item in enumerate(content):  # by index: numpy would look into lists
            objects[row] = item
        return objects
