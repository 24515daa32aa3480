"""The bounds of the k largest logits. Workers (test_worker_between_ranks) have them for every token of every row."""

from __future__ import annotations

import pytest
import torch
from tests.trainer_adapter.automodel import tiny_policy
from tests.trainer_adapter.automodel.tiny_policy import batch_of, processed
from torch import Tensor

from trainer_adapter.automodel.train import TopkLogitsPostProcessor, forward_with_post_processing_fn

LENGTHS = [7, 1, 12]


@torch.no_grad()
def topk(k: int, packed: bool) -> tuple[Tensor, Tensor]:
    post_processor = TopkLogitsPostProcessor({}, None, None, None, 1, k=k, enable_seq_packing=packed)
    microbatch = processed(batch_of(LENGTHS, width=14), packed)
    (values, ids), metrics, _ = forward_with_post_processing_fn(tiny_policy.tiny_model(), post_processor, microbatch)
    assert metrics == {}
    return values, ids


def test_packed_rows_are_zero_behind_their_last_token() -> None:
    values, ids = topk(3, packed=True)
    for row, length in enumerate(LENGTHS):
        assert not values[row, length:].any()
        assert not ids[row, length:].any()


@pytest.mark.parametrize("k", [0, -3])
def test_a_k_of_less_than_one_is_refused(k: int) -> None:
    with pytest.raises(ValueError, match=r"\bk\b"):
        TopkLogitsPostProcessor({}, None, None, None, 1, k=k)
