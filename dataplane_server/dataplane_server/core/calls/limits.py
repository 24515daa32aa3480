"""All bounds of the core. A call that exceeds one is refused, and the refusal names the bound; no call is trimmed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one server. Sizes are in bytes, times in seconds."""

    memory_bytes: int = 4 << 30
    """Budget for the bytes of values: resident rows, puts under way, cleared rows that a reader still pins."""
    max_rows: int = 4_000_000
    """Resident rows of all partitions."""
    max_partitions: int = 1024
    max_fields: int = 64
    """Fields of a partition; at most 64, since a row's produced fields are one 64-bit word."""
    max_tasks: int = 64
    max_rows_per_call: int = 65_536
    max_id_bytes: int = 256
    """Length in UTF-8 of a partition id, sample id, field or task name."""
    max_dimensions: int = 8
    max_tags_per_row: int = 64
    max_tag_bytes: int = 1024
    """Length in UTF-8 of one tag's key, or of its value when that is a str."""
    max_waiting_claims: int = 10_000
    max_waiting_puts: int = 1_000
    max_sessions: int = 10_000
    min_grace_s: float = 0.1
    max_grace_s: float = 3600.0
    default_grace_s: float = 10.0
    """A session expires after this long without a heartbeat, unless it asks for another grace."""
    max_group_rows: int = 4096
    max_delay_s: float = 86_400.0
    """Longest delay that a release may ask for."""
    max_reason_bytes: int = 256
    remembered_claims: int = 65_536
    """Ended claims that are remembered, so that a late call learns how its claim ended."""
    remembered_steps: int = 64
    """Steps of a task whose split between ranks is remembered."""
    remembered_events: int = 262_144
    """Rows of calls that the history of samples remembers; about 40 bytes each."""
    remembered_requests: int = 16_384
    """Answers that are remembered, for callers that repeat a call."""
    remember_s: float = 600.0
    """How long an answer is remembered."""
    bookkeeping_bytes: int = 2304 << 20
    """Memory beside values: rows and their ids, tags, views, groups, definitions, writes under way; an eighth of it for
    remembered answers. See `rows.bookkeeping`.
    """
    max_enum_names: int = 4096
    """Names in all enums of a partition."""
    max_claims: int = 100_000
    """Claims that are open or wait."""
    max_read_rows: int = 16_777_216
    """Rows of all reads under way, leases included; a read of fewer than 64 rows counts as 64."""
    max_read_pieces: int = 262_144
    """Pieces of memory in which the values of one read lie; each takes the server a microsecond."""
    cluster: bool = False
    """Whether there are nodes, each with an arena and a budget of memory_bytes."""

    def validate(self) -> None:
        """Raises ValueError that names the bound and the rule."""
        if not 1 <= self.max_fields <= 64:
            raise ValueError(f"max_fields must be 1 to 64, got {self.max_fields}")
        for name in (
            "memory_bytes",
            "max_rows",
            "max_partitions",
            "max_tasks",
            "max_rows_per_call",
            "max_id_bytes",
            "remembered_requests",
            "max_sessions",
            "max_group_rows",
            "remembered_claims",
            "remembered_steps",
            "bookkeeping_bytes",
            "max_claims",
        ):
            if not 1 <= getattr(self, name) < 1 << 62:
                raise ValueError(f"{name} must be at least 1 and less than 2**62, got {getattr(self, name)}")
