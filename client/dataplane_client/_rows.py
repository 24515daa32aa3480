"""Row copies between the padded form ``(N, width, ...)`` and the jagged form ``(sum of lengths, ...)``.

Rows are copied as bit patterns: a tensor is viewed as integers of its own item size. So every element type works, also
those for which torch has no padding, index or fill kernel, and NaN payloads survive. On the CPU the row kernels write
each byte of the result once, into reused memory if it is large; several fields can share one call. On other devices
rows are copied by one indexed assignment.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import torch

from dataplane_client._arrays import ByteArray, Int64Array
from dataplane_client.row_kernels import RowCopy, copy_rows
from dataplane_client.warm_buffers import SMALLEST, take

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
    shape = (len(lengths), width, *values.shape[1:])
    if values.requires_grad:
        padded = pad.to(values.device).reshape([1] * len(shape)).expand(shape).clone()
        index_rows_in(padded, values, starts, lengths)
        return padded
    source, element = bits(values).contiguous(), bits(pad.reshape(1))
    if source.device.type != "cpu":
        padded = torch.empty(shape, dtype=source.dtype, device=source.device).fill_(element[0])
        index_rows_in(padded, source, starts, lengths)
        return padded.view(values.dtype)
    padded, entry = _empty_on_host(shape, source.dtype), _entry_bytes(source)
    begins, sizes = np.arange(len(lengths), dtype=np.int64) * (width * entry), lengths * entry
    target, fill = _bytes_of(padded), element.numpy().tobytes()
    _copy(RowCopy(target, begins, _bytes_of(source), starts * entry, sizes, width * entry - sizes, fill), later)
    return padded.view(values.dtype)


def index_rows_in(padded: torch.Tensor, source: torch.Tensor, starts: Int64Array, lengths: Int64Array) -> None:
    """Copy rows into padded by one indexed assignment, for devices where a loop would launch a kernel for each row."""
    rows = np.repeat(np.arange(len(lengths)), lengths)
    columns = np.arange(len(rows)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    entries = np.repeat(starts, lengths) + columns
    on_device = [torch.from_numpy(index).to(padded.device) for index in (rows, columns, entries)]
    padded[on_device[0], on_device[1]] = source[on_device[2]]


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
