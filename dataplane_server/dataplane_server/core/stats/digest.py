"""A hash of the whole state of the core, for comparing two cores that were given the same calls.

The walk follows every attribute, so new state is covered without a line here. It leaves out what only queries fill
(`_CACHES`), and the cells of the history: hashes of strings, which differ from process to process.
"""

from __future__ import annotations

import enum
import hashlib
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

_CACHES = frozenset({"figures", "_cells"})
_SCALARS = (str, bytes, int, float, bool, type(None))


def digest(*roots: object) -> str:
    """32 hexadecimal digits. Order counts in sequences and dicts, not in sets."""
    walk = _Walk()
    for root in roots:
        walk.add(root)
    return walk.hash.hexdigest()


class _Walk:
    """Adds objects to a hash. An object with state that comes again is told by the number of its first occurrence;
    values (numbers, arrays, containers, frozen records) are told in full, whether or not they are shared.
    """

    def __init__(self) -> None:
        self.hash = hashlib.blake2b(digest_size=16)
        self._number_of: dict[int, int] = {}  # by id; all objects live as long as the walk

    def add(self, value: Any) -> None:
        if isinstance(value, _SCALARS):
            self._tell(f"{type(value).__name__} {value!r}")
        elif isinstance(value, (enum.Enum, np.generic)):
            self._tell(repr(value))
        elif isinstance(value, np.ndarray):
            self._tell(f"array {value.dtype} {value.shape}")
            self.hash.update(np.ascontiguousarray(value).tobytes())
        elif isinstance(value, Mapping):
            self._all(value, (part for item in value.items() for part in item), len(value))
        elif isinstance(value, (set, frozenset)):
            self._all(value, sorted(value), len(value))
        elif isinstance(value, (list, tuple, deque)):
            self._all(value, value, len(value))
        else:
            self._add_object(value)

    def _add_object(self, value: Any) -> None:
        parameters = getattr(type(value), "__dataclass_params__", None)
        if parameters is None or not parameters.frozen:
            if id(value) in self._number_of:
                self._tell(f"again {self._number_of[id(value)]}")
                return
            self._number_of[id(value)] = len(self._number_of)
        names = [name for name in _attributes(value) if name not in _CACHES]
        self._all(value, (part for name in names for part in (name, getattr(value, name))), len(names))

    def _all(self, value: object, parts: Iterable[object], count: int) -> None:
        self._tell(f"{type(value).__name__} {count}")
        for part in parts:
            self.add(part)

    def _tell(self, text: str) -> None:
        self.hash.update(text.encode())
        self.hash.update(b"\n")


def _attributes(value: object) -> list[str]:
    slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    return sorted({*slots, *getattr(value, "__dict__", ())})
