"""Two real ranks on gloo compute from sharded logits what one process computes from whole ones; see train_worker.py."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from tests.ranks import run_ranks
from tests.trainer_adapter.automodel import tiny_policy, train_worker
from tests.trainer_adapter.automodel.tiny_policy import batch_of, processed
from torch import Tensor

pytestmark = [
    pytest.mark.xdist_group("ranks"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="compares with ranks that compute on the CPU"),
]
Ranks = list[dict[str, Any]]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Ranks:
    """What each rank got, by case."""
    folder = tmp_path_factory.mktemp("gloo")
    run_ranks(train_worker.be_a_rank, [(rank, folder) for rank in range(2)])
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2)]


def assert_close(found: Any, expected: Tensor) -> None:
    torch.testing.assert_close(torch.tensor(found), expected, rtol=1e-5, atol=1e-5)


def assert_same_gradients(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        assert_close(found[name], torch.tensor(gradient))


# --- the vocabulary sharded, evenly (64), unevenly (7: 4 and 3), all to one rank (1) ---

vocabularies = pytest.mark.parametrize(
    ("vocab", "packed"), [(v, packed) for v in (64, 7, 1) for packed in (False, True)]
)


@vocabularies
@pytest.mark.parametrize("loss", train_worker.LOSSES)
def test_losses_and_their_gradients_over_a_sharded_vocabulary(
    ranks: Ranks, vocab: int, packed: bool, loss: str
) -> None:
    microbatch = processed(batch_of(train_worker.LENGTHS, vocab=vocab), packed)
    logits = train_worker.logits_of(microbatch, vocab).requires_grad_()
    expected = train_worker.loss_of(logits, microbatch, loss, packed)
    expected.backward()
    assert logits.grad is not None
    found = [rank[f"vocab {vocab} {packed}"][loss] for rank in ranks]
    for rank in found:
        assert rank["loss"] == pytest.approx(expected.item(), rel=1e-5)
    gradient = torch.cat([torch.tensor(rank["gradient"]) for rank in found], dim=-1)
    torch.testing.assert_close(gradient, logits.grad, rtol=1e-5, atol=1e-5)
    assert bool(gradient.any()) is (vocab > 1)


@vocabularies
@pytest.mark.parametrize("how", ["logprobs", "chunked", "filtered"])
def test_logprobs_over_a_sharded_vocabulary(ranks: Ranks, vocab: int, packed: bool, how: str) -> None:
    microbatch = processed(batch_of(train_worker.LENGTHS, vocab=vocab), packed)
    sampling = {"sampling_params": train_worker.FILTER} if how == "filtered" else {}
    expected = train_worker.logprobs_of(train_worker.logits_of(microbatch, vocab), microbatch, packed, **sampling)
    for rank in ranks:
        assert_close(rank[f"vocab {vocab} {packed}"][how], expected)


@vocabularies
def test_the_largest_logits_of_a_sharded_vocabulary(ranks: Ranks, vocab: int, packed: bool) -> None:
    microbatch = processed(batch_of(train_worker.LENGTHS, vocab=vocab), packed)
    logits = train_worker.logits_of(microbatch, vocab)
    for place, k in enumerate((1, 3, 100)):
        values, ids = train_worker.topk_of(logits, microbatch, k, packed)
        for rank in ranks:
            found_values, found_ids = rank[f"vocab {vocab} {packed}"]["topk"][place]
            assert_close(found_values, values)
            assert found_ids == ids.tolist()


@pytest.mark.parametrize("layout", ["replicated", "by_position"])
def test_logits_that_are_sharded_in_another_way_are_gathered(ranks: Ranks, layout: str) -> None:
    microbatch = processed(batch_of(train_worker.LENGTHS), packed=False)
    logits = train_worker.logits_of(microbatch, tiny_policy.VOCAB)
    for rank in ranks:
        assert_close(rank["layouts"][layout], train_worker.logprobs_of(logits, microbatch, False))


def test_sharded_scores_are_gathered(ranks: Ranks) -> None:
    for rank in ranks:
        assert rank["layouts"]["scores"] == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("packed", [False, True])
def test_a_real_model_with_a_sharded_last_layer_trains_as_on_one_rank(ranks: Ranks, packed: bool) -> None:
    expected = train_worker.vocab_parallel_model(None, packed)
    for rank in ranks:
        found = rank[f"vocab-parallel {packed}"]
        assert found["losses"] == pytest.approx(expected["losses"], rel=1e-5)
        assert_same_gradients(found["gradients"], expected["gradients"])


# --- samples sharded ---


def test_sharded_ranks_with_unequal_microbatches_train_as_one_with_all_of_them(ranks: Ranks) -> None:
    rows = [lengths for own, dummies in train_worker.ROWS for lengths in own[: len(own) - dummies]]
    expected = train_worker.data_parallel_model(None, rows, 0)
    assert sum(rank["data-parallel"]["loss"] for rank in ranks) == pytest.approx(expected["loss"], rel=1e-5)
    for rank in ranks:
        assert rank["data-parallel"]["norm"] == pytest.approx(expected["norm"], rel=1e-4)
        assert_same_gradients(rank["data-parallel"]["gradients"], expected["gradients"])


# --- positions sharded ---


@pytest.mark.parametrize("loss", train_worker.LOSSES)
def test_losses_and_their_gradients_over_sharded_positions(ranks: Ranks, loss: str) -> None:
    microbatch = processed(batch_of(train_worker.LENGTHS), packed=False)
    logits = train_worker.logits_of(microbatch, tiny_policy.VOCAB).requires_grad_()
    expected = train_worker.loss_of(logits, microbatch, loss, False)
    expected.backward()
    assert logits.grad is not None
    for rank, positions in zip(ranks, train_worker.POSITIONS, strict=True):
        assert rank["sequence"][loss]["loss"] == pytest.approx(expected.item(), rel=1e-5)
        assert_close(rank["sequence"][loss]["gradient"], logits.grad[:, positions])


def test_logprobs_and_largest_logits_over_sharded_positions(ranks: Ranks) -> None:
    microbatch = processed(batch_of(train_worker.LENGTHS), packed=False)
    logits = train_worker.logits_of(microbatch, tiny_policy.VOCAB)
    values, ids = train_worker.topk_of(logits, microbatch, 4)
    for rank in ranks:
        assert_close(rank["sequence"]["logprobs"], train_worker.logprobs_of(logits, microbatch, False))
        assert_close(rank["sequence"]["topk"][0], values)
        assert rank["sequence"]["topk"][1] == ids.tolist()


# --- gradients and statistics ---


@pytest.mark.parametrize(("case", "max_norm"), [("clipped", 0.5), ("unclipped", 1000.0)])
def test_plain_and_sharded_gradients_are_clipped_by_one_norm(ranks: Ranks, case: str, max_norm: float) -> None:
    gradients = [parameter.grad for parameter in train_worker.mixed_parameters(None, None)]
    entries = [entry for gradient in gradients if gradient is not None for entry in gradient.flatten().tolist()]
    norm = math.sqrt(sum(entry**2 for entry in entries))
    expected = [entry * min(1.0, max_norm / norm) for entry in entries]
    for rank in ranks:
        assert rank[case]["norm"] == pytest.approx(norm, rel=1e-5)
        assert torch.tensor(rank[case]["gradients"]).flatten().tolist() == pytest.approx(expected, rel=1e-4, abs=1e-7)


def test_statistics_sum_the_losses_over_ranks_and_collect_this_ranks_metrics(ranks: Ranks) -> None:
    for number, rank in enumerate(ranks):
        assert rank["statistics"] == {
            "global_loss": [3.0, 10.0],
            "grad_norm": 2.0,
            "rank": number,
            "gpu_name": "cpu",
            "model_dtype": "torch.bfloat16",
            "all_mb_metrics": {"loss": [0.25, number], "lr": [0.1]},
        }
