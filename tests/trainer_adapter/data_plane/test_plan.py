"""A plan of microbatches fits the rows that were read, or is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.trainer_adapter.planning import dynamic_args, packing_args

from dataplane_client.batched_data_dict import BatchedDataDict
from dataplane_client.records.meta import KVBatchMeta
from trainer_adapter.data_plane._microbatch_plan import attach_plan
from trainer_adapter.sharding import shard_meta_for_dp

LENGTHS = [2, 8, 4, 16, 28, 32, 2, 32]
PACKING, DYNAMIC = packing_args(32, pad_multiple=4), dynamic_args(32, 4)


def meta_of(rows: int, **extra_info: Any) -> KVBatchMeta:
    return KVBatchMeta("p", "train", [f"s{row}" for row in range(rows)], extra_info=extra_info)


def batch_for(meta: KVBatchMeta) -> BatchedDataDict[Any]:
    return BatchedDataDict({"input_ids": torch.zeros(meta.size, 1)})


@pytest.mark.parametrize(
    "args",
    [
        {"sequence_packing_args": PACKING, "batch_size": 4},
        {"dynamic_batching_args": DYNAMIC, "batch_size": 4},
        {"dynamic_batching_args": DYNAMIC},
    ],
    ids=["packing", "dynamic", "one global batch"],
)
def test_every_plan_of_the_driver_fits_its_shard(args: dict[str, Any]) -> None:
    whole = KVBatchMeta("p", "train", [f"s{row}" for row in range(8)], sequence_lengths=LENGTHS)
    for meta in shard_meta_for_dp(whole, dp_world=2, **args)[0]:
        batch = batch_for(meta)
        attach_plan(batch, meta)
        assert batch.micro_batch_indices == meta.extra_info["micro_batch_indices"]
        assert batch.micro_batch_lengths == meta.extra_info["micro_batch_lengths"]
        assert batch.elem_counts_per_gb == meta.extra_info.get("elem_counts_per_gb")


def test_a_plan_that_would_cut_rows_off_is_refused() -> None:
    """As that of a meta whose rows were put into another order after planning."""
    whole = KVBatchMeta("p", "train", [f"s{row}" for row in range(8)], sequence_lengths=LENGTHS)
    (planned,), _ = shard_meta_for_dp(whole, dp_world=1, dynamic_batching_args=DYNAMIC)
    turned = planned.subset(reversed(range(8)))
    with pytest.raises(ValueError, match="sample 's7' has 32 tokens, more than the 8 of its microbatch"):
        attach_plan(batch_for(turned), turned)


@pytest.mark.parametrize(
    ("indices", "lengths", "counts", "fragment"),
    [
        ([[[0, 3]]], None, None, "micro_batch_indices .*micro_batch_lengths"),
        (None, None, [3], "both"),
        ([[0, 3]], [[8]], None, "integers"),
        ([[[0, 3.0]]], [[8]], None, "integers"),
        ([[[0, 3]]], [[8, 8]], None, "numbers of microbatches"),
        ([[[0, 3]]], [[8], [8]], None, "numbers of microbatches"),
        ([[[0, 1], [2, 3]]], [[8, 8]], None, "global batch 0 .*row 0"),
        ([[[1, 3]]], [[8]], None, "row 0"),
        ([[[0, 1]], [[1, 3]]], [[8], [8]], None, "global batch 1 .*row 0"),
        ([[[0, 3, 3]]], [[8]], None, "follow"),
        ([[]], [[]], None, "row 0"),
        ([[[0, 4], [4, 3]]], [[8, 8]], None, "global batch 0"),
        ([[[0, 3]]], [[8]], [2], r"elem_counts_per_gb .*\[2\], .*\[3\]"),
        ([[[0, 2]]], [[8]], [2], "2 rows, .*3"),
        ([], [], None, "0 rows, .*3"),
    ],
)
def test_a_plan_that_does_not_fit_is_refused(indices: Any, lengths: Any, counts: Any, fragment: str) -> None:
    meta = meta_of(3, micro_batch_indices=indices, micro_batch_lengths=lengths, elem_counts_per_gb=counts)
    batch = batch_for(meta)
    with pytest.raises(ValueError, match=f"'p': .*{fragment}"):
        attach_plan(batch, meta)
    assert batch.micro_batch_indices is None
