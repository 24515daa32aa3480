"""Sharding of metas: every row once, plans kept, the order restored."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
import torch
from tests.trainer_adapter.memory import HeldBytes
from tests.trainer_adapter.planning import dynamic_args, packing_args

from dataplane_client.batched_data_dict import BatchedDataDict
from dataplane_client.packing import PackingAlgorithm
from dataplane_client.records.meta import KVBatchMeta
from trainer_adapter.microbatch_args import microbatch_args
from trainer_adapter.sharding import shard_meta_for_dp


def meta_of(lengths: list[int] | None, rows: int | None = None) -> KVBatchMeta:
    count = len(lengths or []) if rows is None else rows
    return KVBatchMeta(
        "train",
        "train",
        [f"s{row}" for row in range(count)],
        sequence_lengths=lengths,
        extra_info={"step": 3},
        tags=[{"row": row} for row in range(count)],
    )


PACKING, DYNAMIC = packing_args(32, pad_multiple=4), dynamic_args(32, 4)
LENGTHS = [2, 8, 4, 16, 28, 32, 2, 32]


def test_without_planning_ranks_get_consecutive_parts_of_each_global_batch() -> None:
    metas, unsorted = shard_meta_for_dp(meta_of([1] * 8), dp_world=2, batch_size=4)
    assert [meta.sample_ids for meta in metas] == [["s0", "s1", "s4", "s5"], ["s2", "s3", "s6", "s7"]]
    assert unsorted == [0, 1, 4, 5, 2, 3, 6, 7]
    assert shard_meta_for_dp(meta_of([3, 1, 2, 5]), dp_world=2)[1] is None


def test_packing_uses_the_documented_bins_and_keeps_the_plan() -> None:
    metas, _ = shard_meta_for_dp(meta_of(LENGTHS), dp_world=2, batch_size=4, sequence_packing_args=PACKING)
    assert [meta.sample_ids for meta in metas] == [["s3", "s1", "s0", "s5", "s4"], ["s2", "s7", "s6"]]
    assert metas[0].extra_info == {
        "step": 3,
        "micro_batch_indices": [[[0, 3]], [[0, 1], [1, 2]]],
        "micro_batch_lengths": [[28], [32, 28]],
        "elem_counts_per_gb": [3, 2],
    }


def test_dynamic_batching_is_not_capped_by_the_placeholder() -> None:
    metas, _ = shard_meta_for_dp(meta_of(LENGTHS), dp_world=2, dynamic_batching_args=DYNAMIC)
    for meta in metas:
        assert meta.extra_info["micro_batch_indices"] == [[[0, 2], [2, 3], [3, 4]]]
        assert meta.extra_info["micro_batch_lengths"] == [[8, 28, 32]]


def test_a_plan_takes_the_place_of_the_one_before() -> None:
    (planned,), _ = shard_meta_for_dp(meta_of(LENGTHS), dp_world=1, batch_size=4, sequence_packing_args=PACKING)
    for meta in shard_meta_for_dp(planned, dp_world=2)[0]:
        assert meta.extra_info == {"step": 3}


def test_sharding_holds_numbers_for_rows_and_none_for_tokens() -> None:
    with HeldBytes() as held:
        shard_meta_for_dp(meta_of([1, 10_000_000] * 8), dp_world=2, dynamic_batching_args=dynamic_args(20_000_000, 64))
    assert 16 * 8 <= held.peak < 10_000


def test_every_row_goes_to_one_rank_with_its_length_and_tags_and_comes_back_in_order() -> None:
    for seed in range(100):
        rng = random.Random(seed)
        world = rng.choice([1, 2, 4])
        lengths = [rng.randint(1, 32) for _ in range(world * rng.randint(1, 12))]
        packing, dynamic = rng.choice([(None, None), (PACKING, None), (None, DYNAMIC)])
        metas, unsorted = shard_meta_for_dp(
            meta_of(lengths), dp_world=world, sequence_packing_args=packing, dynamic_batching_args=dynamic
        )
        dealt = [zip(meta.sample_ids, meta.sequence_lengths or [], meta.tags or [], strict=True) for meta in metas]
        rows = [*itertools.chain(*dealt)]
        restored = rows if unsorted is None else [rows[position] for position in unsorted]
        assert restored == [(f"s{row}", length, {"row": row}) for row, length in enumerate(lengths)], seed


def test_a_row_without_tokens_is_not_packed_and_is_the_last_to_be_short_of_a_position() -> None:
    with pytest.raises(ValueError, match="sample 's1' has no tokens"):
        shard_meta_for_dp(meta_of([3, 0]), dp_world=2, sequence_packing_args=PACKING)
    for meta in shard_meta_for_dp(meta_of([0, 0]), dp_world=2, dynamic_batching_args=DYNAMIC)[0]:
        assert meta.extra_info["micro_batch_lengths"] == [[4]]


def test_packing_and_dynamic_batching_exclude_each_other() -> None:
    with pytest.raises(ValueError, match="exclude"):
        shard_meta_for_dp(meta_of([1, 2]), dp_world=2, sequence_packing_args=PACKING, dynamic_batching_args=DYNAMIC)


@pytest.mark.parametrize("algorithm", [algorithm.value for algorithm in PackingAlgorithm])
def test_processes_that_plan_the_same_rows_for_themselves_plan_alike(algorithm: str) -> None:
    """As the tensor-parallel ranks of a replica do without a driver, and all processes of torchrun with one."""
    packing = {"enabled": True, "algorithm": algorithm, "train_mb_tokens": 40}
    args = microbatch_args({"sequence_packing": packing, "dtensor_cfg": {}}, "train")
    rows: BatchedDataDict[Any] = BatchedDataDict(input_lengths=torch.arange(1, 31))
    orders = []
    for drawn in (1, 2):
        random.seed(drawn)
        orders.append(args.shard(rows, 2, None)[1])
    assert orders[0] == orders[1]
