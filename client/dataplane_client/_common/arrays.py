"""Types of the arrays that modules of this package pass to one another, and integers as they travel."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

ByteArray = npt.NDArray[np.uint8]
Int64Array = npt.NDArray[np.int64]
ObjectArray = npt.NDArray[np.object_]


class EmptyRows(np.ndarray[Any, np.dtype[np.object_]]):
    """Rows that a caller gave as empty lists, all of them: objects, or values without entries. The field decides."""


def int64_bytes(values: Sequence[int] | Int64Array) -> bytes:
    return np.asarray(values, "<i8").tobytes()


def int64s(data: bytes) -> Int64Array:
    return np.frombuffer(data, "<i8").astype(np.int64, copy=False)


def as_ints(values: Iterable[Any], name: str) -> list[int]:
    """Row indices or lengths as Python ints. Raises TypeError for masks, whose bools would be used as rows 0 and 1."""
    given: object = values.tolist() if hasattr(values, "tolist") else values
    if isinstance(given, Iterable):
        ints = [each.tolist() if hasattr(each, "tolist") else each for each in given]
        if all(type(each) is int for each in ints):
            return ints
    raise TypeError(f"{name} must be a flat sequence of integers")


def generations_of(packed: bytes, n_rows: int) -> list[int] | None:
    """The generations of the rows of an answer; None if the answer does not carry them."""
    return int64s(packed).tolist() if packed or not n_rows else None
