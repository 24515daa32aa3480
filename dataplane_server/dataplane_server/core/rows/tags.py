"""A pool of equal tags: the rows of a step mostly have the same few tags, which are stored once.

A dict of one tag takes 200 bytes, its key 60 more; equal tags take nothing beyond the first, and live as long as rows
have them. Tags with floats share only their keys: 0.0 equals -0.0, and rewards differ anyway. All sizes are estimates
from above, see `rows.bookkeeping`.
"""

from __future__ import annotations

from dataplane_server.core.calls.values import Tags
from dataplane_server.core.rows.bookkeeping import text_bytes

_MOST_KEYS = 4096
_MOST_TAGS = 8
_DICT_BYTES = 240
_TAG_BYTES = 84  # its place in the dict, and a number
_TEXT_BYTES = 56
_POOLED_BYTES = 400


class PooledTags(dict[str, "str | int | float | bool | None"]):
    """Tags that `rows` rows have. key: in the pool. size_bytes: together."""

    __slots__ = ("key", "rows", "size_bytes")
    key: tuple[object, ...]
    rows: int
    size_bytes: int


class TagPool:
    """Tags of the rows of one partition. size_bytes: of what rows share."""

    def __init__(self) -> None:
        self.size_bytes = 0
        self._pooled: dict[tuple[object, ...], PooledTags] = {}
        self._keys: dict[str, str] = {}

    def own(self, tags: Tags) -> tuple[Tags, int]:
        """Tags for one more row, which must not be changed, and the bytes that they take for this row alone."""
        types = tuple(map(type, tags.values()))
        if float in types or len(types) > _MOST_TAGS:
            return self._copied(tags)
        key = (types, *tags.items())  # with types: 1 equals True
        pooled = self._pooled.get(key)
        if pooled is None:
            copied, size = self._copied(tags)
            pooled = self._pooled[key] = PooledTags(copied)
            pooled.key, pooled.rows, pooled.size_bytes = key, 0, _POOLED_BYTES + size
            self.size_bytes += pooled.size_bytes
        pooled.rows += 1
        return pooled, 0

    def release(self, tags: Tags) -> None:
        """A row no longer has these tags."""
        if isinstance(tags, PooledTags):
            tags.rows -= 1
            if not tags.rows:
                del self._pooled[tags.key]
                self.size_bytes -= tags.size_bytes

    def _copied(self, tags: Tags) -> tuple[Tags, int]:
        size = _DICT_BYTES + _TAG_BYTES * len(tags)
        copied: Tags = {}
        for key, value in tags.items():
            shared = self._keys.get(key) or self._new_key(key)
            if shared is None:
                size += _TEXT_BYTES + text_bytes(key)
            if isinstance(value, str):
                size += _TEXT_BYTES + text_bytes(value)
            copied[shared or key] = value
        return copied, size

    def _new_key(self, key: str) -> str | None:
        """Keep a key for all rows; None if there are too many."""
        if len(self._keys) >= _MOST_KEYS:
            return None
        self.size_bytes += _POOLED_BYTES + text_bytes(key)
        self._keys[key] = key
        return key
