"""Verbs about whole partitions and the server."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence

import torch

from dataplane_client._common.arguments import checked_count, checked_mapping, checked_name, checked_names
from dataplane_client._common.tracebacks import short_tracebacks
from dataplane_client._requests.claim_requests import checked_version
from dataplane_client._requests.requests import extend_request, new_request_id, register_request
from dataplane_client._verbs._sync.runtime import sleep
from dataplane_client._verbs._sync.transport import Transport
from dataplane_client.records.descriptions import (
    PartitionDescription,
    ServerStatus,
    SnapshotDescription,
    partition_description,
    registered_description,
    server_status,
    snapshot_description,
)
from dataplane_client.records.flow import FlowPolicy, flow_message
from dataplane_client.records.tasks import TaskPolicy, checked_policy
from rl_dataplane.v1 import data_plane_pb2 as pb

_PAGE_PARTITIONS = 1024
"""More than a page has when its partitions have many tasks."""
_RESTART_S = 0.1


@short_tracebacks
class PartitionVerbs:
    """Part of the client."""

    _transport: Transport

    def register_partition(
        self,
        partition_id: str,
        fields: Sequence[str],
        num_samples: int,
        consumer_tasks: Sequence[str],
        grpo_group_size: int | None = None,
        enums: Mapping[str, Sequence[str]] | None = None,
        *,
        per_token_fields: Sequence[str] = (),
        max_deliveries: int = 0,
        replace: bool = False,
        open: bool = False,  # noqa: A002 - as in the contract
        clear_when_consumed: bool = False,
        dtypes: Mapping[str, str | torch.dtype] | None = None,
        digests: bool = False,
        timeout_s: float | None = None,
    ) -> PartitionDescription:
        """Create a partition, or add to its definition. The description's `outcome` says which.

        fields: all fields that rows may have; puts of others are refused. per_token_fields: those with one entry for
        each token; within a row they must have one length. num_samples: how many rows the producer announces, for
        check_consumption_status; not a limit. grpo_group_size and enums (names for integer codes, by field) are stored
        for readers. max_deliveries: how often a row is delivered to a task that does not commit it before it becomes a
        dead letter (see dead_letters); 0 for no limit, at most 65,535.

        open: put or require fields without declaring them: the first put, or claim, that names a field declares it, as
        not per-token. A misspelt name then declares a field; otherwise it is refused. clear_when_consumed: remove a
        row as soon as every task has consumed it, so commit only after all readers have read. A dead letter stays,
        since its task never consumes it. `claim_meta` is refused, because its rows would be gone before they are read.

        dtypes: element types of fields, such as {"reward": "float32"} or torch.float32, and "object". Puts of another
        type are refused, except integers that the float type of the field holds exactly. Other fields hold what is put
        first, until nothing holds values of them any more.

        digests: every value is hashed by the client that puts it, and compared by every client that reads it: a value
        that was changed anywhere between raises CorruptedError, which names sample and field. Such values cannot be
        appended to or read by token ranges (PreconditionError), and reads copy them also in layout "jagged".

        If the partition exists, its rows, cursors and claims stay, so every process of a job may register at its start.
        More fields, tasks and enums, and a greater num_samples, are added; fewer take nothing away. Raises
        PreconditionError, which names every difference, for a definition that contradicts the present one. With
        replace, this definition takes its place: rows stay, all tasks start over, open claims are fenced, and a closed
        partition is open again. Raises PreconditionError when that would drop a field in which rows hold values.
        """
        request = register_request(
            partition_id,
            fields,
            num_samples,
            consumer_tasks,
            grpo_group_size,
            enums or {},
            per_token_fields,
            max_deliveries,
            replace=replace,
            open=open,
            clear_when_consumed=clear_when_consumed,
            dtypes=dtypes or {},
            digests=digests,
        )
        response = self._transport.unary("RegisterPartition", request, timeout_s)
        self._transport.known.learn(response.partition)
        described = registered_description(response)
        if not (described.tasks or open):  # rows of open partitions may be for readers by id
            warnings.warn(
                f"partition {partition_id!r} has no task: nothing can claim its rows until extend_partition adds one",
                stacklevel=3,  # of the caller of the verb, which `short_tracebacks` wraps
            )
        return described

    def extend_partition(
        self,
        partition_id: str,
        *,
        fields: Sequence[str] = (),
        per_token_fields: Sequence[str] = (),
        consumer_tasks: Sequence[str] = (),
        num_samples: int | None = None,
        timeout_s: float | None = None,
    ) -> PartitionDescription:
        """Declare more fields and tasks, or announce more rows, while the partition is in use. What it has already
        stays as it is.

        per_token_fields: those of `fields` that have one entry for each token. A new task starts with all resident rows
        untaken. num_samples takes effect if it is greater than before. Raises NotFoundError for an unknown partition,
        PreconditionError for a field that is declared otherwise.
        """
        request = extend_request(partition_id, fields, per_token_fields, consumer_tasks, num_samples)
        response = self._transport.unary("ExtendPartition", request, timeout_s)
        self._transport.known.learn(response.partition)
        return partition_description(response.partition)

    def close_partition(self, partition_id: str, *, timeout_s: float | None = None) -> int:
        """Announce the end of data. From now on no row is created, except in groups that are reserved already.

        Rows that exist can still be written, claimed and read. A claim for which too few rows are left, waiting or new,
        ends at once with EndOfDataError, which says how many a smaller min_size would get. Returns how many waiting
        claims ended now. Closing again changes nothing; register_partition(replace=True) opens the partition again.
        Raises NotFoundError.
        """
        request = pb.ClosePartitionRequest(
            request_id=new_request_id(), partition_id=checked_name("partition id", partition_id, "close_partition")
        )
        return int((self._transport.unary("ClosePartition", request, timeout_s)).ended_claims)

    def set_weight_version(
        self, partition_id: str, version: int, *, retire_below: int | None = None, timeout_s: float | None = None
    ) -> int:
        """Tell which weights the trainer has now, such as after each refit. The staleness of rows is measured against
        it. Until the first call the partition's version is the greatest that a row or group has named. It may go back,
        as when a trainer resumes from a checkpoint. The version that it has may be set again, such as by every rank:
        the rows taken of it still count for rows_per_version.

        version: 0 to 2,147,483,646. retire_below: also remove the rows of versions before this one, claimed or not, and
        abort the groups that began with one. Returns how many rows that removed. Raises NotFoundError.
        """
        where = f"set_weight_version of {partition_id!r}"
        request = pb.SetWeightVersionRequest(
            request_id=new_request_id(),
            partition_id=checked_name("partition id", partition_id, where),
            version=checked_count("version", version, where, least=0, most=(1 << 31) - 2),
            retire_below=checked_version(retire_below, where),
        )
        return int((self._transport.unary("SetWeightVersion", request, timeout_s)).retired_rows)

    def set_policies(
        self,
        partition_id: str,
        tasks: Mapping[str, TaskPolicy] | None = None,
        *,
        flow: FlowPolicy | None = None,
        timeout_s: float | None = None,
    ) -> PartitionDescription:
        """Replace the policies of tasks, by name, and when the partition takes new rows (flow), all in one step; other
        tasks keep theirs, and so does a partition without flow. May be called at any time: rows and claims stay as they
        are, and calls that wait are served by the new policies, or refused if they can never be. (A claim that waits
        keeps its order.) Raises NotFoundError for an unknown partition or task.
        """
        where = f"set_policies of {partition_id!r}"
        request = pb.SetPoliciesRequest(
            request_id=new_request_id(),
            partition_id=checked_name("partition id", partition_id, where),
            tasks={
                checked_name("task name", task, where): checked_policy(policy, f"{where}, task {task!r}")
                for task, policy in checked_mapping("tasks", tasks or {}, where).items()
            },
            flow=None if flow is None else flow_message(flow, where),
        )
        return partition_description((self._transport.unary("SetPolicies", request, timeout_s)).partition)

    def create_snapshot(self, name: str, *, timeout_s: float | None = None) -> SnapshotDescription:
        """Take a snapshot of the server at this moment: rows with their values, cursors, claims. Needs --data-dir.

        Other calls go on meanwhile. Blocks until the snapshot is on the server's disk, where it is a folder of this
        name: 1 to 128 letters, digits, ".", "_" and "-". A timeout ends the wait, not the snapshot. Raises
        PreconditionError if it cannot be written, InvalidArgumentError for a name that another snapshot has, and
        without --data-dir.
        """
        snapshot = checked_name("snapshot name", name, "create_snapshot")
        request = pb.CreateSnapshotRequest(request_id=new_request_id(), snapshot=snapshot)
        return snapshot_description((self._transport.unary("CreateSnapshot", request, timeout_s)).snapshot)

    def restore_snapshot(self, name: str, *, timeout_s: float | None = None) -> SnapshotDescription:
        """Make the server go on from one of its snapshots; what came after it is gone. Blocks until the server serves
        again, in a second or so.

        All sessions end, so rows that clients had claimed when the snapshot was taken are untaken again. Clients
        connect again by themselves; the claims and groups that they hold have ended. Raises PreconditionError if the
        snapshot cannot be used; then nothing has changed.
        """
        deadline = self._transport.deadline(timeout_s)
        snapshot = checked_name("snapshot name", name, "restore_snapshot")
        request = pb.RestoreSnapshotRequest(request_id=new_request_id(), snapshot=snapshot)
        began = time.monotonic()
        response = self._transport.unary("RestoreSnapshot", request, deadline.left_s)
        if not response.restored:  # as it is when an earlier attempt was not answered
            while (self.server_status(timeout_s=deadline.left_s)).uptime_s >= time.monotonic() - began:
                sleep(_RESTART_S)
        return snapshot_description(response.snapshot)

    def snapshots(self, *, timeout_s: float | None = None) -> list[SnapshotDescription]:
        """The server's last 1,000 snapshots, the oldest first. Raises InvalidArgumentError without --data-dir."""
        response = self._transport.unary("ListSnapshots", pb.ListSnapshotsRequest(), timeout_s)
        return [*map(snapshot_description, response.snapshots)]

    def drop_partition(self, partition_id: str, *, timeout_s: float | None = None) -> int:
        """Remove a partition with its rows, claims and definition. Returns how many rows it had; 0 if there is no such
        partition.
        """
        request = pb.DropPartitionRequest(
            request_id=new_request_id(), partition_id=checked_name("partition id", partition_id, "drop_partition")
        )
        return int((self._transport.unary("DropPartition", request, timeout_s)).dropped_rows)

    def partition(self, partition_id: str, *, timeout_s: float | None = None) -> PartitionDescription:
        """Describe a partition. Raises NotFoundError."""
        request = pb.GetPartitionRequest(partition_id=checked_name("partition id", partition_id, "partition"))
        return partition_description((self._transport.unary("GetPartition", request, timeout_s)).partition)

    def partitions(self, *, timeout_s: float | None = None) -> list[PartitionDescription]:
        """Describe all partitions, by id. Many take several calls, so two of them may be described at different times;
        one that is registered or dropped meanwhile is there or not.
        """
        deadline = self._transport.deadline(timeout_s)
        request = pb.ListPartitionsRequest(page_size=_PAGE_PARTITIONS)
        described: list[PartitionDescription] = []
        while True:
            response = self._transport.unary("ListPartitions", request, deadline.left_s)
            described += map(partition_description, response.partitions)
            if not response.next_page_token:
                return described
            request.page_token = response.next_page_token

    def server_status(self, *, timeout_s: float | None = None) -> ServerStatus:
        """Describe the server."""
        return server_status(self._transport.unary("GetServerStatus", pb.GetServerStatusRequest(), timeout_s))

    def check_consumption_status(
        self, partition_id: str, task_names: Sequence[str], *, timeout_s: float | None = None
    ) -> bool:
        """Whether the announced num_samples rows have been put, or the partition is closed, and each of the tasks has
        consumed all resident rows. Rows that were rolled back with their groups count as not put.
        """
        where = f"check_consumption_status of {partition_id!r}"
        request = pb.GetConsumptionStatusRequest(
            partition_id=checked_name("partition id", partition_id, where),
            tasks=checked_names("task name", task_names, where),
        )
        return bool((self._transport.unary("GetConsumptionStatus", request, timeout_s)).consumed)
