"""What goes into the core and what comes out: the values of its calls, its answers, and its effects.

All are plain and immutable. Arrays handed in or out are not to be written to afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dataplane_server.core.columns import ColumnSpec, Int64Array, Shape
from dataplane_server.core.refusal import Refusal
from dataplane_server.core.rows import Tags
from dataplane_server.core.space import Run

# -- calls -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Definition:
    """What a partition is meant to hold, and for whom."""

    partition_id: str
    fields: tuple[str, ...]
    tasks: tuple[str, ...]
    num_samples: int = 0
    per_token_fields: frozenset[str] = frozenset()
    grpo_group_size: int | None = None
    enums: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Put:
    """Columns and tags for rows. tags and sequence_lengths (tokens, -1 unknown) are None or have one entry a row."""

    request_id: str
    partition_id: str
    sample_ids: Sequence[str]
    columns: Sequence[ColumnSpec] = ()
    tags: Sequence[Tags] | None = None
    sequence_lengths: Int64Array | None = None


@dataclass(frozen=True, slots=True)
class Commit:
    """End of a claim, with columns for its rows or none."""

    request_id: str
    claim_id: str
    columns: Sequence[ColumnSpec] = ()


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """Rows wanted for a task. consume: delivery is consumption, and there is nothing to commit."""

    request_id: str
    partition_id: str
    task: str
    required_fields: tuple[str, ...]
    batch_size: int
    min_size: int
    consume: bool = False


# -- answers -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Waiting:
    """Not yet: an effect with this ticket will tell."""

    ticket: int


@dataclass(frozen=True, slots=True)
class Reservation:
    """Room for the values of a put or commit. The bytes of the stream go to the runs, in their order."""

    ticket: int
    runs: tuple[Run, ...]
    size_bytes: int


@dataclass(frozen=True, slots=True)
class PutResult:
    created_rows: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class CommitResult:
    consumed_rows: int


@dataclass(frozen=True, slots=True)
class ReleaseResult:
    released_rows: int


@dataclass(frozen=True, slots=True)
class ClearResult:
    cleared_rows: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class DropResult:
    dropped_rows: int


@dataclass(frozen=True, slots=True)
class Grant:
    """Rows handed out. claim_id is empty when delivery was consumption."""

    claim_id: str
    sample_ids: tuple[str, ...]
    sequence_lengths: Int64Array
    tags: tuple[Tags, ...]


@dataclass(frozen=True, slots=True)
class ReadColumn:
    """Layout of one field of a read. entries: int64, one a row."""

    name: str
    shape: Shape
    entries: Int64Array


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """Where the bytes of a read lie, column after column; they stay there until end_read(ticket)."""

    ticket: int
    columns: tuple[ReadColumn, ...]
    sequence_lengths: Int64Array
    runs: tuple[Run, ...]
    size_bytes: int


@dataclass(frozen=True, slots=True)
class FieldInfo:
    name: str
    shape: Shape | None
    per_token: bool
    rows: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class TaskInfo:
    """Resident rows by state, rows consumed since registration, claims that wait."""

    task: str
    untaken_rows: int
    claimed_rows: int
    consumed_rows: int
    consumed_rows_total: int
    waiting_claims: int


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    definition: Definition
    fields: tuple[FieldInfo, ...]
    tasks: tuple[TaskInfo, ...]
    rows: int
    size_bytes: int
    rows_put_total: int
    rows_cleared_total: int


@dataclass(frozen=True, slots=True)
class ConsumptionInfo:
    consumed: bool
    tasks: tuple[TaskInfo, ...]


# -- effects -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Admitted:
    """A waiting put or commit has room now."""

    ticket: int
    reservation: Reservation


@dataclass(frozen=True, slots=True)
class Granted:
    """A waiting claim has its rows."""

    ticket: int
    grant: Grant


@dataclass(frozen=True, slots=True)
class Failed:
    """A waiting call has ended without an answer."""

    ticket: int
    refusal: Refusal


Effect = Admitted | Granted | Failed
