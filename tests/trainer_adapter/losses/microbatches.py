"""A microbatch in float64 with every input of a loss and hostile values where masked, and a way to run a loss on it.

Losses compute in float64 if logits are float64, so naive loops match to ten digits.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from trainer_adapter.losses import LossFunction, call_loss

ROWS, WIDTH, VOCAB = 6, 9, 13
LENGTHS = [9, 7, 5, 9, 6, 3]
Batch = dict[str, Any]


def make_batch(seed: int = 0) -> Batch:
    """Rows 2 and 3 are invalid; every value that does not count is NaN or infinite."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    lengths = torch.tensor(LENGTHS)
    columns = torch.arange(WIDTH)
    token_mask = (columns >= torch.tensor([2, 1, 0, 5, 3, 1])[:, None]) & (columns < lengths[:, None])
    sample_mask = torch.tensor([1.0, 1.0, 0.0, 0.0, 1.0, 1.0])
    kinds = ("prev_logprobs", "generation_logprobs", "reference_policy_logprobs")
    per_token = {kind: -2.5 + 0.8 * normal(ROWS, WIDTH) for kind in kinds} | {"advantages": normal(ROWS, WIDTH)}
    counts = token_mask & (sample_mask[:, None] > 0) & (columns > 0)
    hostile = torch.tensor([math.nan, math.inf, -math.inf], dtype=torch.float64).repeat(ROWS, 3)
    return {
        "input_ids": torch.randint(VOCAB, (ROWS, WIDTH), generator=generator),
        "input_lengths": lengths,
        "token_mask": token_mask,
        "sample_mask": sample_mask,
        **{key: torch.where(counts, value, hostile) for key, value in per_token.items()},
    }


def make_logits(seed: int = 0) -> Tensor:
    """[ROWS,WIDTH,VOCAB], NaN or infinite in the invalid rows and behind each row's end."""
    logits = torch.randn(ROWS, WIDTH, VOCAB, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    logits[2] = math.nan
    logits[3] = math.inf
    for row, length in enumerate(LENGTHS):
        logits[row, length - 1 :] = math.nan
    return logits.requires_grad_()


def valid_tokens(batch: Batch) -> list[tuple[int, int]]:
    """(row, column) of every token that counts."""
    counts = batch["token_mask"].bool() & batch["sample_mask"].bool()[:, None]
    counts[:, 0] = False
    return [(row, column) for row, column in counts.nonzero().tolist()]


def counts_of(batch: Batch) -> tuple[Tensor, Tensor]:
    return batch["sample_mask"].sum(), torch.tensor(len(valid_tokens(batch)))


def naive_logprob(logits: Tensor, batch: Batch, row: int, column: int) -> Tensor:
    scores = logits[row, column - 1]
    return scores[int(batch["input_ids"][row, column])] - scores.exp().sum().log()


def run_loss(loss_fn: LossFunction, logits: Tensor, batch: Batch) -> tuple[Tensor, dict[str, Any]]:
    return call_loss(loss_fn, logits, batch, *counts_of(batch))


def assert_same_value_and_gradient(actual: Tensor, naive: Tensor, logits: Tensor, tolerance: float = 1e-7) -> None:
    """Tolerance: the 1e-8 in every denominator."""
    torch.testing.assert_close(actual, naive, rtol=tolerance, atol=tolerance)
    (gradient,) = torch.autograd.grad(actual, logits)
    (expected,) = torch.autograd.grad(naive, logits)
    torch.testing.assert_close(gradient, expected, rtol=tolerance, atol=tolerance)
