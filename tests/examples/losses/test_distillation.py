"""Distillation against loops over candidates and over the whole vocabulary."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from examples.losses.distillation import DistillationLoss, DistillationOptions
from tests.trainer_adapter.losses.microbatches import (
    VOCAB,
    Batch,
    assert_same_value_and_gradient,
    counts_of,
    make_batch,
    make_logits,
    run_loss,
    valid_tokens,
)
from torch import Tensor

K = 4
KINDS: dict[str, dict[str, Any]] = {
    "forward": {"kl_type": "forward"},
    "reverse": {"kl_type": "reverse"},
    "mixed": {"kl_type": "mixed", "mixed_kl_weight": 0.3},
}
OPTIONS = {
    f"{kind}{', zero outside' if zero else ''}": DistillationOptions(zero_outside_topk=zero, **more)
    for kind, more in KINDS.items()
    for zero in (False, True)
}


def batch_with_teacher(k: int = K) -> Batch:
    """NaN in the teacher where nothing counts; its last position is never looked at."""
    batch = make_batch()
    teacher = 2 * torch.randn(6, 9, VOCAB, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    values, indices = teacher.topk(k)
    used = torch.zeros(6, 9, dtype=torch.bool)
    for row, column in valid_tokens(batch):
        used[row, column - 1] = True
    values = torch.where(used[..., None], values, math.nan)
    return {**batch, "teacher_topk_logits": values, "teacher_topk_indices": indices}


def normalised(scores: list[Tensor]) -> list[Tensor]:
    total = torch.stack(scores).exp().sum()
    return [score.exp() / total for score in scores]


def naive_divergence(options: DistillationOptions, scores: Tensor, teacher: Tensor, indices: Tensor) -> Tensor:
    """Both distributions written out, entry by entry, over the vocabulary or over the candidates."""
    candidates = [int(index) for index in indices]
    known = dict(zip(candidates, normalised(list(teacher)), strict=True))
    tokens = range(VOCAB) if options.zero_outside_topk else candidates
    student = dict(zip(tokens, normalised([scores[token] for token in tokens]), strict=True))
    outside = torch.tensor(options.outside_logprob, dtype=torch.float64)
    log_teacher = {token: known[token].log() if token in known else outside for token in tokens}
    forward = sum(known[token] * (log_teacher[token] - student[token].log()) for token in candidates)
    reverse = sum(student[token] * (student[token].log() - log_teacher[token]) for token in tokens)
    weight = {"forward": 1.0, "reverse": 0.0, "mixed": options.mixed_kl_weight}[options.kl_type]
    return torch.as_tensor(weight * forward + (1 - weight) * reverse)


def naive_loss(options: DistillationOptions, logits: Tensor, batch: Batch) -> Tensor:
    places = [(row, column - 1) for row, column in valid_tokens(batch)]
    columns = logits, batch["teacher_topk_logits"], batch["teacher_topk_indices"]
    return torch.stack([naive_divergence(options, *(column[place] for column in columns)) for place in places]).mean()


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_loss_and_gradient_equal_a_loop_over_the_vocabulary(options: DistillationOptions) -> None:
    logits, batch = make_logits(), batch_with_teacher()
    loss, metrics = run_loss(DistillationLoss(options), logits, batch)
    assert_same_value_and_gradient(loss, naive_loss(options, logits, batch), logits)
    assert metrics == pytest.approx(
        {"loss": loss.item(), "num_unmasked_tokens": len(valid_tokens(batch)), "num_valid_samples": 4}
    )


@pytest.mark.parametrize("kind", KINDS)
def test_with_the_whole_vocabulary_as_candidates_nothing_lies_outside(kind: Any) -> None:
    logits, batch = make_logits(), batch_with_teacher(VOCAB)
    inside, _ = run_loss(DistillationLoss(DistillationOptions(kl_type=kind)), logits, batch)
    whole, _ = run_loss(DistillationLoss(DistillationOptions(kl_type=kind, zero_outside_topk=True)), logits, batch)
    torch.testing.assert_close(inside, whole)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_a_candidate_the_teacher_filtered_out_gives_a_finite_loss(options: DistillationOptions) -> None:
    batch = batch_with_teacher()
    batch["teacher_topk_logits"][..., -1] = -math.inf
    loss, _ = run_loss(DistillationLoss(options), make_logits(), batch)
    assert loss.isfinite()


def test_a_student_that_is_the_teacher_among_the_candidates_loses_nothing_unless_mass_outside_counts() -> None:
    logits, batch = make_logits(), batch_with_teacher()
    batch["teacher_topk_logits"] = logits.detach().gather(-1, batch["teacher_topk_indices"])
    free, _ = run_loss(DistillationLoss(OPTIONS["mixed"]), logits, batch)
    counted, _ = run_loss(DistillationLoss(OPTIONS["forward, zero outside"]), logits, batch)
    assert free.item() == pytest.approx(0, abs=1e-12)
    assert counted > 0.1


def test_a_reverse_divergence_over_the_vocabulary_asks_for_the_entropy() -> None:
    batch, logprobs = batch_with_teacher(), torch.zeros(6, 8, K)
    with pytest.raises(ValueError, match="H_all"):
        DistillationLoss(OPTIONS["reverse, zero outside"])(logprobs, logprobs, None, batch, *counts_of(batch))


@pytest.mark.parametrize("kind", KINDS)
def test_given_logprobs_that_are_not_numbers_where_nothing_counts_give_no_gradient(kind: Any) -> None:
    batch, logprobs = batch_with_teacher(), torch.full((6, 8, K), math.nan, requires_grad=True)
    batch["sample_mask"] = torch.zeros(6)
    loss_fn = DistillationLoss(DistillationOptions(kl_type=kind))
    loss, _ = loss_fn(logprobs, logprobs.detach(), None, batch, *counts_of(batch))
    assert loss == 0
    assert torch.autograd.grad(loss, logprobs)[0].abs().max() == 0


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"kl_type": "sideways"}, "forward, reverse or mixed, .*'sideways'"),
        ({"mixed_kl_weight": 1.5}, r"mixed_kl_weight .*\[0, 1\].*1.5"),
    ],
)
def test_other_options_are_refused(wrong: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        DistillationOptions(**wrong)


def test_missing_candidates_are_named() -> None:
    with pytest.raises(KeyError, match="'teacher_topk_logits'"):
        run_loss(DistillationLoss(), make_logits(), make_batch())
