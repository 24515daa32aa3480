"""The results of ranks, and the expected ones: those of one process with a plain model."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path

import pytest
import torch
from tests.trainer_adapter.worker import worker_cases
from tests.trainer_adapter.worker.plain_policy import grpo_loss, logprobs_alone
from tests.trainer_adapter.worker.worker_cases import Layout, Played, batch
from torch import Tensor
from transformers import AutoModelForCausalLM


@cache
def trained_alone(folder: Path, max_grad_norm: float) -> tuple[float, float, dict[str, Tensor]]:
    """Loss, gradient norm before clipping, and weights after one step of SGD."""
    model = AutoModelForCausalLM.from_pretrained(folder / "model")
    loss = grpo_loss(model, batch())
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)
    torch.optim.SGD(model.parameters(), lr=worker_cases.LEARNING_RATE).step()
    return loss.item(), norm.item(), model.state_dict()


def whole(played: Played, case: str, layout: Layout, name: str) -> Tensor:
    """One tensor over all rows; it must be the same on all ranks of a model."""
    parts = [tensors[name] for tensors in played.tensors(case)]
    model_ranks = layout.cp * layout.tp
    for rank, part in enumerate(parts):
        assert torch.equal(part, parts[rank - rank % model_ranks])
    return torch.cat(parts[::model_ranks])


def assert_logprobs(played: Played, case: str, layout: Layout) -> None:
    expected = logprobs_alone(played.folder / "model")
    torch.testing.assert_close(whole(played, case, layout, "logprobs"), expected, rtol=1e-5, atol=1e-5)


def assert_one_step(played: Played, case: str, max_grad_norm: float = worker_cases.MAX_GRAD_NORM) -> None:
    """Loss, gradient norm before clipping, and weights afterwards."""
    loss, norm, weights = trained_alone(played.folder, max_grad_norm)
    for rank in played.ranks(case):
        assert rank["loss"] == pytest.approx([loss], rel=1e-5)
        assert rank["grad_norm"] == pytest.approx(norm, rel=1e-5)
    after = played.tensors(case)[0]
    for name, value in weights.items():
        torch.testing.assert_close(after[name], value, rtol=1e-5, atol=1e-6)


def assert_only_the_sound_step_was_applied(played: Played, case: str) -> None:
    for rank in played.ranks(case):
        assert math.isnan(rank["skipped"])
        assert rank["unchanged"]
    assert_one_step(played, case, max_grad_norm=math.inf)
