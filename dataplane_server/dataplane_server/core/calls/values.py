"""Values that calls and answers are made of."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Literal, NamedTuple, overload

import numpy as np
import numpy.typing as npt

Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
Slots = npt.NDArray[np.int64]
"""Rows of one partition, by slot; see `rows.row_table`."""
Epochs = npt.NDArray[np.uint32]
"""Reuse counters of slots, beside the slots that they belong to."""
Tags = dict[str, str | int | float | bool | None]
Balance = Literal["rows", "tokens", "groups"]
"""What the shards of a step have about equally much of."""
BatchUnit = Literal["rows", "groups"]
"""What the sizes of a claim count."""
DrawStrategy = Literal["uniform", "prioritized", "fifo", "lifo"]
"""How rows are drawn; see DrawStrategy in data_plane.proto."""


class Run(NamedTuple):
    """A contiguous piece of the arena."""

    offset: int
    size_bytes: int


class Runs(Sequence[Run]):
    """Runs as arrays of their offsets and sizes, since a read may have a quarter of a million. Equal to any sequence of
    the same runs.
    """

    __slots__ = ("offsets", "sizes")

    def __init__(self, offsets: Int64Array, sizes: Int64Array) -> None:
        self.offsets = offsets
        self.sizes = sizes

    @classmethod
    def of(cls, runs: Sequence[Run]) -> Runs:
        table = np.array(runs, np.int64).reshape(-1, 2)
        return cls(table[:, 0], table[:, 1])

    def __len__(self) -> int:
        return len(self.offsets)

    def __iter__(self) -> Iterator[Run]:
        pairs = zip(self.offsets.tolist(), self.sizes.tolist(), strict=True)
        return map(tuple.__new__, repeat(Run), pairs)  # as Run._make, without a Python call for each one

    @overload
    def __getitem__(self, at: int) -> Run: ...

    @overload
    def __getitem__(self, at: slice) -> Runs: ...

    def __getitem__(self, at: int | slice) -> Run | Runs:
        if isinstance(at, slice):
            return Runs(self.offsets[at], self.sizes[at])
        return Run(int(self.offsets[at]), int(self.sizes[at]))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and all(map(operator.eq, self, other))

    __hash__ = None  # type: ignore[assignment]  # arrays may change

    def __repr__(self) -> str:
        return f"Runs.of({list(self)})"


class Copy(NamedTuple):
    """Bytes of the arena to be copied to another place. The places do not overlap."""

    source: int
    target: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Definition:
    """What a partition holds, and for which tasks. max_deliveries: 0 for no limit. open: a call that names a field
    which is not declared declares it. clear_when_consumed: a row goes as soon as every task has consumed it. dtypes:
    the element type of fields ("object" for objects); others hold what is put first. digests: see `calls.digests`.
    """

    partition_id: str
    fields: tuple[str, ...]
    tasks: tuple[str, ...]
    num_samples: int = 0
    per_token_fields: frozenset[str] = frozenset()
    grpo_group_size: int | None = None
    enums: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    max_deliveries: int = 0
    open: bool = False
    clear_when_consumed: bool = False
    dtypes: Mapping[str, str] = field(default_factory=dict)
    digests: bool = False
