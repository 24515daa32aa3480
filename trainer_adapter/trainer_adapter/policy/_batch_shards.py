"""A batch in memory dealt out to data-parallel ranks, and their results in the order of the batch again.

Ranks that run forward passes of a sharded model must run equally many, so each gets equally many rows. Where a batch
that is only looked at does not divide, it is filled up with copies of its last row, whose results are dropped. A batch
that is trained on is never filled up: a row would count twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dataplane_client.batched_data_dict import BatchedDataDict, SlicedDataDict
from trainer_adapter.microbatch_args import Stage, dynamic_batching_args, sequence_packing_args


@dataclass(frozen=True)
class Dealt:
    """shards: one a data-parallel rank, with the plan of its microbatches. order: of the shards' rows, one shard after
    the other, their places in the batch; None where they are in its order. rows: of the batch before it was filled up.
    """

    shards: list[SlicedDataDict[Any]]
    order: list[int] | None
    rows: int

    def whole(self, results: Sequence[Mapping[str, Any]]) -> BatchedDataDict[Any]:
        """The shards' results, row for row in the order of the batch."""
        found: BatchedDataDict[Any] = BatchedDataDict.from_batches(results)
        if self.order is not None:
            found.reorder_data(self.order)
        return found if found.size == self.rows else found.select_indices(range(self.rows))


def dealt_for_inference(data: BatchedDataDict[Any], config: Mapping[str, Any], dp_size: int) -> Dealt:
    """All rows as one batch, under the microbatch sizes of inference. ValueError for a batch without rows."""
    rows = data.size
    if rows == 0:
        raise ValueError("a batch without rows cannot be dealt out to ranks")
    missing = -rows % dp_size
    full = data.select_indices([*range(rows), *[rows - 1] * missing]) if missing else data
    return Dealt(*_deal(full, config, dp_size, "logprob", None), rows)


def dealt_for_training(
    data: BatchedDataDict[Any], config: Mapping[str, Any], dp_size: int, batch_size: int | None
) -> list[SlicedDataDict[Any]]:
    """Every batch_size rows (None: all) as one global batch, under the microbatch sizes of training. AssertionError
    where rows or ranks do not divide.
    """
    return _deal(data, config, dp_size, "train", batch_size)[0]


def _deal(
    data: BatchedDataDict[Any], config: Mapping[str, Any], dp_size: int, stage: Stage, batch_size: int | None
) -> tuple[list[SlicedDataDict[Any]], list[int] | None]:
    dynamic, packing = dynamic_batching_args(config, stage), sequence_packing_args(config, stage)
    if packing is not None:
        return data.shard_by_batch_size(dp_size, batch_size=batch_size, sequence_packing_args=packing)
    if dynamic is not None:
        return data.shard_by_batch_size(dp_size, batch_size=batch_size, dynamic_batching_args=dynamic)
    return data.shard_by_batch_size(dp_size, batch_size=batch_size), None
