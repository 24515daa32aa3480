"""The floor: the jagged bytes of a batch copied once, then its padded bytes copied once.

No system can move padded tensors from one process to another through shared memory with less work. Two threads copy
into warm buffers; a reader that returns fresh tensors does not have these.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from timing import timed


class Floor:
    """Rounds of copying only. A context manager, because it owns a thread. names: of the two steps."""

    def __init__(self, jagged_bytes: int, padded_bytes: int, names: tuple[str, str] = ("put", "read")) -> None:
        self._sizes = dict(zip(names, (jagged_bytes, padded_bytes), strict=True))
        self._source = np.ones(padded_bytes, np.uint8)
        self._target = np.ones(padded_bytes, np.uint8)
        self._other = ThreadPoolExecutor(1)

    def __enter__(self) -> Floor:
        return self

    def __exit__(self, *_: object) -> None:
        self._other.shutdown()

    def __call__(self) -> Mapping[str, float]:
        return timed(**{name: lambda size=size: self._copy(size) for name, size in self._sizes.items()})

    def _copy(self, size: int) -> None:
        half = size // 2
        second = self._other.submit(np.copyto, self._target[half:size], self._source[half:size])
        np.copyto(self._target[:half], self._source[:half])
        second.result()
