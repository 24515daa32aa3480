"""The k largest logits of every position, in the rows and columns of the batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.trainer_adapter.automodel import tiny_policy
from tests.trainer_adapter.automodel.tiny_policy import batch_of, logits_of_row, processed
from torch import Tensor

from trainer_adapter.automodel.config import TrainingSamplingParams
from trainer_adapter.automodel.train import TopkLogitsPostProcessor, forward_with_post_processing_fn

LENGTHS = [7, 1, 12]


@torch.no_grad()
def topk(model: Any, k: int, packed: bool, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    post_processor = TopkLogitsPostProcessor({}, None, None, None, 1, k=k, enable_seq_packing=packed)
    microbatch = processed(batch_of(LENGTHS, width=14), packed)
    params = TrainingSamplingParams(temperature=temperature)
    (values, ids), metrics, _ = forward_with_post_processing_fn(
        model, post_processor, microbatch, sampling_params=params
    )
    assert metrics == {}
    return values, ids


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_every_token_of_every_row_has_its_largest_logits_first(packed: bool, temperature: float) -> None:
    model, batch = tiny_policy.tiny_model(), batch_of(LENGTHS, width=14)
    values, ids = topk(model, 5, packed, temperature)
    assert values.shape == ids.shape == (3, 14, 5)
    assert (values.dtype, ids.dtype) == (torch.float32, torch.int64)
    for row, length in enumerate(LENGTHS):
        with torch.no_grad():
            expected = logits_of_row(model, batch, row) / temperature
        for place, logits in enumerate(expected.tolist()):
            assert [logits[token] for token in ids[row, place]] == sorted(logits, reverse=True)[:5]
        torch.testing.assert_close(values[row, :length], expected.gather(-1, ids[row, :length]), rtol=1e-5, atol=1e-5)


def test_packed_rows_are_zero_behind_their_last_token() -> None:
    values, ids = topk(tiny_policy.tiny_model(), 3, packed=True)
    for row, length in enumerate(LENGTHS):
        assert not values[row, length:].any()
        assert not ids[row, length:].any()


@pytest.mark.parametrize("packed", [False, True])
def test_a_k_beyond_the_vocabulary_gives_the_whole_vocabulary(packed: bool) -> None:
    _, ids = topk(tiny_policy.tiny_model(), 1000, packed)
    assert sorted(ids[0, 0].tolist()) == list(range(64))


@pytest.mark.parametrize("k", [0, -3])
def test_a_k_of_less_than_one_is_refused(k: int) -> None:
    with pytest.raises(ValueError, match="k must be at least 1"):
        TopkLogitsPostProcessor({}, None, None, None, 1, k=k)
