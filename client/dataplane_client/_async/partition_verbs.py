"""Verbs about whole partitions and the server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dataplane_client._arguments import checked_name, checked_names
from dataplane_client._async.transport import AsyncTransport
from dataplane_client._requests import new_request_id, register_request
from dataplane_client.descriptions import PartitionDescription, ServerStatus, partition_description, server_status
from rl_dataplane.v1 import data_plane_pb2 as pb


class PartitionVerbs:
    """Part of the client."""

    _transport: AsyncTransport

    async def register_partition(
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
        timeout_s: float | None = None,
    ) -> PartitionDescription:
        """Create a partition or replace its definition.

        fields: all fields that rows may have; puts of others are refused. per_token_fields: those with one entry for
        each token; within a row they must have one length. num_samples: how many rows the producer announces, for
        check_consumption_status; not a limit. grpo_group_size and enums (names for integer codes, by field) are stored
        for readers. max_deliveries: how often a row is delivered to a task that does not commit it before it becomes a
        dead letter (see dead_letters); 0 for no limit, at most 65,535.

        Registering again keeps the rows, resets the cursors of all tasks and fences open claims. Raises
        PreconditionError when it would drop a field in which rows hold values.
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
        )
        response = await self._transport.unary("RegisterPartition", request, timeout_s)
        return partition_description(response.partition)

    async def drop_partition(self, partition_id: str, *, timeout_s: float | None = None) -> int:
        """Remove a partition with its rows, claims and definition. Returns how many rows it had; 0 if there is no such
        partition.
        """
        request = pb.DropPartitionRequest(
            request_id=new_request_id(), partition_id=checked_name("partition id", partition_id, "drop_partition")
        )
        return int((await self._transport.unary("DropPartition", request, timeout_s)).dropped_rows)

    async def partition(self, partition_id: str, *, timeout_s: float | None = None) -> PartitionDescription:
        """Describe a partition. Raises NotFoundError."""
        request = pb.GetPartitionRequest(partition_id=checked_name("partition id", partition_id, "partition"))
        return partition_description((await self._transport.unary("GetPartition", request, timeout_s)).partition)

    async def partitions(self, *, timeout_s: float | None = None) -> list[PartitionDescription]:
        """Describe all partitions, by id."""
        response = await self._transport.unary("ListPartitions", pb.ListPartitionsRequest(), timeout_s)
        return [partition_description(message) for message in response.partitions]

    async def server_status(self, *, timeout_s: float | None = None) -> ServerStatus:
        """Describe the server."""
        return server_status(await self._transport.unary("GetServerStatus", pb.GetServerStatusRequest(), timeout_s))

    async def check_consumption_status(
        self, partition_id: str, task_names: Sequence[str], *, timeout_s: float | None = None
    ) -> bool:
        """Whether the announced num_samples rows have been put and each of the tasks has consumed all resident rows."""
        where = f"check_consumption_status of {partition_id!r}"
        request = pb.GetConsumptionStatusRequest(
            partition_id=checked_name("partition id", partition_id, where),
            tasks=checked_names("task name", task_names, where),
        )
        return bool((await self._transport.unary("GetConsumptionStatus", request, timeout_s)).consumed)
