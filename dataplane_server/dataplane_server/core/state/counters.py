"""What a partition counts of its calls."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class PartitionCounters:
    """Calls that took effect, the rows they named, and the bytes of values they carried. deduplicated_bytes: those that
    were not kept a second time. groups: that have ended; partial ones without rows that failed or were late.
    """

    puts: int = 0
    put_rows: int = 0
    put_bytes: int = 0
    deduplicated_bytes: int = 0
    reads: int = 0
    read_rows: int = 0
    read_bytes: int = 0
    clears: int = 0
    groups_committed: int = 0
    groups_partial: int = 0
    groups_aborted: int = 0
    groups_late: int = 0
