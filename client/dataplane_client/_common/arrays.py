"""Types of the arrays that modules of this package pass to one another."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

ByteArray = npt.NDArray[np.uint8]
Int64Array = npt.NDArray[np.int64]
ObjectArray = npt.NDArray[np.object_]


class EmptyRows(np.ndarray[Any, np.dtype[np.object_]]):
    """Rows that a caller gave as empty lists, all of them: objects, or values without entries. The field decides."""
