"""Losses of both shapes get the input that they ask for."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from tests.trainer_adapter.losses.microbatches import (
    assert_same_value_and_gradient,
    counts_of,
    make_batch,
    make_logits,
    naive_logprob,
    run_loss,
    valid_tokens,
)
from torch import Tensor

from trainer_adapter.losses import LossFunction, LossInputType, LossResult, NLLLoss, call_loss

SEQS, TOKS = torch.tensor(2), torch.tensor(5)


class NewerShape:
    zero_outside_topk = False

    def __init__(self, input_type: object) -> None:
        self.input_type = input_type

    def __call__(
        self, *, data: Mapping[str, Any], global_valid_seqs: Tensor, global_valid_toks: Tensor, **inputs: Any
    ) -> LossResult:
        return torch.zeros(()), {"args": (data, global_valid_seqs, global_valid_toks), **inputs}


def test_a_loss_for_distillation_gets_both_distributions_and_the_entropy_where_it_asks() -> None:
    batch = {
        "input_ids": torch.zeros(1, 2, dtype=torch.int64),
        "token_mask": torch.ones(1, 2),
        "sample_mask": torch.ones(1),
        "teacher_topk_logits": torch.tensor([[[0.9, 0.1], [0.5, 0.5]]]).log() + 3,
        "teacher_topk_indices": torch.tensor([[[2, 0], [0, 1]]]),
    }
    logits = torch.tensor([[[0.25, 0.5, 0.25], [1.0, 1.0, 1.0]]]).log()
    loss_fn = NewerShape(LossInputType.DISTILLATION)
    _, inside = call_loss(loss_fn, logits, batch, SEQS, TOKS)
    torch.testing.assert_close(inside["teacher_topk_logprobs"].exp(), torch.tensor([[[0.9, 0.1]]]))
    torch.testing.assert_close(inside["student_topk_logprobs"].exp(), torch.tensor([[[0.5, 0.5]]]))
    assert inside["H_all"] is None
    loss_fn.zero_outside_topk = True
    _, whole = call_loss(loss_fn, logits, batch, SEQS, TOKS)
    torch.testing.assert_close(whole["student_topk_logprobs"].exp(), torch.tensor([[[0.25, 0.25]]]))
    torch.testing.assert_close(whole["H_all"], 1.5 * torch.tensor([[2.0]]).log())


def test_an_input_type_of_another_enumeration_counts_by_its_value() -> None:
    foreign = enum.Enum("foreign", {"LOGIT": "logit"})
    _, metrics = call_loss(NewerShape(foreign.LOGIT), torch.ones(1, 2, 3), {}, SEQS, TOKS)
    assert "logits" in metrics


@pytest.mark.parametrize("wanted", ["hidden states", None])
def test_an_unknown_input_type_is_refused_by_name(wanted: object) -> None:
    with pytest.raises(ValueError, match="NewerShape"):
        call_loss(NewerShape(wanted), torch.ones(1, 2, 3), {}, SEQS, TOKS)


def test_a_given_prepare_function_takes_the_place_of_ours() -> None:
    def prepare(logits: Tensor, data: Mapping[str, Any], loss_fn: LossFunction) -> dict[str, Any]:
        return {"shape": tuple(logits.shape), "from": (data, loss_fn)}

    loss_fn = NewerShape(LossInputType.LOGPROB)
    _, metrics = call_loss(loss_fn, torch.ones(1, 2, 3), {}, SEQS, TOKS, prepare_fn=prepare)
    assert (metrics["shape"], metrics["from"]) == ((1, 2, 3), ({}, loss_fn))


def test_the_likelihood_loss_equals_a_loop_over_tokens() -> None:
    logits, batch = make_logits(), make_batch()
    loss, metrics = run_loss(NLLLoss(), logits, batch)
    naive = -torch.stack([naive_logprob(logits, batch, *place) for place in valid_tokens(batch)]).mean()
    assert_same_value_and_gradient(loss, naive, logits)
    expected = {"loss": naive.item(), "num_unmasked_tokens": int(counts_of(batch)[1]), "num_valid_samples": 4}
    assert metrics == pytest.approx(expected)
