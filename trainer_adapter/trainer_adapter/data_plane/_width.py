"""One width for all data-parallel ranks, if the driver has not chosen one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.distributed import ProcessGroup

from trainer_adapter._exchange import extremes_over

_UNREADABLE = 1 << 62
"""Wider than every row: sent by a rank that could not read its rows."""


def agree_on_longest(longest: int, dp_group: ProcessGroup | None, device: torch.device) -> int:
    """Tokens of the longest row of all ranks of the group (None: of this rank); one all-reduce.

    RuntimeError if another rank could not read its rows.
    """
    if dp_group is None:
        return longest
    agreed = extremes_over(longest, dp_group, device)[1]
    if agreed == _UNREADABLE:
        raise RuntimeError("another data-parallel rank could not read its rows; see that rank's error")
    return agreed


def report_unreadable(dp_group: ProcessGroup | None, device: torch.device) -> None:
    """Take part in agree_on_longest as a rank that could not read its rows."""
    if dp_group is not None:
        extremes_over(_UNREADABLE, dp_group, device)


def longest_row(columns: Mapping[str, Any]) -> int:
    """Tokens of the longest row of a batch's ragged columns; 0 without any."""
    ragged: list[Any] = [value for value in columns.values() if isinstance(value, torch.Tensor) and value.is_nested]
    return max((int(value.offsets().diff().max()) for value in ragged if value.shape[0]), default=0)
