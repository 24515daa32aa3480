"""Batches in memory are sharded, and results are in the batch's order; see serial_group.py."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from tests.trainer_adapter.policy.serial_group import SerialGroup, answer, batch_of, config_of, no_loss

from dataplane_client.batched_data_dict import BatchedDataDict
from trainer_adapter.policy import DataPlanePolicy

MODES = ("plain", "dynamic", "packed")


def microbatches(data: BatchedDataDict[Any]) -> int:
    return sum(map(len, data.micro_batch_indices or []))


@pytest.mark.parametrize("mode", MODES)
def test_answers_come_in_the_order_of_the_batch_and_ranks_run_as_many_microbatches(mode: str) -> None:
    for seed in range(20):
        rng = random.Random(seed)
        lengths = [rng.randint(1, 16) for _ in range(rng.randint(1, 13))]
        group = SerialGroup(rng.choice([1, 2, 4]))
        data = batch_of(lengths)
        found = DataPlanePolicy(config_of(mode), group).get_logprobs(data)
        assert torch.equal(found["logprobs"], answer(data)), seed
        shards = [worker.calls[0][1]["data"] for worker in group.workers]
        if mode != "packed":
            assert len({shard.size for shard in shards}) == 1, seed
        assert len({microbatches(shard) for shard in shards}) == 1, seed
        assert (microbatches(shards[0]) > 0) == (mode != "plain"), seed


@pytest.mark.parametrize("mode", MODES)
def test_every_kind_of_answer_is_put_together(mode: str) -> None:
    policy = DataPlanePolicy(config_of(mode), SerialGroup(2))
    data = batch_of([3, 16, 7, 1, 9])
    expected = answer(data)
    assert torch.equal(policy.get_reference_policy_logprobs(data)["reference_logprobs"], -expected)
    assert torch.equal(policy.score(data)["scores"], expected.sum(1))
    topk = policy.get_topk_logits(data, 3)
    assert torch.equal(topk["topk_logits"], expected[..., None].expand(-1, -1, 3))
    assert topk["topk_indices"].dtype == torch.int64


def test_a_batch_that_does_not_divide_is_filled_up_with_its_last_row() -> None:
    group = SerialGroup(2)
    data = batch_of([3, 4, 5])
    DataPlanePolicy(config_of(), group).get_logprobs(data, micro_batch_size=1)
    rows = [worker.calls[0][1]["data"]["names"] for worker in group.workers]
    assert rows == [["r3", "r4"], ["r5", "r5"]]
    assert data.size == 3
    assert {worker.calls[0][1]["micro_batch_size"] for worker in group.workers} == {1}


def test_inference_and_training_have_token_budgets_of_their_own() -> None:
    group = SerialGroup(1)
    policy = DataPlanePolicy(config_of("packed", train_global_batch_size=8), group)
    data = batch_of([8] * 8)
    policy.get_logprobs(data)
    policy.train(data, no_loss)
    inference, training = (given["data"] for _, given in group.workers[0].calls)
    assert inference.micro_batch_lengths == [[32, 32]]
    assert training.micro_batch_lengths == [[16, 16, 16, 16]]


@pytest.mark.parametrize("mode", MODES)
def test_training_deals_out_every_global_batch_by_itself(mode: str) -> None:
    group = SerialGroup(2)
    data = batch_of([1, 2, 3, 4, 5, 6, 7, 8])
    DataPlanePolicy(config_of(mode), group).train(data, no_loss)
    shards = [worker.calls[0][1]["data"] for worker in group.workers]
    for step, names in enumerate([{"r1", "r2", "r3", "r4"}, {"r5", "r6", "r7", "r8"}]):
        parts = [shard.get_batch(step, 2)["names"] for shard in shards]
        assert sorted(parts[0] + parts[1]) == sorted(names)


def test_training_reports_the_global_loss_once_and_the_metrics_of_all_ranks() -> None:
    policy = DataPlanePolicy(config_of(), SerialGroup(2))
    report = policy.train(batch_of([1, 2, 3, 4]), no_loss)
    assert report["loss"].tolist() == [8.0]
    assert report["grad_norm"].item() == 2.0
    assert report["all_mb_metrics"] == {"rows": [2, 2], "rank": [0, 1], "only_here": [0.5]}


@pytest.mark.parametrize(
    ("rows", "gbs", "rule"),
    [(6, None, r"Total batch size \(6\) is not a multiple"), (3, 3, r"Batch size \(3\) is not a multiple of shards")],
)
def test_rows_that_are_trained_on_must_divide(rows: int, gbs: int | None, rule: str) -> None:
    group = SerialGroup(2)
    with pytest.raises(AssertionError, match=rule):
        DataPlanePolicy(config_of(), group).train(batch_of([2] * rows), no_loss, gbs=gbs)
    assert not any(worker.calls for worker in group.workers)


def test_a_step_in_parts_deals_out_each_part() -> None:
    group = SerialGroup(2)
    policy = DataPlanePolicy(config_of(), group)
    policy.begin_train_step(no_loss, global_valid_seqs=4.0, global_valid_toks=9.0)
    metrics = policy.train_microbatches(batch_of([2, 2, 2, 2]))
    assert metrics == [{"rank": rank, "row": row} for rank, row in [(0, 0), (0, 1), (1, 2), (1, 3)]]
    assert policy.finish_train_step()["all_mb_metrics"]["rank"] == [0, 1]
    policy.abort_train_step()
    began = {"loss_fn": no_loss, "global_valid_seqs": 4.0, "global_valid_toks": 9.0, "num_global_batches": 1}
    for worker in group.workers:
        assert worker.calls == [("begin_train_step", began), ("abort_train_step", {})]
