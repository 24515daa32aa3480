"""Row copies between the padded form ``(N, width, ...)`` and the jagged form ``(sum of lengths, ...)``.

Rows are copied as bit patterns: a tensor is viewed as integers of its own item size, so every element type works, also
those for which torch has no padding, index or fill kernel, and NaN payloads survive. On the CPU a loop of one memcpy
per row is used: on 512 rows of 512 to 4096 tokens it takes 0.3 (one byte) to 0.7 (eight bytes) of the time of torch's
jagged-to-padded kernel, and 0.25 to 0.45 of ``as_nested_tensor``'s. On other devices one indexed copy does it.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

Int64Array = npt.NDArray[np.int64]

_BITS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's elements as plain patterns of their size, detached.

    Shares the tensor's memory unless a conjugation or negation is still pending.
    """
    return tensor.detach().resolve_conj().resolve_neg().view(_BITS[tensor.dtype.itemsize])


def pad_rows(
    values: torch.Tensor, starts: Int64Array, lengths: Int64Array, width: int, pad: torch.Tensor
) -> torch.Tensor:
    """A fresh ``(N, width, *trailing)`` tensor whose row i begins with ``values[starts[i] : starts[i] + lengths[i]]``
    and continues with pad, a one-element tensor of the same dtype. No length may exceed width.
    """
    source = bits(values).contiguous()
    padded = torch.empty((len(lengths), width, *values.shape[1:]), dtype=source.dtype, device=source.device)
    padded.fill_(bits(pad.reshape(1))[0])
    if source.device.type == "cpu":
        _copy_rows_in(padded, source, starts, lengths)
    else:
        index_rows_in(padded, source, starts, lengths)
    return padded.view(values.dtype)


def _copy_rows_in(padded: torch.Tensor, source: torch.Tensor, starts: Int64Array, lengths: Int64Array) -> None:
    entry = math.prod(source.shape[1:])
    stride = padded.shape[1] * entry
    target, flat = padded.numpy().reshape(-1), source.numpy().reshape(-1)
    begins, sizes = (starts * entry).tolist(), (lengths * entry).tolist()
    for row, (begin, size) in enumerate(zip(begins, sizes, strict=True)):
        target[row * stride : row * stride + size] = flat[begin : begin + size]


def index_rows_in(padded: torch.Tensor, source: torch.Tensor, starts: Int64Array, lengths: Int64Array) -> None:
    """The same copy as one indexed assignment, for devices where a loop would launch a kernel per row."""
    rows = np.repeat(np.arange(len(lengths)), lengths)
    columns = np.arange(len(rows)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    entries = np.repeat(starts, lengths) + columns
    on_device = [torch.from_numpy(index).to(padded.device) for index in (rows, columns, entries)]
    padded[on_device[0], on_device[1]] = source[on_device[2]]


def gather_rows(values: torch.Tensor, starts: Int64Array, lengths: Int64Array) -> torch.Tensor:
    """The rows ``values[starts[i] : starts[i] + lengths[i]]``, one after the other, in fresh memory.

    Gradients flow through if values requires them.
    """
    if values.requires_grad or values.device.type != "cpu":
        pieces = [values[a : a + n] for a, n in zip(starts.tolist(), lengths.tolist(), strict=True)]
        return torch.cat(pieces) if pieces else values[:0]
    source = bits(values).contiguous()
    gathered = torch.empty((int(lengths.sum()), *values.shape[1:]), dtype=source.dtype)
    entry = math.prod(values.shape[1:])
    target, flat, end = gathered.numpy().reshape(-1), source.numpy().reshape(-1), 0
    for begin, size in zip((starts * entry).tolist(), (lengths * entry).tolist(), strict=True):
        target[end : end + size] = flat[begin : begin + size]
        end += size
    return gathered.view(values.dtype)
