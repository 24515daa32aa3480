"""Chooses the implementation and the number of threads."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final, Literal

from dataplane_client._values.row_kernels._copies import RowCopy, check_copies
from dataplane_client._values.row_kernels._native import copy_rows_in_c, is_compiled
from dataplane_client._values.row_kernels._plain import copy_rows_in_numpy

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
    most = default_threads() if threads is None else threads
    copy_rows_in_c(checked, min(most, 1 + checked.total // _BYTES_PER_THREAD))


def default_threads() -> int:
    """The CPUs that this process may run on, at most 8."""
    return min(len(os.sched_getaffinity(0)), _MOST_THREADS)
