"""Types of the arrays that modules of this package pass to one another."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

ByteArray = npt.NDArray[np.uint8]
Int64Array = npt.NDArray[np.int64]
ObjectArray = npt.NDArray[np.object_]
