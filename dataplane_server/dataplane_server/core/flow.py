"""What has flowed through a partition, and through each of its tasks: counts that only grow."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class PartitionFlow:
    """Calls that took effect, the rows they named, and the bytes of values they carried."""

    puts: int = 0
    put_rows: int = 0
    put_bytes: int = 0
    reads: int = 0
    read_rows: int = 0
    read_bytes: int = 0
    clears: int = 0

    def put(self, rows: int, size_bytes: int) -> None:
        self.puts += 1
        self.put_rows += rows
        self.put_bytes += size_bytes

    def read(self, rows: int, size_bytes: int) -> None:
        self.reads += 1
        self.read_rows += rows
        self.read_bytes += size_bytes


@dataclass(slots=True)
class TaskFlow:
    """Claims granted, for how many seconds they waited together, claims committed, bytes of their columns."""

    claims: int = 0
    claim_wait_s: float = 0.0
    commits: int = 0
    commit_bytes: int = 0
