"""One width for all data-parallel ranks, if the driver has not chosen one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, cast

import torch
import torch.distributed
from torch.distributed import ProcessGroup

_UNREADABLE = 1 << 62
"""Wider than every row: sent by a rank that could not read its rows."""


class _JaggedTensor(Protocol):
    def offsets(self) -> torch.Tensor: ...


def agree_on_longest(longest: int, dp_group: ProcessGroup | None, device: torch.device) -> int:
    """Tokens of the longest row of all ranks of the group (None: of this rank); one all-reduce.

    RuntimeError if another rank could not read its rows.
    """
    if dp_group is None:
        return longest
    agreed = _largest(longest, dp_group, device)
    if agreed == _UNREADABLE:
        raise RuntimeError("another data-parallel rank could not read its rows; see that rank's error")
    return agreed


def report_unreadable(dp_group: ProcessGroup | None, device: torch.device) -> None:
    """Take part in agree_on_longest as a rank that could not read its rows."""
    if dp_group is not None:
        _largest(_UNREADABLE, dp_group, device)


def _largest(value: int, group: ProcessGroup, device: torch.device) -> int:
    largest = torch.tensor([value], device=device)
    torch.distributed.all_reduce(largest, op=torch.distributed.ReduceOp.MAX, group=group)
    return int(largest.item())


def longest_row(columns: Mapping[str, Any]) -> int:
    """Tokens of the longest row of a batch's ragged columns; 0 without any."""
    lengths = [
        int(cast("_JaggedTensor", value).offsets().diff().max().item())
        for value in columns.values()
        if isinstance(value, torch.Tensor) and value.is_nested and value.shape[0]
    ]
    return max(lengths, default=0)
