"""Row operations on torch.jagged nested tensors of shape (N, ragged, *trailing).

Rows are cut out of the values buffer by offset, because indexing a nested tensor unbinds all rows for each row. New
nested tensors record their shortest and longest row; without them torch pads to the total number of tokens. Nested
tensors can be added or compared only if they hold the same offsets object. So columns that shared offsets share the new
ones, too: one object of a class below is used for all columns of a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Protocol, cast

import torch


class _JaggedTensor(Protocol):
    def values(self) -> torch.Tensor: ...
    def offsets(self) -> torch.Tensor: ...
    def lengths(self) -> torch.Tensor | None: ...


def _parts(key: str, nested: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Values and offsets of a jagged tensor without holes that is ragged in dim 1; TypeError for other nested ones."""
    # Sizes are annotated as int, but that of the ragged dimension is symbolic.
    dim_1: object = nested.shape[1] if nested.layout == torch.jagged else None
    if isinstance(dim_1, torch.SymInt):
        jagged = cast("_JaggedTensor", nested)
        if jagged.lengths() is None:
            return jagged.values(), jagged.offsets()
    raise TypeError(
        f"nested tensor {key!r} must have layout torch.jagged, be ragged in dim 1 and have no holes between its rows"
    )


def _build(values: torch.Tensor, offsets: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
    return torch.nested.nested_tensor_from_jagged(
        values, offsets, min_seqlen=min(lengths, default=0), max_seqlen=max(lengths, default=0)
    )


def _offsets_of(lengths: Sequence[int], like: torch.Tensor) -> torch.Tensor:
    ends = torch.tensor([0, *lengths], dtype=like.dtype).cumsum(0, dtype=like.dtype)
    return ends.to(like.device)


class JaggedSlicer:
    """Cuts rows [start, end) out of jagged columns; their values are views."""

    def __init__(self, start: int, end: int) -> None:
        self._start, self._end = start, end
        self._sliced: dict[int, tuple[torch.Tensor, list[int]]] = {}  # by id() of the source's offsets

    def __call__(self, key: str, nested: torch.Tensor) -> torch.Tensor:
        values, offsets = _parts(key, nested)
        if id(offsets) not in self._sliced:
            kept = offsets[self._start : self._end + 1]
            self._sliced[id(offsets)] = (kept - kept[0], kept.tolist())
        new_offsets, bounds = self._sliced[id(offsets)]
        lengths = [b - a for a, b in pairwise(bounds)]
        return _build(values[bounds[0] : bounds[-1]], new_offsets, lengths)


class JaggedPicker:
    """Takes the given rows, in that order, from jagged columns; their values are copies."""

    def __init__(self, rows: Sequence[int]) -> None:
        self._rows = rows
        self._picked: dict[int, tuple[torch.Tensor, list[tuple[int, int]]]] = {}  # by id() of the source's offsets

    def __call__(self, key: str, nested: torch.Tensor) -> torch.Tensor:
        values, offsets = _parts(key, nested)
        if id(offsets) not in self._picked:
            bounds = offsets.tolist()
            spans = list(pairwise(bounds))
            picked = [spans[row] for row in self._rows]
            self._picked[id(offsets)] = (_offsets_of([b - a for a, b in picked], offsets), picked)
        new_offsets, picked = self._picked[id(offsets)]
        new_values = torch.cat([values[:0], *(values[a:b] for a, b in picked)])
        return _build(new_values, new_offsets, [b - a for a, b in picked])


class JaggedConcat:
    """Joins the rows of several jagged columns of one name; their values are copies."""

    def __init__(self) -> None:
        self._joined: dict[tuple[int, ...], tuple[torch.Tensor, list[int]]] = {}  # by id() of the sources' offsets

    def __call__(self, key: str, columns: Sequence[torch.Tensor]) -> torch.Tensor:
        parts = [_parts(key, nested) for nested in columns]
        sources = tuple(id(offsets) for _, offsets in parts)
        if sources not in self._joined:
            lengths = [length for _, offsets in parts for length in offsets.diff().tolist()]
            self._joined[sources] = (_offsets_of(lengths, parts[0][1]), lengths)
        new_offsets, lengths = self._joined[sources]
        return _build(torch.cat([values for values, _ in parts]), new_offsets, lengths)
