"""Measure packing and padding of rows by our kernel and by others, and the cost of fresh memory.

    python benchmarks/row_kernels.py [--rounds N]

Pack: the per-token fields of batch G (see batches.py) from padded arrays into one jagged buffer. Pad: from there into
one padded array for each field, writing every byte of the padding. The floor copies as many bytes as each of them
writes, on two threads, into warm memory. All take turns within each round. Numba takes part if it is installed.
"""

from __future__ import annotations

import argparse
import importlib
import mmap
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from rich.console import Console

from batches import Batch, G, build
from dataplane_client._values.row_kernels import ByteArray, RowCopy, copy_rows
from dataplane_client._values.row_kernels._copies import check_copies
from dataplane_client._values.row_kernels._plain import copy_rows_in_numpy
from dataplane_client.codec import pack_per_token_field
from floor import Floor
from machine import describe
from session import table
from timing import Round, Series, Steps, alternate, seconds, undisturbed

Int64Array = npt.NDArray[np.int64]
Allocate = Callable[[int], ByteArray]
Copy = Callable[[Sequence[RowCopy]], object]

_FLOOR: Final = "floor: as many bytes copied, 2 threads"
_HUGE: Final = getattr(mmap, "MADV_HUGEPAGE", None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=31)
    options = parser.parse_args()
    torch.set_num_threads(2)
    console = Console()
    console.print("  ".join(f"{name} {fact}" for name, fact in describe().items()))
    rows = Rows(build(G))
    with Floor(rows.jagged_bytes, rows.padded_bytes) as floor:
        measured = alternate({_FLOOR: lambda: _floor_round(floor), **_systems(rows)}, options.rounds, warmups=3)
    sizes = f"{rows.jagged_bytes / 1e6:.1f} MB jagged, {rows.padded_bytes / 1e6:.1f} MB padded"
    console.print(table(f"batch G, {sizes}: ms, median (min..max), times the floor", _HEADINGS, _lines(measured)))
    pages = alternate(
        {name: _writing(memory, rows.padded_bytes) for name, memory in _memories(rows.padded_bytes).items()},
        11,
        warmups=1,
    )
    lines = [[name, _ms(steps["write"])] for name, steps in pages.items()]
    console.print(table(f"writing {rows.padded_bytes / 1e6:.1f} MB once, 1 thread: ms", ("memory", "time"), lines))


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


def _row_starts(column: npt.NDArray[Any]) -> Int64Array:
    return np.arange(len(column), dtype=np.int64) * int(column[0].nbytes)


# -- systems -----------------------------------------------------------------------------------------------------------


def _systems(rows: Rows) -> dict[str, Round]:
    systems = {
        "C, 2 threads, warm": _copying(rows, lambda copies: copy_rows(copies, 2)),
        "C, 1 thread, warm": _copying(rows, lambda copies: copy_rows(copies, 1)),
        "C, 2 threads, fresh huge pages": _copying(rows, lambda copies: copy_rows(copies, 2), _fresh_huge),
        "C, 2 threads, fresh pages": _copying(rows, lambda copies: copy_rows(copies, 2), _fresh),
        "NumPy loop, warm": _copying(rows, lambda copies: copy_rows_in_numpy(check_copies(copies))),
        "torch (as_nested_tensor, to_padded_tensor), 2 threads": _torch_round(rows),
    }
    in_numba = _numba_copy()
    if in_numba is not None:
        systems["Numba prange, 2 threads, warm"] = _copying(rows, in_numba)
    return systems


def _copying(rows: Rows, copy: Copy, fresh: Allocate | None = None) -> Round:
    """Packs and pads, either into new memory, allocated within the measured time, or into the same memory each time."""
    sizes = [column.nbytes for column in rows.padded]
    allocate = fresh or _written
    jagged, padded = allocate(rows.jagged_bytes), [allocate(size) for size in sizes]

    def pack() -> None:
        copy(rows.packs(fresh(rows.jagged_bytes) if fresh else jagged))

    def pad() -> None:
        copy(rows.pads([fresh(size) for size in sizes] if fresh else padded))

    return lambda: _timed(pack, pad)


def _torch_round(rows: Rows) -> Round:
    padded = [torch.from_numpy(column) for column in rows.padded]
    nested = [pack_per_token_field(column, torch.from_numpy(rows.lengths)) for column in padded]
    lengths = rows.lengths.tolist()

    def pack() -> list[torch.Tensor]:
        return [torch.nested.as_nested_tensor(_cut(column, lengths), layout=torch.jagged) for column in padded]

    def pad() -> list[torch.Tensor]:
        return [torch.nested.to_padded_tensor(each, 0) for each in nested]

    return lambda: _timed(pack, pad)


def _cut(column: torch.Tensor, lengths: Sequence[int]) -> list[torch.Tensor]:
    return [row[:length] for row, length in zip(column, lengths, strict=True)]


def _numba_copy() -> Copy | None:
    try:
        numba: Any = importlib.import_module("numba")
    except ImportError:
        return None
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


def _floor_round(floor: Floor) -> Mapping[str, float]:
    measured = floor()
    return {"pack": measured["put"], "pad": measured["read"]}


def _timed(pack: Callable[[], object], pad: Callable[[], object]) -> Mapping[str, float]:
    with undisturbed():
        return {"pack": seconds(pack)[0], "pad": seconds(pad)[0]}


# -- memory ------------------------------------------------------------------------------------------------------------


def _memories(size: int) -> dict[str, Allocate]:
    warm = _written(size)
    return {
        "warm": lambda _: warm,
        "fresh huge pages": _fresh_huge,
        "fresh pages": _fresh,
        "torch.empty": lambda size: torch.empty(size, dtype=torch.uint8).numpy(),
        "numpy.empty": lambda size: np.empty(size, np.uint8),
    }


def _written(size: int) -> ByteArray:
    return np.ones(size, np.uint8)


def _fresh(size: int) -> ByteArray:
    return np.frombuffer(_mapping(size), np.uint8)


def _fresh_huge(size: int) -> ByteArray:
    mapping = _mapping(size)
    if _HUGE is not None:
        mapping.madvise(_HUGE)
    return np.frombuffer(mapping, np.uint8)


def _mapping(size: int) -> mmap.mmap:
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def _writing(allocate: Allocate, size: int) -> Round:
    def one_round() -> Mapping[str, float]:
        with undisturbed():
            return {"write": seconds(lambda: allocate(size).fill(1))[0]}

    return one_round


# -- figures -----------------------------------------------------------------------------------------------------------

_HEADINGS: Final = ("how", "pack", "x", "pad", "x")


def _lines(measured: Mapping[str, Steps]) -> list[list[str]]:
    floor = measured[_FLOOR]
    return [
        [name, *(cell for step in ("pack", "pad") for cell in (_ms(steps[step]), _times(steps[step], floor[step])))]
        for name, steps in measured.items()
    ]


def _ms(series: Series) -> str:
    return f"{series.median * 1e3:.2f} ({series.low * 1e3:.2f}..{series.high * 1e3:.2f})"


def _times(series: Series, floor: Series) -> str:
    return f"{series.over(floor).median:.2f}"


if __name__ == "__main__":
    main()
