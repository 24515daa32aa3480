"""Numbers of one row, as callers and generators give them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from dataplane_client.errors import InvalidArgumentError


def number_array(where: str, value: Any, kinds: str, dtype: type[np.generic]) -> npt.NDArray[Any]:
    """Numbers of a list, array or tensor, on any device and of any element type, as an array of one dimension.

    kinds: of element types, as NumPy's dtype.kind. Raises InvalidArgumentError for anything else, and for numbers that
    are not finite or that dtype does not hold; floats are rounded to it.
    """
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = (value.float() if value.is_floating_point() else value).numpy()
    try:
        array = np.asarray(value)
    except ValueError:  # of lists that differ in length
        array = np.zeros((0, 0))
    if array.ndim != 1 or (array.size and array.dtype.kind not in kinds):
        wanted = "integers" if "f" not in kinds else "numbers"
        raise InvalidArgumentError(f"{where} must be a list of {wanted}, got {value!r:.80}")
    with np.errstate(over="ignore", invalid="ignore"):
        cast = array.astype(dtype)
    wrong = cast != array if np.issubdtype(dtype, np.integer) else ~np.isfinite(cast)
    if wrong.any():
        entry = int(wrong.argmax())
        raise InvalidArgumentError(f"{where}: entry {entry} is {array[entry]}; it must be a finite {np.dtype(dtype)}")
    return cast
