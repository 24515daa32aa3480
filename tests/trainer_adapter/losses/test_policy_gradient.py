"""The clipped policy-gradient loss against a loop over tokens, option by option, and its metrics."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.trainer_adapter.losses.microbatches import (
    Batch,
    assert_same_value_and_gradient,
    counts_of,
    make_batch,
    make_logits,
    naive_logprob,
    run_loss,
    valid_tokens,
)
from torch import Tensor

from trainer_adapter.losses import (
    ClippedPolicyGradientLoss,
    ClippedPolicyGradientOptions,
    NLLLoss,
    next_token_logprobs,
)

DAPO = ClippedPolicyGradientOptions(ratio_clip_min=0.2, ratio_clip_max=0.28)
PER_ROW = replace(DAPO, token_level_loss=False)
GSPO = replace(PER_ROW, sequence_level_importance_ratios=True, ratio_clip_min=0.03, ratio_clip_max=0.05)
CORRECTED: Any = {"use_importance_sampling_correction": True}
KL_TYPES: tuple[Any, ...] = ("k1", "k2", "k3")
OPTIONS = {
    "defaults": ClippedPolicyGradientOptions(),
    "asymmetric clip": DAPO,
    "dual clip": replace(DAPO, ratio_clip_c=1.6),
    "mean over rows": PER_ROW,
    "sequence-level ratios": GSPO,
    **{kl: replace(DAPO, reference_policy_kl_penalty=0.1, reference_policy_kl_type=kl) for kl in KL_TYPES},
    "k3, mean over rows": replace(PER_ROW, reference_policy_kl_penalty=0.1),
    "importance correction": replace(DAPO, **CORRECTED),
    "truncated correction": replace(DAPO, **CORRECTED, truncated_importance_sampling_ratio=1.1),
    "corrected sequence-level ratios": replace(GSPO, **CORRECTED),
}


class Naive:
    """One token after the other, in the order of the formulas."""

    def __init__(self, options: ClippedPolicyGradientOptions, logits: Tensor, batch: Batch) -> None:
        self.options, self.batch = options, batch
        self.tokens = valid_tokens(batch)
        self.now = {place: naive_logprob(logits, batch, *place) for place in self.tokens}

    def loss(self) -> Tensor:
        each = {place: self.token_loss(place) for place in self.tokens}
        if self.options.token_level_loss:
            return torch.stack(list(each.values())).mean()
        rows = [row for row, valid in enumerate(self.batch["sample_mask"]) if valid]
        means = [torch.stack([each[place] for place in self.tokens if place[0] == row]).mean() for row in rows]
        return torch.stack(means).mean()

    def token_loss(self, place: tuple[int, int]) -> Tensor:
        loss = self.clipped(place) * self.weight(place)
        if self.options.reference_policy_kl_penalty:
            loss = loss + self.options.reference_policy_kl_penalty * self.kl(place)
        return loss

    def clipped(self, place: tuple[int, int]) -> Tensor:
        options, ratio = self.options, self.ratio(place)
        advantage: Tensor = self.batch["advantages"][place]
        inside = ratio.clamp(1 - options.ratio_clip_min, 1 + options.ratio_clip_max)
        loss = -torch.minimum(advantage * ratio, advantage * inside)
        if options.ratio_clip_c is not None and advantage < 0:
            loss = torch.minimum(loss, -advantage * options.ratio_clip_c)
        return loss

    def ratio(self, place: tuple[int, int]) -> Tensor:
        logs = [self.now[other] - self.batch["prev_logprobs"][other] for other in self.beside(place)]
        return torch.stack(logs).mean().exp()

    def weight(self, place: tuple[int, int]) -> Tensor:
        if not self.options.use_importance_sampling_correction:
            return torch.tensor(1.0)
        prev, drawn = self.batch["prev_logprobs"], self.batch["generation_logprobs"]
        weight = torch.stack([prev[other] - drawn[other] for other in self.beside(place)]).mean().exp()
        bound = self.options.truncated_importance_sampling_ratio
        return weight if bound is None else weight.clamp(max=bound)

    def beside(self, place: tuple[int, int]) -> list[tuple[int, int]]:
        """The tokens that share a ratio with this one."""
        if not self.options.sequence_level_importance_ratios:
            return [place]
        return [other for other in self.tokens if other[0] == place[0]]

    def kl(self, place: tuple[int, int]) -> Tensor:
        difference = self.now[place] - self.batch["reference_policy_logprobs"][place]
        estimates: tuple[Tensor, ...] = (difference, difference**2 / 2, torch.exp(-difference) - 1 + difference)
        return estimates[KL_TYPES.index(self.options.reference_policy_kl_type)]


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
@pytest.mark.parametrize("seed", [0, 1])
def test_loss_and_gradient_equal_a_loop_over_tokens(options: ClippedPolicyGradientOptions, seed: int) -> None:
    logits, batch = make_logits(seed), make_batch(seed)
    loss, metrics = run_loss(ClippedPolicyGradientLoss(options), logits, batch)
    assert_same_value_and_gradient(loss, Naive(options, logits, batch).loss(), logits)
    assert metrics["loss"] == pytest.approx(loss.item())


def test_metrics_are_means_over_the_tokens_that_count() -> None:
    logits, batch = make_logits(), make_batch()
    options = replace(OPTIONS["truncated correction"], reference_policy_kl_penalty=0.1)
    _, metrics = run_loss(ClippedPolicyGradientLoss(options), logits, batch)
    naive = Naive(options, logits, batch)
    assert metrics == pytest.approx({"loss": naive.loss().item(), **naive_metrics(naive)}, rel=1e-6)


def naive_metrics(naive: Naive) -> dict[str, float]:
    tokens, batch = naive.tokens, naive.batch
    ratios = [naive.ratio(place).item() for place in tokens]
    clamped = [min(max(ratio, 0.8), 1.28) for ratio in ratios]
    stopped = [
        float(ratio > 1.28 if batch["advantages"][place] > 0 else ratio < 0.8)
        for place, ratio in zip(tokens, ratios, strict=True)
    ]
    now = [naive.now[place].item() for place in tokens]
    drawn = [batch["generation_logprobs"][place].item() for place in tokens]
    prev = [batch["prev_logprobs"][place].item() for place in tokens]
    means: dict[str, list[float]] = {
        "kl_penalty": [naive.kl(place).item() for place in tokens],
        "clip_fraction": stopped,
        "probs_ratio": ratios,
        "probs_ratio_clamped": clamped,
        "approx_entropy": [-new * math.exp(new - old) for new, old in zip(now, drawn, strict=True)],
        "token_mult_prob_error": [math.exp(abs(a - b)) for a, b in zip(prev, drawn, strict=True)],
        "sampling_importance_ratio": [naive.weight(place).item() for place in tokens],
    }
    return {
        **{name: sum(values) / len(tokens) for name, values in means.items()},
        "probs_ratio_min": min(ratios),
        "probs_ratio_max": max(ratios),
        "probs_ratio_clamped_min": min(clamped),
        "probs_ratio_clamped_max": max(clamped),
        "num_unmasked_tokens": len(tokens),
        "num_valid_samples": 4,
    }


def one_token(ratio: float, advantage: float, **columns: float) -> tuple[Tensor, Batch]:
    """The log-probability of a single token with this ratio, and its batch."""
    batch: Batch = {
        "token_mask": torch.tensor([[0, 1]]),
        "sample_mask": torch.tensor([1]),
        "prev_logprobs": torch.tensor([[0.0, -1.0]]),
        "advantages": torch.tensor([[0.0, advantage]]),
        **{key: torch.tensor([[0.0, value]]) for key, value in columns.items()},
    }
    return torch.tensor([[math.log(ratio) - 1.0]]), batch


ONE = (torch.tensor(1), torch.tensor(1))


def shares_of(
    options: ClippedPolicyGradientOptions | None, logprobs: Tensor, batch: Batch, counts: tuple[Tensor, Tensor] = ONE
) -> tuple[float, Any, dict[str, Any]]:
    """Loss, derivatives by the log-probabilities, metrics; None: of NLLLoss."""
    given = logprobs.detach().requires_grad_()
    loss_fn = NLLLoss() if options is None else ClippedPolicyGradientLoss(options)
    loss, metrics = loss_fn(given, batch, *counts)
    return loss.item(), torch.autograd.grad(loss, given)[0], metrics


@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_a_ratio_beyond_the_range_of_floats_gives_a_finite_loss_and_gradient(advantage: float) -> None:
    logprobs, batch = one_token(1.0, advantage, reference_policy_logprobs=math.inf)
    loss, derivative, _ = shares_of(OPTIONS["k3"], logprobs + 200, batch)
    assert math.isfinite(loss)
    assert math.isfinite(derivative)


@pytest.mark.parametrize("drawn", [-math.inf, math.nan])
def test_a_token_without_a_known_generation_logprob_gets_weight_zero_and_no_mismatch(drawn: float) -> None:
    logprobs, batch = one_token(1.0, 1.0, generation_logprobs=drawn)
    loss, derivative, metrics = shares_of(OPTIONS["truncated correction"], logprobs, batch)
    assert (loss, derivative.item(), metrics["sampling_importance_ratio"]) == (0.0, 0.0, 0.0)
    assert (metrics["token_mult_prob_error"], metrics["approx_entropy"]) == (1.0, 1.0)


def test_a_mismatch_beyond_the_range_of_floats_is_finite() -> None:
    """Engines write -9999 for a probability of 0."""
    logprobs, batch = one_token(1.0, 1.0, generation_logprobs=-9999.0)
    assert math.isfinite(shares_of(ClippedPolicyGradientOptions(), logprobs, batch)[2]["token_mult_prob_error"])


@pytest.mark.parametrize("options", [*OPTIONS.values(), None], ids=[*OPTIONS, "NLL"])
@pytest.mark.parametrize("when", ["now", "then"])
def test_a_token_that_was_not_to_be_sampled_counts_as_masked(
    options: ClippedPolicyGradientOptions | None, when: str
) -> None:
    """Under top_k or top_p, now or when prev_logprobs were computed. The divisors stay those of the whole step."""
    batch = make_batch()
    counts, (row, column) = counts_of(batch), valid_tokens(batch)[0]
    logprobs = next_token_logprobs(make_logits(), batch["input_ids"]).detach()
    batch["prev_logprobs"][:, 1:] = logprobs
    excluding = logprobs if when == "now" else batch["prev_logprobs"][:, 1:]
    excluding[row, column - 1] = -math.inf
    loss, gradient, metrics = shares_of(options, logprobs, batch, counts)
    if options is not None or when == "now":  # NLLLoss reads no prev_logprobs
        batch["token_mask"][row, column] = False
    expected, expected_gradient, expected_metrics = shares_of(options, logprobs, batch, counts)
    assert loss == expected
    assert metrics == expected_metrics
    assert all(map(math.isfinite, metrics.values()))
    assert torch.equal(gradient, expected_gradient)
    assert gradient[row].count_nonzero() == len([other for other in valid_tokens(batch) if other[0] == row])


def test_a_microbatch_without_valid_tokens_gives_zero_and_sentinels() -> None:
    logits, batch = make_logits(), make_batch()
    batch["sample_mask"] = torch.zeros(6)
    loss, metrics = run_loss(ClippedPolicyGradientLoss(OPTIONS["k3"]), logits, batch)
    assert torch.autograd.grad(loss, logits)[0].abs().max() == 0
    assert (metrics.pop("probs_ratio_min"), metrics.pop("probs_ratio_clamped_min")) == (math.inf, math.inf)
    assert (metrics.pop("probs_ratio_max"), metrics.pop("probs_ratio_clamped_max")) == (-math.inf, -math.inf)
    assert set(metrics.values()) == {0.0}


@pytest.mark.parametrize(
    ("options", "column"),
    [
        ("defaults", "prev_logprobs"),
        ("defaults", "advantages"),
        ("defaults", "token_mask"),
        ("defaults", "sample_mask"),
        ("k3", "reference_policy_logprobs"),
        ("importance correction", "generation_logprobs"),
    ],
)
def test_a_missing_column_is_named(options: str, column: str) -> None:
    batch = make_batch()
    counts = counts_of(batch)
    del batch[column]
    with pytest.raises(KeyError, match=f"'{column}'"):
        ClippedPolicyGradientLoss(OPTIONS[options])(torch.zeros(6, 8), batch, *counts)


def test_a_column_of_another_width_is_refused_with_both_shapes() -> None:
    batch = make_batch()
    batch["advantages"] = torch.zeros(6)
    with pytest.raises(ValueError, match=r"advantages .*\[6, 9\], .*\[6\]"):
        run_loss(ClippedPolicyGradientLoss(), make_logits(), batch)


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"ratio_clip_min": -0.1}, r"ratio_clip_min must lie in \[0, 1\]"),
        ({"ratio_clip_min": 1.1}, r"ratio_clip_min must lie in \[0, 1\]"),
        ({"ratio_clip_max": -0.1}, "ratio_clip_max be at least 0"),
        ({"ratio_clip_c": 1.1}, "ratio_clip_c must be above 1"),
        ({"sequence_level_importance_ratios": True}, "needs token_level_loss=False"),
        ({"reference_policy_kl_type": "k4"}, "k1, k2 or k3, .*'k4'"),
        ({"truncated_importance_sampling_ratio": 2.0}, "needs use_importance_sampling_correction=True"),
        ({"truncated_importance_sampling_ratio": 0.0, **CORRECTED}, "truncated_importance_sampling_ratio .*0.0"),
    ],
)
def test_options_that_contradict_themselves_are_refused(wrong: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        ClippedPolicyGradientOptions(**wrong)
