"""A pool of equal tags: the rows of a step mostly have the same few tags, which are stored once.

A dict of one tag takes 200 bytes, its key 60 more; equal tags take nothing beyond the first. Tags with floats share
only their keys: 0.0 equals -0.0, and rewards differ anyway. The pool is bounded, and cleared when it is full.
"""

from __future__ import annotations

from dataplane_server.core.calls.values import Tags

_MOST_KEPT = 256
_MOST_TAGS = 8


class TagPool:
    """Recently seen tags and keys."""

    def __init__(self) -> None:
        self._kept: dict[tuple[object, ...], Tags] = {}
        self._keys: dict[str, str] = {}

    def own(self, tags: Tags) -> Tags:
        """A shared dict with these tags. The caller must not change it."""
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
