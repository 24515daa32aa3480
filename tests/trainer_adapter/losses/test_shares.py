"""Every loss returns shares that add up, without contributions of invalid rows, packed or not."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from examples.losses.distillation import DistillationLoss, DistillationOptions
from examples.losses.dpo import DPOLoss, DPOOptions
from tests.trainer_adapter.losses.microbatches import (
    LENGTHS,
    VOCAB,
    Batch,
    counts_of,
    make_batch,
    make_logits,
    run_loss,
)
from torch import Tensor

from dataplane_client.batched_data_dict import BatchedDataDict
from dataplane_client.batched_data_dict.packed_tensor import PackedTensor
from trainer_adapter.losses import (
    ClippedPolicyGradientLoss,
    ClippedPolicyGradientOptions,
    LossFunction,
    LossResult,
    NLLLoss,
    SequencePackingLossWrapper,
    call_loss,
    merge_metrics,
)

PER_ROW_LOSSES: dict[str, LossFunction] = {
    "NLL": NLLLoss(),
    "policy gradient over tokens": ClippedPolicyGradientLoss(
        ClippedPolicyGradientOptions(reference_policy_kl_penalty=0.1, use_importance_sampling_correction=True)
    ),
    "policy gradient over rows": ClippedPolicyGradientLoss(
        ClippedPolicyGradientOptions(token_level_loss=False, sequence_level_importance_ratios=True)
    ),
    "distillation": DistillationLoss(),
    "distillation over the vocabulary": DistillationLoss(DistillationOptions(zero_outside_topk=True)),
}
LOSSES: dict[str, LossFunction] = {**PER_ROW_LOSSES, "DPO": DPOLoss(DPOOptions(sft_loss_weight=0.2))}
every_loss = pytest.mark.parametrize("loss_fn", LOSSES.values(), ids=LOSSES.keys())
every_loss_of_rows = pytest.mark.parametrize("loss_fn", PER_ROW_LOSSES.values(), ids=PER_ROW_LOSSES.keys())


@pytest.fixture
def batch() -> Batch:
    teacher = torch.randn(6, 9, VOCAB, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    values, indices = teacher.topk(4)
    return {**make_batch(), "teacher_topk_logits": values, "teacher_topk_indices": indices}


def gradient_of(loss: Tensor, logits: Tensor) -> Tensor:
    return torch.autograd.grad(loss, logits)[0]


def rows_of(batch: Batch, rows: slice) -> Batch:
    return {key: value[rows] for key, value in batch.items()}


@every_loss
@pytest.mark.parametrize("cuts", [[0, 2, 6], [0, 4, 6], [0, 2, 4, 6]])
def test_parts_of_a_batch_add_up_to_the_whole(loss_fn: LossFunction, batch: Batch, cuts: list[int]) -> None:
    logits, counts = make_logits(), counts_of(batch)
    whole, metrics = call_loss(loss_fn, logits, batch, *counts)
    slices = [slice(*cut) for cut in pairwise(cuts)]
    parts = [call_loss(loss_fn, logits[part], rows_of(batch, part), *counts) for part in slices]
    total = torch.stack([loss for loss, _ in parts]).sum()
    torch.testing.assert_close(total, whole)
    torch.testing.assert_close(gradient_of(total, logits), gradient_of(whole, logits))
    assert merge_metrics(part for _, part in parts) == pytest.approx(metrics)


@every_loss
def test_invalid_rows_and_padding_contribute_exactly_nothing(loss_fn: LossFunction, batch: Batch) -> None:
    """The same batch with harmless values in place of NaN and infinities: equal to the last bit."""
    logits = make_logits()
    clean_logits = logits.detach().nan_to_num(0.5, 0.5, 0.5).requires_grad_()
    floating = {key: value for key, value in batch.items() if value.is_floating_point()}
    clean = {**batch, **{key: value.nan_to_num(0.5, 0.5, 0.5) for key, value in floating.items()}}
    loss, metrics = run_loss(loss_fn, logits, batch)
    expected, expected_metrics = run_loss(loss_fn, clean_logits, clean)
    assert torch.equal(loss, expected)
    assert metrics == expected_metrics
    gradient = gradient_of(loss, logits)
    assert torch.equal(gradient, gradient_of(expected, clean_logits))
    assert gradient[2:4].abs().max() == 0
    assert gradient[0].abs().max() > 0


@every_loss
def test_logits_in_bfloat16_are_worked_on_in_float32(loss_fn: LossFunction, batch: Batch) -> None:
    low = make_logits().detach().to(torch.bfloat16).requires_grad_()
    high = low.detach().to(torch.float32).requires_grad_()
    (loss, _), (expected, _) = run_loss(loss_fn, low, batch), run_loss(loss_fn, high, batch)
    assert loss.dtype == torch.float32
    assert torch.equal(loss, expected)
    assert torch.equal(gradient_of(loss, low), gradient_of(expected, high).to(torch.bfloat16))


# --- packed ---


def boundaries(lengths: list[int]) -> Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)


def packed(logits: Tensor, widths: list[int]) -> Tensor:
    """[1,L,V]: of each row its true length, then NaN up to its width; NaN behind the last."""
    parts = [row[:length] for row, length in zip(logits, LENGTHS, strict=True)]
    gaps = [torch.full((width - len(part), VOCAB), math.nan) for part, width in zip(parts, widths, strict=True)]
    pieces = [piece for pair in zip(parts, gaps, strict=True) for piece in pair]
    return torch.cat([*pieces, torch.full((5, VOCAB), math.nan)])[None]


@every_loss_of_rows
@pytest.mark.parametrize("widths", [LENGTHS, [12, 8, 8, 12, 8, 4]], ids=["without gaps", "each padded by itself"])
def test_packed_equals_unpacked(loss_fn: LossFunction, batch: Batch, widths: list[int]) -> None:
    logits, counts = make_logits(), counts_of(batch)
    expected, expected_metrics = call_loss(loss_fn, logits, batch, *counts)
    padded = None if widths is LENGTHS else boundaries(widths)
    wrapper = SequencePackingLossWrapper(loss_fn, boundaries(LENGTHS), padded)
    loss, metrics = wrapper(packed(logits, widths), BatchedDataDict(batch), *counts)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(gradient_of(loss, logits), gradient_of(expected, logits))
    assert metrics == pytest.approx(expected_metrics)


class Recorder:
    """A loss of the older shape that remembers what it was called with, and returns 1."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def __call__(self, *args: Any) -> LossResult:
        self.calls.append(args)
        row = len(self.calls)
        return torch.ones(()), {"num_valid_samples": 1, "probs_ratio_min": math.inf if row == 1 else row}


def test_each_sequence_is_cut_to_its_length_and_its_logits_to_their_boundaries() -> None:
    data: BatchedDataDict[Any] = BatchedDataDict(
        {
            "input_ids": torch.arange(10).view(2, 5),
            "features": torch.ones(2, 5, 3),
            "reward": torch.tensor([[7.0], [8.0]]),
            "sample_mask": torch.ones(2),
            "names": ["a", "b"],
            "images": PackedTensor([torch.ones(2, 2), torch.zeros(3, 2)], 0),
        }
    )
    logits = torch.arange(12.0).view(1, 12, 1)
    recorder, counts = Recorder(), (torch.tensor(2), torch.tensor(6))
    wrapper = SequencePackingLossWrapper(recorder, boundaries([2, 4]), cu_seqlens_q_padded=boundaries([4, 8]))
    loss, metrics = wrapper(logits, data, *counts)
    assert loss == 2
    assert metrics == {"num_valid_samples": 2, "probs_ratio_min": 2}
    (first_logits, first, *first_counts), (second_logits, second, *_) = recorder.calls
    assert first_logits.flatten().tolist() == [0, 1, 2, 3]
    assert second_logits.flatten().tolist() == [4, 5, 6, 7, 8, 9, 10, 11]
    assert first_counts == [*counts]
    assert first["input_ids"].tolist() == [[0, 1]]
    assert second["input_ids"].tolist() == [[5, 6, 7, 8]]
    assert second["features"].shape == (1, 4, 3)
    assert (second["reward"].tolist(), second["names"], len(second["images"])) == ([[8.0]], ["b"], 1)
    assert data["input_ids"].shape == (2, 5)


@every_loss_of_rows
def test_sequences_of_length_zero_and_one_contribute_nothing(loss_fn: LossFunction, batch: Batch) -> None:
    logits, counts = torch.randn(1, 6, VOCAB), (torch.tensor(1), torch.tensor(1))
    wrapper = SequencePackingLossWrapper(loss_fn, boundaries([0, 1]), boundaries([2, 4]))
    loss, metrics = wrapper(logits, rows_of(batch, slice(0, 2)), *counts)
    assert loss == 0
    assert metrics.get("probs_ratio_min", math.inf) == math.inf


def test_pairs_cannot_be_packed(batch: Batch) -> None:
    wrapper = SequencePackingLossWrapper(LOSSES["DPO"], boundaries(LENGTHS))
    with pytest.raises(ValueError, match="DPO"):
        wrapper(torch.zeros(1, sum(LENGTHS), VOCAB), batch, *counts_of(batch))


def test_boundaries_that_do_not_fit_each_other_or_the_rows_are_refused(batch: Batch) -> None:
    with pytest.raises(ValueError, match=r"cu_seqlens_q .*2 .*cu_seqlens_q_padded 3"):
        SequencePackingLossWrapper(NLLLoss(), boundaries([1, 2]), boundaries([1, 2, 3]))
    with pytest.raises(ValueError, match=r"cu_seqlens_q .*0 "):
        SequencePackingLossWrapper(NLLLoss(), boundaries([]))
    with pytest.raises(ValueError, match=r"cu_seqlens_q .*2 .*6 rows"):
        SequencePackingLossWrapper(NLLLoss(), boundaries([1, 2]))(torch.zeros(1, 3, VOCAB), batch, *counts_of(batch))
