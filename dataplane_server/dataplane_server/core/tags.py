"""Tags of rows, kept once where they repeat: the rows of a step mostly carry the same few.

A dict of one tag takes 200 bytes and its key 60 more; equal tags take nothing beyond the first. Floats are compared by
nobody (0.0 equals -0.0, and rewards differ anyhow), so tags with floats share their keys only. What is remembered for
sharing is bounded, and forgotten as a whole when it is full.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataplane_server.core.rows import Tags

_MOST_KEPT = 256
_MOST_TAGS = 8


class TagPool:
    """Tags and keys seen of late."""

    def __init__(self) -> None:
        self._kept: dict[tuple[object, ...], Tags] = {}
        self._keys: dict[str, str] = {}

    def own(self, tags: Tags) -> Tags:
        """A dict with these tags that is ours: the caller's is not kept, and nobody may change this one."""
        types = tuple(map(type, tags.values()))
        if float in types or len(types) > _MOST_TAGS:
            return self._copied(tags)
        key = (types, *tags.items())  # with types: 1 equals True
        kept = self._kept.get(key)
        if kept is None:
            if len(self._kept) >= _MOST_KEPT:
                self._kept.clear()
            kept = self._kept[key] = self._copied(tags)
        return kept

    def _copied(self, tags: Tags) -> Tags:
        if len(self._keys) >= _MOST_KEPT:
            self._keys.clear()
        return {self._keys.setdefault(key, key): value for key, value in tags.items()}
