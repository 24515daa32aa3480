"""What a server says of itself and its partitions."""

from __future__ import annotations

from dataclasses import dataclass

from dataplane_client._layouts import field_layout
from dataplane_client.columns_layout import Kind
from rl_dataplane.v1 import data_plane_pb2 as pb


@dataclass(frozen=True)
class FieldDescription:
    """One field of a partition. kind, dtype and row_shape are None, "" and () until the first put; row_shape is the
    shape of a row (dense) or of one entry of a row (jagged). rows and size_bytes count resident rows that hold it.
    """

    name: str
    kind: Kind | None
    dtype: str
    row_shape: tuple[int, ...]
    per_token: bool
    rows: int
    size_bytes: int


@dataclass(frozen=True)
class TaskStatus:
    """Resident rows of a partition by state for one task, rows it consumed since registration, claims that wait."""

    task: str
    untaken_rows: int
    claimed_rows: int
    consumed_rows: int
    consumed_rows_total: int
    waiting_claims: int


@dataclass(frozen=True)
class PartitionDescription:
    """A partition: its definition and what it holds. rows_put_total is always rows_cleared_total + rows."""

    partition_id: str
    fields: tuple[FieldDescription, ...]
    tasks: tuple[TaskStatus, ...]
    num_samples: int
    grpo_group_size: int | None
    enums: dict[str, tuple[str, ...]]
    rows: int
    size_bytes: int
    rows_put_total: int
    rows_cleared_total: int

    def task(self, name: str) -> TaskStatus:
        """Raises KeyError for a task that is not registered."""
        for status in self.tasks:
            if status.task == name:
                return status
        raise KeyError(name)


@dataclass(frozen=True)
class ServerStatus:
    """The whole server. memory_used_bytes: values of resident rows, puts under way, cleared rows still being sent."""

    version: str
    memory_budget_bytes: int
    memory_used_bytes: int
    rows: int
    uptime_s: float
    waiting_claims: int
    waiting_puts: int


def partition_description(message: pb.Partition) -> PartitionDescription:
    return PartitionDescription(
        partition_id=message.partition_id,
        fields=tuple(_field(field) for field in message.fields),
        tasks=tuple(_task(task) for task in message.tasks),
        num_samples=message.num_samples,
        grpo_group_size=message.grpo_group_size if message.HasField("grpo_group_size") else None,
        enums={field: tuple(names.names) for field, names in message.enums.items()},
        rows=message.rows,
        size_bytes=message.size_bytes,
        rows_put_total=message.rows_put_total,
        rows_cleared_total=message.rows_cleared_total,
    )


def server_status(message: pb.GetServerStatusResponse) -> ServerStatus:
    return ServerStatus(
        version=message.version,
        memory_budget_bytes=message.memory_budget_bytes,
        memory_used_bytes=message.memory_used_bytes,
        rows=message.rows,
        uptime_s=message.uptime.ToNanoseconds() / 1e9,
        waiting_claims=message.waiting_claims,
        waiting_puts=message.waiting_puts,
    )


def _field(message: pb.FieldDescription) -> FieldDescription:
    kind, dtype, row_shape = field_layout(message)
    return FieldDescription(message.name, kind, dtype, row_shape, message.per_token, message.rows, message.size_bytes)


def _task(message: pb.TaskStatus) -> TaskStatus:
    return TaskStatus(
        task=message.task,
        untaken_rows=message.untaken_rows,
        claimed_rows=message.claimed_rows,
        consumed_rows=message.consumed_rows,
        consumed_rows_total=message.consumed_rows_total,
        waiting_claims=message.waiting_claims,
    )
