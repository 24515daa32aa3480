"""What partitions and tasks have counted in the last minute."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class RecentFlow:
    """What a partition has counted in the last period_s seconds: at most a minute, less after a start of the server and
    after registration. removed_rows: by reason.
    """

    period_s: float
    rows_put: int
    removed_rows: Mapping[str, int]
    written_bytes: int
    read_rows: int
    read_bytes: int


@dataclass(frozen=True)
class RecentTask:
    """What a task has counted in the last period_s seconds; see `TaskStatus` for ended_deliveries and state_seconds."""

    period_s: float
    claims: int
    delivered_rows: int
    consumed_rows: int
    ended_deliveries: Mapping[str, int]
    state_seconds: Mapping[str, float]
