"""State made of numbers, strings, lists and dictionaries, in a file that runs no code when it is read (MessagePack)."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import msgpack


def write_plain(path: Path, state: Any) -> None:
    """Raises TypeError for a value of another kind, a tensor or a function say."""
    path.write_bytes(msgpack.packb(state))


def read_plain(path: Path, like: Any) -> Any:
    """The state in the file. MessagePack has one kind of list and of dictionary; `like`, a state of the same structure,
    tells which were tuples and counters.
    """
    return _retyped(msgpack.unpackb(path.read_bytes(), strict_map_key=False), like)


def _retyped(value: Any, like: Any) -> Any:
    if isinstance(value, dict) and isinstance(like, dict):
        items = {key: _retyped(item, like.get(key)) for key, item in value.items()}
        return Counter(items) if isinstance(like, Counter) else items
    if isinstance(value, list) and isinstance(like, list | tuple) and len(value) == len(like):
        items_ = [_retyped(item, old) for item, old in zip(value, like, strict=True)]
        return tuple(items_) if isinstance(like, tuple) else items_
    return value
