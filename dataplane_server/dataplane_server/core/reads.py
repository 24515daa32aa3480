"""Reads under way. Their rows are pinned: a clear or an overwrite never waits for them and never changes what they
send.
"""

from __future__ import annotations

from collections.abc import Sequence

from dataplane_server.core.calls import ReadPlan
from dataplane_server.core.columns import Int64Array
from dataplane_server.core.names import check_distinct, check_generations, check_sample_ids
from dataplane_server.core.partition import Partition
from dataplane_server.core.refusal import Reason, Refusal
from dataplane_server.core.rows import Slots
from dataplane_server.core.state import State


class Reads:
    """Reads that have begun and not yet ended, by ticket."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._pinned: dict[int, tuple[Partition, Slots]] = {}

    def begin(
        self,
        partition_id: str,
        sample_ids: Sequence[str],
        fields: Sequence[str],
        generations: Int64Array | None = None,
    ) -> ReadPlan:
        """Pin rows and say where their values lie. With generations: those very rows, or a Refusal ROW_REPLACED."""
        partition = self._state.partition(partition_id)
        if not fields:
            message = f"a read of partition {partition_id!r} names no field"
            raise Refusal(Reason.INVALID_REQUEST, message, partition_id=partition_id)
        check_distinct("field", fields)
        check_sample_ids(sample_ids, self._state.limits)
        check_generations(sample_ids, generations)
        for name in fields:
            partition.field(name)
        slots = partition.rows.find(sample_ids)
        if generations is not None:
            partition.rows.check_same(sample_ids, slots, generations)
        columns, runs = partition.plan_read(slots, fields)
        ticket = self._state.ticket()
        partition.rows.pin(slots)
        self._pinned[ticket] = (partition, slots)
        lengths = partition.rows["sequence_length"][slots].astype("int64")
        size_bytes = sum(run.size_bytes for run in runs)
        partition.count_read(len(slots), size_bytes)
        return ReadPlan(ticket, columns, lengths, runs, size_bytes)

    def end(self, ticket: int) -> None:
        """Let go of the rows; unknown tickets are fine."""
        pinned = self._pinned.pop(ticket, None)
        if pinned is not None:
            partition, slots = pinned
            partition.rows.unpin(slots)

    def partitions(self) -> list[Partition]:
        """Partitions with pinned rows, dropped ones included, each once."""
        return list({id(partition): partition for partition, _ in self._pinned.values()}.values())
