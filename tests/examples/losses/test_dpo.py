"""The preference loss against a loop over pairs."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from examples.losses.dpo import DPOLoss, DPOOptions
from tests.trainer_adapter.losses.microbatches import (
    Batch,
    assert_same_value_and_gradient,
    make_batch,
    make_logits,
    naive_logprob,
    run_loss,
    valid_tokens,
)
from torch import Tensor

OPTIONS = {
    "defaults": DPOOptions(),
    "beta": DPOOptions(reference_policy_kl_penalty=0.5),
    "averaged": DPOOptions(reference_policy_kl_penalty=0.5, preference_average_log_probs=True),
    "with SFT": DPOOptions(sft_loss_weight=0.3),
    "with averaged SFT": DPOOptions(sft_loss_weight=0.3, sft_average_log_probs=True, preference_loss_weight=2.0),
    "SFT alone": DPOOptions(sft_loss_weight=1.0, preference_loss_weight=0.0),
}


class Naive:
    """Pair after pair; pair 1 of the batch is invalid."""

    def __init__(self, options: DPOOptions, logits: Tensor, batch: Batch) -> None:
        self.options, self.logits, self.batch = options, logits, batch
        self.pairs = [row for row in (0, 2, 4) if batch["sample_mask"][row]]

    def over_row(self, row: int, averaged: bool, reference: bool) -> Tensor:
        places = [place for place in valid_tokens(self.batch) if place[0] == row]
        known = self.batch["reference_policy_logprobs"]
        logs = [naive_logprob(self.logits, self.batch, *place) - reference * known[place] for place in places]
        return torch.stack(logs).mean() if averaged else torch.stack(logs).sum()

    def reward(self, row: int) -> Tensor:
        averaged = self.options.preference_average_log_probs
        return self.options.reference_policy_kl_penalty * self.over_row(row, averaged, reference=True)

    def preference(self) -> Tensor:
        margins = [self.reward(row) - self.reward(row + 1) for row in self.pairs]
        return torch.stack([torch.log(1 + torch.exp(-margin)) for margin in margins]).mean()

    def sft(self) -> Tensor:
        averaged = self.options.sft_average_log_probs
        return -torch.stack([self.over_row(row, averaged, reference=False) for row in self.pairs]).mean()

    def loss(self) -> Tensor:
        return self.options.preference_loss_weight * self.preference() + self.options.sft_loss_weight * self.sft()


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_loss_and_gradient_equal_a_loop_over_pairs(options: DPOOptions) -> None:
    logits, batch = make_logits(), make_batch()
    loss, _ = run_loss(DPOLoss(options), logits, batch)
    assert_same_value_and_gradient(loss, Naive(options, logits, batch).loss(), logits)


def test_metrics_are_means_over_the_valid_pairs() -> None:
    logits, batch = make_logits(), make_batch()
    _, metrics = run_loss(DPOLoss(OPTIONS["with SFT"]), logits, batch)
    naive = Naive(OPTIONS["with SFT"], logits, batch)
    chosen = [naive.reward(row).item() for row in (0, 4)]
    rejected = [naive.reward(row).item() for row in (1, 5)]
    expected = {
        "loss": naive.loss().item(),
        "preference_loss": naive.preference().item(),
        "sft_loss": naive.sft().item(),
        "accuracy": sum(a > b for a, b in zip(chosen, rejected, strict=True)) / 2,
        "rewards_chosen_mean": sum(chosen) / 2,
        "rewards_rejected_mean": sum(rejected) / 2,
        "num_valid_samples": 4,
    }
    assert metrics == pytest.approx(expected, rel=1e-6)


def test_the_policy_that_is_its_own_reference_loses_log_two_and_wins_no_pair() -> None:
    batch = make_batch()
    logprobs = batch["reference_policy_logprobs"][:, 1:]
    loss, metrics = DPOLoss()(logprobs, batch, torch.tensor(4), torch.tensor(20))
    assert loss.item() == pytest.approx(math.log(2))
    assert metrics["accuracy"] == 0


def test_a_pair_with_one_invalid_row_does_not_count() -> None:
    logits, batch = make_logits(), make_batch()
    batch["sample_mask"][5] = 0.0
    loss, _ = run_loss(DPOLoss(), logits, batch)
    assert torch.autograd.grad(loss, logits)[0][4:].abs().max() == 0


def test_an_odd_number_of_rows_is_refused() -> None:
    batch = {key: value[:5] for key, value in make_batch().items()}
    with pytest.raises(ValueError, match="5 rows"):
        run_loss(DPOLoss(), make_logits()[:5], batch)


def test_a_great_margin_costs_nothing_and_a_great_loss_stays_finite() -> None:
    batch = {key: value[:2] for key, value in make_batch().items()}
    options = replace(OPTIONS["defaults"], reference_policy_kl_penalty=1.0)
    one_sided = batch["reference_policy_logprobs"][:, 1:].nan_to_num(0.0, 0.0, 0.0)
    margin = torch.tensor([[1000.0], [-1000.0]])
    won, _ = DPOLoss(options)(one_sided + margin, batch, torch.tensor(2), torch.tensor(9))
    lost, _ = DPOLoss(options)(one_sided - margin, batch, torch.tensor(2), torch.tensor(9))
    assert won == 0
    assert 1000 < lost < math.inf
