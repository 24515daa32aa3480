from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from logprobs import global_mean, token_logprobs
from policy_loss import ClippedPolicyLoss

ROWS, WIDTH, VOCAB = 4, 7, 11
LOSS = ClippedPolicyLoss(clip_low=0.2, clip_high=0.28)


@pytest.fixture
def logits() -> Tensor:
    torch.manual_seed(0)
    return torch.randn(ROWS, WIDTH, VOCAB, requires_grad=True)


@pytest.fixture
def batch(logits: Tensor) -> dict[str, Tensor]:
    """Ratios on both sides of the clip range; row 1 is invalid; row 2 has a response token in column 0."""
    input_ids = torch.randint(VOCAB, (ROWS, WIDTH))
    logprobs = token_logprobs(logits.detach(), input_ids)
    token_mask = torch.arange(WIDTH) >= torch.tensor([2, 1, 0, 5])[:, None]
    return {
        "input_ids": input_ids,
        "token_mask": token_mask,
        "sample_mask": torch.tensor([1.0, 0.0, 1.0, 1.0]),
        "prev_logprobs": logprobs + torch.empty(ROWS, WIDTH).uniform_(-0.6, 0.6),
        "advantages": torch.randn(ROWS, WIDTH),
    }


def _counts(batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    sample_mask = batch["sample_mask"]
    return sample_mask.sum(), (batch["token_mask"][:, 1:] * sample_mask[:, None]).sum()


def _naive_logprob(logits: Tensor, ids: Tensor, row: int, column: int) -> Tensor:
    scores = logits[row, column - 1]
    return scores[int(ids[row, column])] - scores.exp().sum().log()


def _naive_loss(logits: Tensor, batch: dict[str, Tensor]) -> Tensor:
    total, tokens = torch.zeros(()), 0
    for row in range(ROWS):
        for column in range(1, WIDTH):
            if not batch["token_mask"][row, column] or not batch["sample_mask"][row]:
                continue
            now = _naive_logprob(logits, batch["input_ids"], row, column)
            ratio = torch.exp(now - batch["prev_logprobs"][row, column])
            clipped = torch.clamp(ratio, 0.8, 1.28)
            advantage = batch["advantages"][row, column]
            total = total - torch.minimum(advantage * ratio, advantage * clipped)
            tokens += 1
    return total / tokens


def _gradient(loss: Tensor, logits: Tensor) -> Tensor:
    return torch.autograd.grad(loss, logits)[0]


def test_token_logprobs_equal_a_naive_loop_and_column_zero_is_zero(logits: Tensor) -> None:
    ids = torch.randint(VOCAB, (ROWS, WIDTH))
    expected = [[0.0, *(_naive_logprob(logits, ids, row, c).item() for c in range(1, WIDTH))] for row in range(ROWS)]
    torch.testing.assert_close(token_logprobs(logits, ids).detach(), torch.tensor(expected))


def test_token_logprobs_are_computed_in_fp32_whatever_the_logits_are() -> None:
    logits, ids = torch.randn(2, 5, VOCAB).bfloat16(), torch.randint(VOCAB, (2, 5))
    assert torch.equal(token_logprobs(logits, ids), token_logprobs(logits.float(), ids))


def test_loss_and_gradient_equal_a_naive_double_loop(logits: Tensor, batch: dict[str, Tensor]) -> None:
    loss, metrics = LOSS(logits, batch, *_counts(batch))
    naive = _naive_loss(logits, batch)
    torch.testing.assert_close(loss, naive)
    torch.testing.assert_close(_gradient(loss, logits), _gradient(naive, logits))
    assert metrics["loss"] == pytest.approx(naive.item())
    assert metrics["num_valid_samples"] == 3
    assert metrics["num_unmasked_tokens"] == _counts(batch)[1]


def test_shares_of_unequal_microbatches_add_up_to_the_global_mean(logits: Tensor, batch: dict[str, Tensor]) -> None:
    counts = _counts(batch)
    whole, metrics = LOSS(logits, batch, *counts)
    parts = [
        LOSS(logits[rows], {name: column[rows] for name, column in batch.items()}, *counts)
        for rows in (slice(0, 1), slice(1, 4))
    ]
    torch.testing.assert_close(sum(loss for loss, _ in parts), whole)
    for name in metrics:
        assert sum(part[name] for _, part in parts) == pytest.approx(metrics[name])


@pytest.mark.parametrize("garbage", [math.nan, math.inf, -math.inf, 1e30], ids=str)
def test_garbage_outside_the_masks_changes_neither_loss_nor_gradient(
    logits: Tensor, batch: dict[str, Tensor], garbage: float
) -> None:
    clean, _ = LOSS(logits, batch, *_counts(batch))
    outside = ~(batch["token_mask"] & batch["sample_mask"].bool()[:, None])
    dirty_batch = {
        **batch,
        "prev_logprobs": batch["prev_logprobs"].masked_fill(outside, garbage),
        "advantages": batch["advantages"].masked_fill(outside, garbage),
    }
    dirty, _ = LOSS(logits, dirty_batch, *_counts(batch))
    assert torch.equal(clean, dirty)
    assert torch.equal(_gradient(clean, logits), _gradient(dirty, logits))


@pytest.mark.parametrize(
    ("advantage", "ratio", "flows"),
    [
        pytest.param(1.0, 1.27, True, id="good, within the upper clip"),
        pytest.param(1.0, 1.29, False, id="good, beyond the upper clip"),
        pytest.param(1.0, 0.5, True, id="good, made rarer"),
        pytest.param(-1.0, 0.81, True, id="bad, within the lower clip"),
        pytest.param(-1.0, 0.79, False, id="bad, beyond the lower clip"),
        pytest.param(-1.0, 1.5, True, id="bad, made likelier"),
    ],
)
def test_a_token_past_the_clip_gives_no_gradient_further_that_way(advantage: float, ratio: float, flows: bool) -> None:
    logits = torch.zeros(1, 2, VOCAB, requires_grad=True)
    batch = {
        "input_ids": torch.tensor([[0, 3]]),
        "token_mask": torch.tensor([[False, True]]),
        "sample_mask": torch.ones(1),
        "prev_logprobs": torch.tensor([[0.0, -math.log(VOCAB) - math.log(ratio)]]),
        "advantages": torch.full((1, 2), advantage),
    }
    loss, metrics = LOSS(logits, batch, torch.tensor(1.0), torch.tensor(1.0))
    assert bool(_gradient(loss, logits).any()) is flows
    assert metrics["probs_ratio"] == pytest.approx(ratio, abs=1e-5)
    assert metrics["clipped_fraction"] == pytest.approx(float(not 0.8 <= ratio <= 1.28))


def test_a_mean_over_nothing_is_zero() -> None:
    assert global_mean(torch.ones(3), torch.zeros(3, dtype=torch.bool), torch.tensor(0.0)) == 0
