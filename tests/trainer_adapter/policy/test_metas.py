"""Sharded metas have one width and one plan for all ranks; see serial_group.py."""

from __future__ import annotations

from typing import Any

import pytest
from tests.trainer_adapter.policy.serial_group import SerialGroup, config_of, meta_of, no_loss

from dataplane_client.records.meta import KVBatchMeta
from trainer_adapter.policy import DataPlanePolicy

LENGTHS = [3, 9, 5, 13, 2, 7, 11, 1]


def metas_after(group: SerialGroup) -> list[KVBatchMeta]:
    """What each rank was given by the last call."""
    return [worker.calls[-1][1]["meta"] for worker in group.workers]


@pytest.mark.parametrize("mode", ["plain", "dynamic", "packed"])
def test_every_row_is_trained_on_by_one_rank_under_one_width(mode: str) -> None:
    group = SerialGroup(2)
    report = DataPlanePolicy(config_of(mode), group).train_from_meta(meta_of(LENGTHS, step=3), no_loss, gbs=4, mbs=1)
    metas = metas_after(group)
    assert sorted(name for meta in metas for name in meta.sample_ids) == [f"s{row}" for row in range(8)]
    assert {meta.extra_info["step"] for meta in metas} == {3}
    assert {meta.extra_info["global_forward_pad_seqlen"] for meta in metas} == {16 if mode == "dynamic" else 13}
    plans: list[Any] = [meta.extra_info.get("micro_batch_indices") for meta in metas]
    if mode == "plain":
        assert plans == [None, None]
    else:
        microbatches = [[len(step) for step in steps] for steps in plans]
        assert microbatches[0] == microbatches[1]
        assert len(microbatches[0]) == 2
    assert report["all_mb_metrics"]["rows"] == [meta.size for meta in metas]


@pytest.mark.parametrize(
    ("changes", "width"),
    [
        ({"make_sequence_length_divisible_by": 5}, 15),
        ({"dtensor_cfg": {"context_parallel_size": 4}}, 16),
        ({"dtensor_cfg": {"tensor_parallel_size": 7, "sequence_parallel": True}}, 14),
        ({"dtensor_cfg": {"tensor_parallel_size": 7, "sequence_parallel": False}}, 13),
        ({"make_sequence_length_divisible_by": 3, "dtensor_cfg": {"context_parallel_size": 2}}, 24),
    ],
    ids=["divisible_by", "context", "sequence_parallel", "tensor", "common_multiple"],
)
def test_the_width_is_what_the_ranks_can_divide(changes: dict[str, Any], width: int) -> None:
    group = SerialGroup(2)
    DataPlanePolicy(config_of(**changes), group).get_logprobs_from_meta(meta_of(LENGTHS))
    assert {meta.extra_info["global_forward_pad_seqlen"] for meta in metas_after(group)} == {width}


def test_a_width_that_was_chosen_before_is_kept_by_all_stages() -> None:
    group = SerialGroup(2)
    policy = DataPlanePolicy(config_of(), group)
    policy.get_reference_policy_logprobs_from_meta(meta_of([3, 4], global_forward_pad_seqlen=32))
    assert {meta.extra_info["global_forward_pad_seqlen"] for meta in metas_after(group)} == {32}


@pytest.mark.parametrize(
    ("meta", "error", "rule"),
    [
        (meta_of([]), ValueError, "no rows"),
        (KVBatchMeta("train", "train", ["a"]), ValueError, "sequence_lengths"),
        (meta_of([1, 2, 3]), AssertionError, "is not a multiple of shards"),
    ],
    ids=["no_rows", "no_lengths", "uneven"],
)
def test_metas_that_cannot_be_divided_reach_no_rank(meta: KVBatchMeta, error: type[Exception], rule: str) -> None:
    group = SerialGroup(2)
    with pytest.raises(error, match=rule):
        DataPlanePolicy(config_of(), group).get_logprobs_from_meta(meta)
    assert not any(worker.calls for worker in group.workers)
