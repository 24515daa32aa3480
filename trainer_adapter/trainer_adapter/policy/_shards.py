"""Rows divided among data-parallel ranks: batches in memory, and metas whose rows the ranks fetch themselves.

The forward passes of a sharded model are collective, so every rank gets the same number of rows. A batch for inference
that does not divide is filled up with copies of its last row, whose results are dropped. A batch for training is never
filled up, because the copied row would count twice. A meta is never filled up either: each row is written back once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dataplane_client.batched_data_dict import BatchedDataDict, SlicedDataDict
from dataplane_client.records.meta import KVBatchMeta
from trainer_adapter.microbatch_args import Stage, microbatch_args, width_multiple
from trainer_adapter.pad_target import with_pad_target
from trainer_adapter.sharding import shard_meta_for_dp


@dataclass(frozen=True)
class Sharded:
    """A batch divided for inference.

    shards: one for each data-parallel rank, with the plan of its microbatches.
    order: the batch row of each shard row, one shard after the other; None: the order is unchanged.
    rows: of the batch before it was filled up.
    """

    shards: list[SlicedDataDict[Any]]
    order: list[int] | None
    rows: int

    def concat_results(self, results: Sequence[Mapping[str, Any]]) -> BatchedDataDict[Any]:
        """Concatenate the shards' results, row for row in the order of the batch."""
        found: BatchedDataDict[Any] = BatchedDataDict.from_batches(results)
        if self.order is not None:
            found.reorder_data(self.order)
        return found if found.size == self.rows else found.select_indices(range(self.rows))


def shard_for_inference(data: BatchedDataDict[Any], config: Mapping[str, Any], dp_size: int) -> Sharded:
    """Divide all rows as one batch, under the microbatch sizes of inference. ValueError for a batch without rows."""
    rows = data.size
    if rows == 0:
        raise ValueError("the batch has no rows; pass at least one")
    missing = -rows % dp_size
    full = data.select_indices([*range(rows), *[rows - 1] * missing]) if missing else data
    return Sharded(*microbatch_args(config, "logprob").shard(full, dp_size, None), rows)


def shard_for_training(
    data: BatchedDataDict[Any], config: Mapping[str, Any], dp_size: int, batch_size: int | None
) -> list[SlicedDataDict[Any]]:
    """Divide every batch_size rows (None: all) as one global batch, under the microbatch sizes of training.

    Raises AssertionError when batch_size does not divide the rows or dp_size does not divide batch_size.
    """
    return microbatch_args(config, "train").shard(data, dp_size, batch_size)[0]


def shard_meta(
    meta: KVBatchMeta, config: Mapping[str, Any], dp_size: int, stage: Stage, batch_size: int | None
) -> list[KVBatchMeta]:
    """Divide a meta: one for each data-parallel rank, with the plan of its microbatches and the width of its rows.

    All ranks pad to the same width. A width that the meta already names is kept, so that all stages of a step use the
    same one. Raises what shard_meta_for_dp raises.
    """
    args = microbatch_args(config, stage)
    rounding = 1 if args.dynamic is None else args.dynamic["sequence_length_round"]
    padded = with_pad_target(meta, pad_to_multiple=width_multiple(config), sequence_length_round=rounding)
    metas, _ = shard_meta_for_dp(
        padded,
        dp_world=dp_size,
        batch_size=batch_size,
        sequence_packing_args=args.packing,
        dynamic_batching_args=args.dynamic,
    )
    return metas
