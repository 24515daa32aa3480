"""Planning microbatches of a batch that has no plan.

A driver that shards a batch also plans its microbatches, and the worker follows that plan. A worker that is called
directly plans for itself. Planning reorders rows, so it also returns the order, and results are put back into the
batch's order before they are returned.

Ranks must agree on the number of forward passes. Packed microbatches may differ in number, because dummies make up the
difference. Other microbatches have no dummies, so all ranks have as many rows, and plan dynamic shapes together, from
the longest p-th row of all ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch.distributed import ProcessGroup

from dataplane_client.batched_data_dict import BatchedDataDict, DynamicBatchingArgs
from trainer_adapter._exchange import extremes_over
from trainer_adapter.automodel.rank import compute_device, fail_together
from trainer_adapter.microbatch_args import Stage, microbatch_args


def plan_microbatches(
    data: BatchedDataDict[Any],
    config: Mapping[str, Any],
    stage: Stage,
    dp_group: ProcessGroup | None,
    batch_size: int | None = None,
) -> tuple[BatchedDataDict[Any], list[int] | None]:
    """Return the batch in the order of its microbatches, and the row in `data` of each row; None: the order is
    unchanged.

    batch_size: rows of a global batch on this rank; None: all. Data with a plan is returned as it is, and so is all
    data if neither dynamic batching nor sequence packing is enabled.

    Without a plan and without packing this is a collective call of all ranks. ValueError on all of them if their
    batches differ in rows or, with dynamic batching, in width. If one rank cannot plan dynamic microbatches, as with a
    row longer than they may be, it raises that error and the others RuntimeError. If one cannot pack its rows, it
    raises that error, and the others ValueError where they agree on the number of dummies (get_microbatch_iterator).
    """
    if data.micro_batch_indices is not None:
        return data, None
    args = microbatch_args(config, stage)
    if args.dynamic is not None:
        return _plan_dynamic_together(data, args.dynamic, dp_group, batch_size)
    if args.packing is None:
        _check_same(data.size, "rows", dp_group)
        return data, None
    try:
        shards, order = args.shard(data, 1, batch_size)
    except Exception:
        if not _is_alone(dp_group):
            extremes_over(0, None, compute_device())  # which the others enter with their numbers of microbatches
        raise
    return shards[0], order


def _plan_dynamic_together(
    data: BatchedDataDict[Any], args: DynamicBatchingArgs, dp_group: ProcessGroup | None, batch_size: int | None
) -> tuple[BatchedDataDict[Any], list[int]]:
    rows, width = data[args["input_key"]].shape[:2]
    _check_same(rows, "rows", dp_group)
    _check_same(width, "positions", dp_group)
    with nullcontext() if _is_alone(dp_group) else fail_together("planning microbatches"):
        (shard,), order = data.shard_by_batch_size(1, batch_size=batch_size, dynamic_batching_args=args)
    if _is_alone(dp_group):
        return shard, order
    longest = shard[args["input_lengths_key"]].to(device=compute_device(), copy=True)
    torch.distributed.all_reduce(longest, op=torch.distributed.ReduceOp.MAX, group=dp_group)
    # Rows are in ascending order of length on every rank, and so are the maxima: planning again keeps their order.
    common: BatchedDataDict[torch.Tensor] = BatchedDataDict(
        {args["input_key"]: torch.empty(rows, width, 0), args["input_lengths_key"]: longest}
    )
    (plan,), _ = common.shard_by_batch_size(1, batch_size=batch_size, dynamic_batching_args=args)
    shard.micro_batch_indices, shard.micro_batch_lengths = plan.micro_batch_indices, plan.micro_batch_lengths
    return shard, order


def _check_same(count: int, unit: str, dp_group: ProcessGroup | None) -> None:
    """Ranks that differ would run different numbers of forward passes, or passes of different shapes."""
    fewest, most = (count, count) if _is_alone(dp_group) else extremes_over(count, dp_group, compute_device())
    if fewest != most:
        raise ValueError(
            f"data-parallel ranks have {fewest} to {most} {unit}, this one has {count}; only packed batches may differ"
        )


def _is_alone(dp_group: ProcessGroup | None) -> bool:
    return dp_group is None or dp_group.size() == 1
