"""Numbers of which most follow one another, such as the generations of rows that were put together, in little memory.

Thousands of answers are remembered for callers that repeat a call, each with a number for every row of the call. As an
array that takes 8 bytes a row; rows that were created by one put are one span, however many they are.
"""

from __future__ import annotations

import numpy as np

from dataplane_server.core.columns import Int64Array


class Spans:
    """The same numbers in the same order."""

    __slots__ = ("_lengths", "_starts")

    def __init__(self, numbers: Int64Array) -> None:
        begins = np.flatnonzero(np.diff(numbers) != 1) + 1
        first = np.concatenate([[0], begins]) if len(numbers) else begins
        self._starts = numbers[first]
        self._lengths = np.diff(first, append=len(numbers))

    def numbers(self) -> Int64Array:
        before = np.cumsum(self._lengths) - self._lengths
        numbers: Int64Array = np.arange(self._lengths.sum()) + np.repeat(self._starts - before, self._lengths)
        return numbers

    @property
    def size_bytes(self) -> int:
        """What the spans take."""
        return 16 * len(self._starts)
