"""The copy as a loop of NumPy slices, on the calling thread, for installations without a compiled kernel."""

from __future__ import annotations

from typing import Final

import numpy as np
from xxhash import xxh3_64_intdigest

from dataplane_client._common.arrays import Int64Array
from dataplane_client._values.row_kernels._copies import CheckedCopies

_ELEMENTS: Final = {1: "u1", 2: "u2", 4: "u4", 8: "u8", 16: "V16"}


def copy_rows_in_numpy(checked: CheckedCopies) -> None:
    rows = checked.table.T.tolist()
    begin = 0
    for copy, end in zip(checked.copies, checked.ends, strict=True):
        element = np.frombuffer(copy.fill, _ELEMENTS[len(copy.fill)])
        for target_start, source_start, size, fill in rows[begin:end]:
            row_end = target_start + size
            copy.target[target_start:row_end] = copy.source[source_start : source_start + size]
            if fill:
                copy.target[row_end : row_end + fill].view(element.dtype)[:] = element
        begin = end


def hash_rows_in_python(checked: CheckedCopies, hashes: Int64Array) -> None:
    """Write the hash of each row that has bytes."""
    rows, found = checked.table.T.tolist(), hashes.view(np.uint64)
    begin = 0
    for copy, end in zip(checked.copies, checked.ends, strict=True):
        for row in range(begin, end):
            _, start, size, _ = rows[row]
            if size:
                found[row] = xxh3_64_intdigest(copy.source[start : start + size].data)
        begin = end
