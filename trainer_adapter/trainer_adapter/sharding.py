"""Which rows each data-parallel rank works on. The driver decides it once, from lengths alone, without reading a
tensor.

Rows are divided like BatchedDataDict.shard_by_batch_size divides them, so metas and batches are sharded alike. With
sequence packing or dynamic batching the plan of microbatches is stored in the meta's extra_info, and every rank must
follow it: ranks that planned for themselves could differ in number and deadlock.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from dataplane_client.batched_data_dict import (
    BatchedDataDict,
    DynamicBatchingArgs,
    SequencePackingArgs,
    SlicedDataDict,
)
from dataplane_client.records.meta import KVBatchMeta
from trainer_adapter.microbatch_args import MicrobatchArgs
from trainer_adapter.pad_target import rounded_up

PLAN_KEYS = ("micro_batch_indices", "micro_batch_lengths", "elem_counts_per_gb")
"""Keys of extra_info for the plan of a rank's microbatches; the names are those of BatchedDataDict's attributes."""


def shard_meta_for_dp(
    meta: KVBatchMeta,
    *,
    dp_world: int,
    batch_size: int | None = None,
    sequence_packing_args: SequencePackingArgs | None = None,
    dynamic_batching_args: DynamicBatchingArgs | None = None,
) -> tuple[list[KVBatchMeta], list[int] | None]:
    """Return one meta for each data-parallel rank, and the order that restores the original one.

    batch_size: rows of one global batch over all ranks; None: all rows are one. The second value is None if the ranks'
    rows, one rank after the other, are in the order of the meta. Otherwise, for results concatenated by rank,
    `[results[position] for position in unsorted]` is in the order of the meta.

    Raises ValueError for a meta without rows or lengths, for a row without tokens that is to be packed and for both
    kinds of arguments at once, AssertionError if the rows cannot be divided evenly.
    """
    if meta.size == 0:
        raise ValueError(f"partition {meta.partition_id!r}: the meta has no rows to shard")
    if meta.sequence_lengths is None:
        raise ValueError(f"partition {meta.partition_id!r}: sharding needs the meta's sequence_lengths")
    if sequence_packing_args is not None and dynamic_batching_args is not None:
        raise ValueError("sequence_packing_args and dynamic_batching_args exclude each other; pass at most one")
    if sequence_packing_args is not None and 0 in meta.sequence_lengths:
        empty = meta.sample_ids[meta.sequence_lengths.index(0)]
        raise ValueError(f"partition {meta.partition_id!r}: sample {empty!r} has no tokens, so it cannot be packed")
    args = MicrobatchArgs(sequence_packing_args, dynamic_batching_args)
    shards, _ = args.shard(_skeleton(meta.sequence_lengths, args), dp_world, batch_size)
    rows = [shard["meta_idx"].tolist() for shard in shards]
    metas = [_with_plan(meta.subset(own), shard) for own, shard in zip(rows, shards, strict=True)]
    return metas, _undo([row for own in rows for row in own])


def _skeleton(lengths: list[int], args: MicrobatchArgs) -> BatchedDataDict[torch.Tensor]:
    """A batch with the numbers and lengths of the rows and no tokens.

    Dynamic batching caps lengths at the width of its input, so the placeholder is as wide as the longest row after
    rounding. It has no elements.
    """
    rows: BatchedDataDict[torch.Tensor] = BatchedDataDict(meta_idx=torch.arange(len(lengths)))
    if args.packing is not None:
        rows[args.packing["input_lengths_key"]] = torch.tensor(lengths)
    if args.dynamic is not None:
        width = rounded_up(max(*lengths, 1), args.dynamic["sequence_length_round"])
        rows[args.dynamic["input_lengths_key"]] = torch.tensor(lengths)
        rows[args.dynamic["input_key"]] = torch.empty(len(lengths), width, 0)
    return rows


def _with_plan(meta: KVBatchMeta, shard: SlicedDataDict[torch.Tensor]) -> KVBatchMeta:
    others = {key: value for key, value in meta.extra_info.items() if key not in PLAN_KEYS}
    plan = {key: value for key in PLAN_KEYS if (value := getattr(shard, key)) is not None}
    return replace(meta, extra_info={**others, **plan})


def _undo(order: list[int]) -> list[int] | None:
    """The place of each row of the meta in `order`; None if order is 0, 1, 2, ..."""
    if order == list(range(len(order))):
        return None
    places = [0] * len(order)
    for place, row in enumerate(order):
        places[row] = place
    return places
