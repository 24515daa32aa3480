"""Values that calls and answers are made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

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


class Copy(NamedTuple):
    """Bytes of the arena to be copied to another place. The places do not overlap."""

    source: int
    target: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Definition:
    """What a partition holds, and for which tasks. max_deliveries: 0 for no limit. open: a call that names a field
    which is not declared declares it. clear_when_consumed: a row goes as soon as every task has consumed it.
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
