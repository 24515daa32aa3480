"""Two real ranks on gloo compute from sharded logits what one process computes from whole ones, run the same number of
passes, and count the same tokens; see train_worker.py.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from tests.rank_pool import RankPool
from tests.trainer_adapter.automodel import tiny_policy, train_worker
from tests.trainer_adapter.automodel.tiny_policy import batch_of, processed
from torch import Tensor

pytestmark = pytest.mark.xdist_group("ranks")
Ranks = list[dict[str, Any]]


@pytest.fixture(scope="module")
def ranks(rank_pool: RankPool) -> Ranks:
    """What each rank got, by case."""
    return rank_pool.play(train_worker.play_cases)


def assert_close(found: Any, expected: Tensor) -> None:
    torch.testing.assert_close(torch.tensor(found), expected, rtol=1e-5, atol=1e-5)


# --- the vocabulary sharded, unevenly (7: 4 and 3), all to one rank (1) ---

vocabularies = pytest.mark.parametrize(("vocab", "packed"), [(v, packed) for v in (7, 1) for packed in (False, True)])


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
    expected = train_worker.logprobs_of(logits, microbatch, False)
    loss = train_worker.loss_of(logits, microbatch, "older", packed=False, temperature=0.7)
    for rank in ranks:
        logprobs, with_temperature = rank["layouts"][layout]
        assert_close(logprobs, expected)
        assert_close(with_temperature, loss)


def test_sharded_scores_are_gathered(ranks: Ranks) -> None:
    assert [rank["layouts"]["scores"] for rank in ranks] == [[1.0, 2.0, 3.0]] * 2


# --- gradients and statistics ---


@pytest.mark.parametrize(("case", "max_norm"), [("clipped", 0.5), ("unclipped", 1000.0)])
def test_plain_and_sharded_gradients_are_clipped_by_one_norm(ranks: Ranks, case: str, max_norm: float) -> None:
    gradients = [parameter.grad for parameter in train_worker.mixed_parameters(None, None)]
    entries = [entry for gradient in gradients if gradient is not None for entry in gradient.flatten().tolist()]
    norm = math.sqrt(sum(entry**2 for entry in entries))
    expected = [entry * min(1.0, max_norm / norm) for entry in entries]
    for rank in ranks:
        assert rank[case]["collectives"] == 1, "sums over one mesh after the other may differ between ranks"
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


# --- numbers of microbatches, and counts ---


@pytest.mark.parametrize(
    ("case", "lengths", "own"),
    [
        ("many_more", [2, 5], [[[1], [2], [1], [2], [1]], [[11], [12], [13], [14], [15]]]),
        ("equal", [2, 2], [[[1], [2]], [[11], [12]]]),
    ],
)
def test_the_rank_with_fewer_microbatches_repeats_its_own_behind_the_real_ones(
    ranks: Ranks, case: str, lengths: list[int], own: list[list[list[int]]]
) -> None:
    assert [rank[case]["own"] for rank in ranks] == own
    assert [rank[case]["length"] for rank in ranks] == lengths
    assert ranks[0][case]["summed"] == ranks[1][case]["summed"]


@pytest.mark.parametrize(
    ("case", "seqs", "toks", "dtype"),
    [
        ("masked", 3, 5, "torch.int64"),
        ("many_tokens", 2, 2**24 + 2, "torch.int64"),
        ("many_tokens_float", 2, 2**24 + 2, "torch.float32"),
    ],
)
def test_valid_samples_and_tokens_are_counted_exactly_over_all_ranks(
    ranks: Ranks, case: str, seqs: int, toks: int, dtype: str
) -> None:
    for rank in ranks:
        assert rank[case] == {"seqs": seqs, "toks": toks, "dtype": dtype}


def test_a_loss_that_needs_a_missing_mask_is_refused_only_after_the_other_ranks_have_their_counts(ranks: Ranks) -> None:
    assert "token_mask must be present" in ranks[0]["one_rank_refuses"]["error"]
    assert ranks[1]["one_rank_refuses"]["toks"] == 2
