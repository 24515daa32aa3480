"""A hash of the whole state of the core, for comparing two cores that were given the same calls.

The walk follows every attribute, so new state is covered without a line here. It leaves out what only queries fill
(`_CACHES`), and the cells of the history: hashes of strings, which differ from process to process.
"""

from __future__ import annotations

import enum
import hashlib
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import lru_cache
from types import NoneType
from typing import Any

import numpy as np

_CACHES = frozenset({"figures", "_cells"})
_SCALARS = (str, int, float, NoneType, bool, bytes)
_FLUSH = 4096  # pieces; joined, they are hashed by one call


def digest(*roots: object) -> str:
    """32 hexadecimal digits. Order counts in sequences and dicts, not in sets."""
    walk = _Walk()
    for root in roots:
        walk.add(root)
    return walk.hexdigest()


class _Walk:
    """Adds objects to a hash. An object with state that comes again is told by the number of its first occurrence;
    values (numbers, arrays, containers, frozen records) are told in full, whether or not they are shared.
    """

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)
        self._pieces: list[str] = []
        self._number_of: dict[int, int] = {}  # by id; all objects live as long as the walk

    def add(self, value: Any) -> None:
        kind = type(value)
        if kind in _SCALARS:  # most of them
            self._pieces.append(f"{kind.__name__} {value!r}\n")
        else:
            (_WAYS.get(kind) or _way(kind))(self, value)

    def hexdigest(self) -> str:
        self._flush()
        return self._hash.hexdigest()

    def printed(self, value: object) -> None:
        self._tell(repr(value))

    def array(self, value: np.ndarray[Any, Any]) -> None:
        self._tell(f"array {value.dtype} {value.shape}")
        self._flush()
        self._hash.update(value.tobytes())

    def mapping(self, value: Mapping[Any, Any]) -> None:
        self._tell(f"{type(value).__name__} {len(value)}")
        for key, part in value.items():
            self.add(key)
            self.add(part)

    def unordered(self, value: Iterable[Any]) -> None:
        parts = sorted(value)
        self._tell(f"{type(value).__name__} {len(parts)}")
        for part in parts:
            self.add(part)

    def sequence(self, value: Collection[Any]) -> None:
        self._tell(f"{type(value).__name__} {len(value)}")
        for part in value:
            self.add(part)

    def stateful(self, value: object) -> None:
        if id(value) in self._number_of:
            self._tell(f"again {self._number_of[id(value)]}")
            return
        self._number_of[id(value)] = len(self._number_of)
        self.record(value)

    def record(self, value: object) -> None:
        names = _names(type(value).__mro__, *getattr(value, "__dict__", ()))
        self._tell(f"{type(value).__name__} {' '.join(names)}")
        for name in names:
            self.add(getattr(value, name))

    def _tell(self, text: str) -> None:
        self._pieces.append(text + "\n")
        if len(self._pieces) >= _FLUSH:
            self._flush()

    def _flush(self) -> None:
        self._hash.update("".join(self._pieces).encode())
        self._pieces.clear()


_WAYS: dict[type[Any], Callable[[_Walk, Any], None]] = {}
"""How objects of a type are hashed. Worked out once for each type, since a state has many thousand objects."""


def _way(kind: type[Any]) -> Callable[[_Walk, Any], None]:
    parameters = getattr(kind, "__dataclass_params__", None)
    chosen: Callable[[_Walk, Any], None]
    if issubclass(kind, (*_SCALARS, enum.Enum, np.generic)):
        chosen = _Walk.printed
    elif issubclass(kind, np.ndarray):
        chosen = _Walk.array
    elif issubclass(kind, Mapping):
        chosen = _Walk.mapping
    elif issubclass(kind, (set, frozenset)):
        chosen = _Walk.unordered
    elif issubclass(kind, (list, tuple, deque)):
        chosen = _Walk.sequence
    else:
        chosen = _Walk.record if parameters is not None and parameters.frozen else _Walk.stateful
    _WAYS[kind] = chosen
    return chosen


@lru_cache(4096)
def _names(kinds: tuple[type, ...], *more: str) -> tuple[str, ...]:
    slots = (name for kind in kinds for name in getattr(kind, "__slots__", ()))
    return tuple(sorted({*slots, *more} - _CACHES))
