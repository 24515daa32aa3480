"""Packing and padding of rows by our kernel and by others, and the cost of fresh memory.

Pack: the per-token fields of batch G (see batches.py) from padded arrays into one jagged buffer. Pad: from there into
one padded array for each field, writing every byte of the padding. The floor copies as many bytes as each of them
writes, on two threads, into warm memory. All take turns within each round. Numba takes part if it is installed.
"""

from __future__ import annotations

import contextlib
import importlib
import mmap
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from batches import Batch, G, build
from dataplane_client._common.arrays import ByteArray
from dataplane_client._values.row_kernels import RowCopy, copy_rows
from dataplane_client._values.row_kernels._copies import check_copies
from dataplane_client._values.row_kernels._plain import copy_rows_in_numpy
from dataplane_client.codec import pack_per_token_field
from floor import Floor
from report import Session, compare
from timing import Round, alternate, timed

Allocate = Callable[[int], ByteArray]
Copy = Callable[[Sequence[RowCopy]], object]

_HUGE: Final = getattr(mmap, "MADV_HUGEPAGE", None)


def measure(session: Session) -> None:
    console, rows, rounds = session.console, Rows(build(G)), session.rounds(31)
    with Floor(rows.jagged_bytes, rows.padded_bytes, names=("pack", "pad")) as floor:
        measured = alternate({"floor": floor, **systems(rows)}, rounds, warmups=3)
    size = rows.padded_bytes
    compare(console, f"batch G: {rows.jagged_bytes / 1e6:.1f} MB jagged, {size / 1e6:.1f} MB padded", measured)
    pages = {name: partial(write, allocate, size) for name, allocate in memories(size).items()}
    compare(console, f"writing {size / 1e6:.1f} MB once, 1 thread", alternate(pages, rounds // 3 + 1, 1))


class Rows:
    """The per-token fields of a batch, padded and jagged, as bytes."""

    def __init__(self, batch: Batch) -> None:
        assert batch.lengths is not None
        self.lengths = batch.lengths
        self.padded = [batch.columns[name] for name in batch.per_token]
        self.padded_bytes = sum(column.nbytes for column in self.padded)
        self.jagged_bytes = sum(int(batch.lengths.sum()) * column.itemsize for column in self.padded)
        self.jagged = np.ones(self.jagged_bytes, np.uint8)
        copy_rows(self.packs(self.jagged))

    def packs(self, jagged: ByteArray) -> list[RowCopy]:
        copies, begin = [], 0
        for column in self.padded:
            sizes = self.lengths * column.itemsize
            jagged_starts = begin + np.cumsum(sizes) - sizes
            begin += int(sizes.sum())
            copies.append(RowCopy(jagged, jagged_starts, _bytes_of(column), _row_starts(column), sizes))
        return copies

    def pads(self, padded: Sequence[ByteArray]) -> list[RowCopy]:
        copies = []
        for pack, column, target in zip(self.packs(self.jagged), self.padded, padded, strict=True):
            fills = column[0].nbytes - pack.sizes
            fill = bytes(column.itemsize)
            copies.append(RowCopy(target, pack.source_starts, self.jagged, pack.target_starts, pack.sizes, fills, fill))
        return copies


def _bytes_of(column: npt.NDArray[Any]) -> ByteArray:
    return column.reshape(-1).view(np.uint8)


def _row_starts(column: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    return np.arange(len(column), dtype=np.int64) * int(column[0].nbytes)


# -- systems -----------------------------------------------------------------------------------------------------------


def systems(rows: Rows) -> dict[str, Round]:
    both = partial(copy_rows, threads=2)
    found = {
        "C, 2 threads, warm": copying(rows, both),
        "C, 1 thread, warm": copying(rows, partial(copy_rows, threads=1)),
        "C, 2 threads, fresh huge pages": copying(rows, both, fresh_huge),
        "C, 2 threads, fresh pages": copying(rows, both, fresh),
        "NumPy loop, warm": copying(rows, lambda copies: copy_rows_in_numpy(check_copies(copies))),
        "torch (as_nested_tensor, to_padded_tensor), 2 threads": in_torch(rows),
    }
    with contextlib.suppress(ImportError):
        found["Numba prange, 2 threads, warm"] = copying(rows, in_numba(importlib.import_module("numba")))
    return found


def copying(rows: Rows, copy: Copy, new: Allocate | None = None) -> Round:
    """Packs and pads, either into new memory, allocated within the measured time, or into the same memory each time."""
    sizes = [column.nbytes for column in rows.padded]
    jagged, padded = written(rows.jagged_bytes), [written(size) for size in sizes]
    return lambda: timed(
        pack=lambda: copy(rows.packs(new(rows.jagged_bytes) if new else jagged)),
        pad=lambda: copy(rows.pads([new(size) for size in sizes] if new else padded)),
    )


def in_torch(rows: Rows) -> Round:
    padded = [torch.from_numpy(column) for column in rows.padded]
    nested = [pack_per_token_field(column, torch.from_numpy(rows.lengths)) for column in padded]
    lengths = rows.lengths.tolist()

    def pack(column: torch.Tensor) -> torch.Tensor:
        cut = [row[:length] for row, length in zip(column, lengths, strict=True)]
        return torch.nested.as_nested_tensor(cut, layout=torch.jagged)

    return lambda: timed(
        pack=lambda: [pack(column) for column in padded],
        pad=lambda: [torch.nested.to_padded_tensor(each, 0) for each in nested],
    )


def in_numba(numba: Any) -> Copy:
    numba.set_num_threads(2)

    def rows(target, target_starts, source, source_starts, sizes, fills):  # type: ignore[no-untyped-def]
        for i in numba.prange(len(sizes)):
            begin, size = target_starts[i], sizes[i]
            target[begin : begin + size] = source[source_starts[i] : source_starts[i] + size]
            target[begin + size : begin + size + fills[i]] = 0

    compiled = numba.njit(parallel=True, nogil=True, cache=False)(rows)

    def copy(copies: Sequence[RowCopy]) -> None:
        for each in copies:
            fills = np.zeros_like(each.sizes) if each.fills is None else each.fills
            compiled(each.target, each.target_starts, each.source, each.source_starts, each.sizes, fills)

    return copy


# -- memory ------------------------------------------------------------------------------------------------------------


def memories(size: int) -> dict[str, Allocate]:
    warm = written(size)
    return {
        "warm": lambda _: warm,
        "fresh huge pages": fresh_huge,
        "fresh pages": fresh,
        "torch.empty": lambda size: torch.empty(size, dtype=torch.uint8).numpy(),
        "numpy.empty": lambda size: np.empty(size, np.uint8),
    }


def written(size: int) -> ByteArray:
    return np.ones(size, np.uint8)


def fresh(size: int, advice: int | None = None) -> ByteArray:
    mapping = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if advice is not None:
        mapping.madvise(advice)
    return np.frombuffer(mapping, np.uint8)


def fresh_huge(size: int) -> ByteArray:
    return fresh(size, _HUGE)


def write(allocate: Allocate, size: int) -> Mapping[str, float]:
    return timed(write=lambda: allocate(size).fill(1))
