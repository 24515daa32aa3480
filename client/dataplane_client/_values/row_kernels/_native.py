"""The copy in compiled code: row_kernels.c, called with ctypes, which releases the GIL.

The library is a file beside this module, which the installation builds if it finds a C compiler. A library that is
missing, of another version or not loadable is not used.
"""

from __future__ import annotations

import ctypes
import struct
from pathlib import Path
from typing import Final

from dataplane_client._common.arrays import Int64Array
from dataplane_client._values.row_kernels._copies import CheckedCopies, RowCopy

_LIBRARY: Final = Path(__file__).with_name("_row_kernels.so")
_VERSION: Final = 2  # VERSION in row_kernels.c
_COPY: Final = struct.Struct("QQq16s")  # struct copy in row_kernels.c


def _load(path: Path) -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL(str(path))
        library.row_kernels_version.restype = ctypes.c_int32
        if library.row_kernels_version() != _VERSION:
            return None
    except (OSError, AttributeError):
        return None
    pointer, number, small = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32
    library.row_kernels_copy.argtypes = [pointer, pointer, number, number, small, pointer, small]
    library.row_kernels_copy.restype = ctypes.c_int32
    return library


_library: Final = _load(_LIBRARY)
is_compiled: Final = _library is not None


def copy_rows_in_c(
    checked: CheckedCopies, threads: int, hashes: Int64Array | None = None, *, only_hash: bool = False
) -> int:
    """Returns how many threads took part: fewer than `threads` if the system could not start them. hashes: a place for
    each row's; only_hash: write nothing else.

    Raises RuntimeError without a library.
    """
    if _library is None:
        raise RuntimeError(f"there is no usable {_LIBRARY.name}: install the package on a host with a C compiler")
    described = b"".join(_describe(copy, end) for copy, end in zip(checked.copies, checked.ends, strict=True))
    table = checked.table
    work = (described, table.ctypes.data, table.shape[1], checked.total, threads)
    took_part: int = _library.row_kernels_copy(*work, None if hashes is None else hashes.ctypes.data, only_hash)
    return took_part


def _describe(copy: RowCopy, end_row: int) -> bytes:
    pattern = copy.fill * (16 // len(copy.fill))
    return _COPY.pack(copy.target.ctypes.data, copy.source.ctypes.data, end_row, pattern)
