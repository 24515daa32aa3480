"""Row copies between the padded form ``(N, width, ...)`` and the jagged form ``(sum of lengths, ...)``.

Rows are copied as bit patterns: a tensor is viewed as integers of its own item size. So every element type works, also
those for which torch has no padding, index or fill kernel, and NaN payloads survive. On the CPU the row kernels write
each byte of the result once, into reused memory if it is large; several fields can share one call. On other devices
rows are copied by one indexed read, whose indices are made there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch

from dataplane_client._common.arrays import ByteArray, Int64Array
from dataplane_client._values.row_kernels import RowCopy, copy_rows
from dataplane_client._values.warm_buffers import SMALLEST, take

_BITS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's elements as bit patterns of their size, detached.

    Shares the tensor's memory unless a conjugation or negation is pending.
    """
    return tensor.detach().resolve_conj().resolve_neg().view(_BITS[tensor.dtype.itemsize])


def pad_rows(
    values: torch.Tensor,
    starts: Int64Array,
    lengths: Int64Array,
    width: int,
    pad: torch.Tensor,
    later: list[RowCopy] | None = None,
) -> torch.Tensor:
    """A new ``(N, width, *trailing)`` tensor whose row i begins with ``values[starts[i] : starts[i] + lengths[i]]``
    and continues with pad, a one-element tensor of the same dtype. No length may exceed width.

    Gradients flow through if values requires them. later: if given, a copy on the CPU without gradients is appended to
    it instead of made; the caller makes the copies together.
    """
    if values.requires_grad or values.device.type != "cpu":
        begin, length = torch.from_numpy(np.stack([starts, lengths])).to(values.device, non_blocking=True)
        index = row_index(begin, length, width)
        if values.requires_grad:
            return pad_by_index(values, index, pad)
        return pad_by_index(bits(values), index, bits(pad)).view(values.dtype)
    source, element = bits(values).contiguous(), bits(pad.reshape(1))
    shape = (len(lengths), width, *values.shape[1:])
    padded, entry = _empty_on_host(shape, source.dtype), _entry_bytes(source)
    begins, sizes = np.arange(len(lengths), dtype=np.int64) * (width * entry), lengths * entry
    target, fill = _bytes_of(padded), element.numpy().tobytes()
    _copy(RowCopy(target, begins, _bytes_of(source), starts * entry, sizes, width * entry - sizes, fill), later)
    return padded.view(values.dtype)


@dataclass(frozen=True, slots=True)
class RowIndex:
    """Which entry of the values goes to each place of N padded rows. Both tensors are (N, width), on their device.

    places: int64; 0 where the row has ended. is_padding: whether it has.
    """

    places: torch.Tensor
    is_padding: torch.Tensor


def row_index(starts: torch.Tensor, lengths: torch.Tensor, width: int) -> RowIndex:
    """The index of rows of (N,) starts and lengths, made on their device; the host does not wait."""
    columns = torch.arange(width, device=starts.device)
    is_padding = columns >= lengths[:, None]
    return RowIndex((starts[:, None] + columns).masked_fill_(is_padding, 0), is_padding)


def pad_by_index(values: torch.Tensor, index: RowIndex, pad: torch.Tensor) -> torch.Tensor:
    """As pad_rows, for devices where a loop would launch a kernel for each row. Nothing crosses the bus, and the host
    does not wait. pad: one element, on the CPU.
    """
    pad_value, shape = pad.item(), (*index.places.shape, *values.shape[1:])
    if not values.shape[0]:
        return values.new_full(shape, pad_value)
    is_padding = index.is_padding.reshape(*index.places.shape, *[1] * (values.dim() - 1))
    return values[index.places].masked_fill_(is_padding, pad_value)


def gather_rows(
    values: torch.Tensor, starts: Int64Array, lengths: Int64Array, later: list[RowCopy] | None = None
) -> torch.Tensor:
    """The rows ``values[starts[i] : starts[i] + lengths[i]]``, one after the other, in new memory.

    Gradients flow through if values requires them. later: if given, a copy on the CPU without gradients is appended to
    it instead of made; the caller makes the copies together.
    """
    if values.requires_grad or values.device.type != "cpu":
        pieces = [values[a : a + n] for a, n in zip(starts.tolist(), lengths.tolist(), strict=True)]
        return torch.cat(pieces) if pieces else values[:0]
    source = bits(values).contiguous()
    gathered = _empty_on_host((int(lengths.sum()), *values.shape[1:]), source.dtype)
    entry = _entry_bytes(source)
    sizes = lengths * entry
    begins = np.cumsum(sizes) - sizes
    _copy(RowCopy(_bytes_of(gathered), begins, _bytes_of(source), starts * entry, sizes), later)
    return gathered.view(values.dtype)


def _copy(copy: RowCopy, later: list[RowCopy] | None) -> None:
    if later is None:
        copy_rows([copy])
    else:
        later.append(copy)


def _empty_on_host(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    nbytes = math.prod(shape) * dtype.itemsize
    if nbytes < SMALLEST:
        return torch.empty(shape, dtype=dtype)
    return torch.from_numpy(take(nbytes)).view(dtype).reshape(shape)


def _bytes_of(tensor: torch.Tensor) -> ByteArray:
    flat: ByteArray = tensor.numpy().reshape(-1).view(np.uint8)
    return flat


def _entry_bytes(tensor: torch.Tensor) -> int:
    return math.prod(tensor.shape[1:]) * tensor.dtype.itemsize
