"""Chooses the implementation and the number of threads."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final, Literal

import numpy as np

from dataplane_client._common.arrays import ByteArray, Int64Array
from dataplane_client._values.row_kernels._copies import CheckedCopies, RowCopy, check_copies
from dataplane_client._values.row_kernels._native import copy_rows_in_c, is_compiled
from dataplane_client._values.row_kernels._plain import copy_rows_in_numpy, hash_rows_in_python

kernel_name: Final[Literal["c", "numpy"]] = "c" if is_compiled else "numpy"

_MOST_THREADS: Final = 8  # a few cores fill the memory's bandwidth
_BYTES_PER_THREAD: Final = 4 << 20  # starting and joining a thread costs as much as copying 1 MiB within the caches


def copy_rows(copies: Sequence[RowCopy], threads: int | None = None) -> None:
    """Copy all rows of all copies, and fill behind them. Returns when all is written.

    threads: the most that copy at once, including the calling one; None for default_threads(). Fewer are used if there
    is less than about 4 MiB for each. Without a compiled kernel only the calling thread copies. A compiled
    kernel releases the GIL.

    Raises ValueError or TypeError, naming copy, row and rule, before anything is written.
    """
    checked = check_copies(copies)
    if not checked.total:
        return
    if not is_compiled:
        copy_rows_in_numpy(checked)
        return
    copy_rows_in_c(checked, _threads_for(checked, threads))


def copy_and_hash_rows(copies: Sequence[RowCopy]) -> Int64Array:
    """As copy_rows. Returns the XXH3-64 of each row, without what is filled behind it, in the order of the copies; 0
    for a row without bytes.
    """
    checked = check_copies(copies)
    hashes = np.zeros(checked.table.shape[1], np.int64)
    if not is_compiled:
        hash_rows_in_python(checked, hashes)
        copy_rows_in_numpy(checked)
    elif checked.total:
        copy_rows_in_c(checked, _threads_for(checked), hashes)
    return hashes


def hash_rows(sources: Sequence[tuple[ByteArray, Int64Array, Int64Array]]) -> Int64Array:
    """The XXH3-64 of rows where they are, as copy_and_hash_rows returns it. sources: arrays, and where their rows begin
    and how many bytes each has.
    """
    rows = [RowCopy(source[:0], starts, source, starts, sizes) for source, starts, sizes in sources]
    checked = check_copies(rows, only_read=True)
    hashes = np.zeros(checked.table.shape[1], np.int64)
    if not is_compiled:
        hash_rows_in_python(checked, hashes)
    elif checked.total:
        copy_rows_in_c(checked, _threads_for(checked), hashes, only_hash=True)
    return hashes


def _threads_for(checked: CheckedCopies, most: int | None = None) -> int:
    return min(default_threads() if most is None else most, 1 + checked.total // _BYTES_PER_THREAD)


def default_threads() -> int:
    """The CPUs that this process may run on, at most 8."""
    return min(len(os.sched_getaffinity(0)), _MOST_THREADS)
