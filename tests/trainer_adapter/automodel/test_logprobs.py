"""Log-probabilities equal those of each row in a batch by itself, for every layout; and bounds of the k largest."""

from __future__ import annotations

import logging
import math
from typing import Any

import pytest
import torch
from tests.trainer_adapter.automodel import tiny_policy
from tests.trainer_adapter.automodel.tiny_policy import batch_of, expected_logprobs, logits_of_row, processed
from torch import Tensor

from dataplane_client.batched_data_dict import BatchedDataDict
from trainer_adapter.automodel.config import TrainingSamplingParams
from trainer_adapter.automodel.train import (
    LogprobsPostProcessor,
    TopkLogitsPostProcessor,
    forward_with_post_processing_fn,
)

LENGTHS = [7, 1, 12, 3]


@pytest.fixture(scope="module", params=["llama", "qwen2"])
def model(request: pytest.FixtureRequest) -> Any:
    return tiny_policy.tiny_model(request.param)


@torch.no_grad()
def logprobs(
    model: Any, batch: BatchedDataDict[Any], packed: bool, chunk_size: int | None = None, params: Any = None
) -> Tensor:
    cfg, microbatch = {"logprob_chunk_size": chunk_size}, processed(batch, packed)
    post_processor = LogprobsPostProcessor(cfg, None, None, None, 1, packed, sampling_params=params)
    result, metrics, same = forward_with_post_processing_fn(model, post_processor, microbatch, sampling_params=params)
    assert same is microbatch
    assert metrics == {}
    return torch.as_tensor(result)


def of_token_1(logits: Tensor, params: TrainingSamplingParams | None = None) -> float:
    """Behind token 0, from the logits [V] there."""
    batch: BatchedDataDict[Any] = BatchedDataDict(input_ids=torch.tensor([[0, 1]]), input_lengths=torch.tensor([2]))
    microbatch = processed(batch, packed=False)
    both = torch.stack([logits, torch.zeros_like(logits)])[None]
    return LogprobsPostProcessor({}, None, None, None, 1, sampling_params=params)(both, microbatch)[0, 1].item()


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_they_are_those_of_each_row_by_itself_however_many_positions_are_a_chunk(
    model: Any, packed: bool, temperature: float
) -> None:
    batch = batch_of(LENGTHS, width=14)
    with torch.no_grad():
        expected = expected_logprobs(model, batch, temperature)
    for chunk_size in (None, 1, 5, 1000):
        found = logprobs(model, batch, packed, chunk_size, TrainingSamplingParams(temperature=temperature))
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_half_precision_logits_are_normalised_in_float32() -> None:
    logits = torch.tensor([4.0, 4.0078125, 0.0]).bfloat16()
    numbers = [math.exp(value) for value in logits.tolist()]
    assert of_token_1(logits) == pytest.approx(math.log(numbers[1] / sum(numbers)), abs=1e-6)


# --- top-k and top-p ---


def could_be_drawn(logits: list[float], top_k: int | None, top_p: float | None) -> set[int]:
    """The tokens that a sampler draws from: the top_k likeliest, and of these as few as reach the probability top_p."""
    order = sorted(range(len(logits)), key=lambda token: -logits[token])
    kept = order[: top_k or None]
    weights = [math.exp(logits[token]) for token in kept]
    count, reached = 0, 0.0
    while count < len(kept) and reached < (1.0 if top_p is None else top_p):
        reached += weights[count] / sum(weights)
        count += 1
    return set(kept[:count])


def expected_filtered(model: Any, batch: BatchedDataDict[Any], params: TrainingSamplingParams) -> tuple[Tensor, int]:
    """As expected_logprobs, with 0 for tokens that are ruled out, and how many these are."""
    expected, ruled_out = torch.zeros(batch["input_ids"].shape), 0
    for row, ids in enumerate(batch["input_ids"].tolist()):
        logits = (logits_of_row(model, batch, row) / params.temperature).tolist()
        for i in range(1, len(logits)):
            drawn = could_be_drawn(logits[i - 1], params.top_k, params.top_p)
            total = sum(math.exp(logits[i - 1][token]) for token in drawn)
            if ids[i] in drawn:
                expected[row, i] = logits[i - 1][ids[i]] - math.log(total)
            else:
                ruled_out += 1
    return expected, ruled_out


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    "params",
    [
        TrainingSamplingParams(top_k=5),
        TrainingSamplingParams(top_k=1000, top_p=0.5),
        TrainingSamplingParams(top_p=0.8, temperature=2.0),
        TrainingSamplingParams(top_k=20, top_p=0.9, temperature=0.5),
    ],
    ids=str,
)
def test_tokens_that_the_sampler_rules_out_are_zero_and_counted_in_a_warning(
    model: Any, packed: bool, params: TrainingSamplingParams, caplog: pytest.LogCaptureFixture
) -> None:
    batch = batch_of(LENGTHS, width=14)
    with caplog.at_level(logging.WARNING, "trainer_adapter"):
        found = logprobs(model, batch, packed, None, params)
    with torch.no_grad():
        expected, ruled_out = expected_filtered(model, batch, params)
    assert ruled_out > 0
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert [record.getMessage().split()[0] for record in caplog.records] == [str(ruled_out)]


@pytest.mark.parametrize(
    "params", [None, *(TrainingSamplingParams(top_k=k, top_p=p) for k, p in [(None, None), (0, 1.0), (-1, 1.0)])]
)
def test_a_sampler_that_rules_nothing_out_changes_nothing(model: Any, params: TrainingSamplingParams | None) -> None:
    batch = batch_of(LENGTHS)
    assert torch.equal(logprobs(model, batch, False, None, params), logprobs(model, batch, False))


def test_logits_that_tie_with_the_k_th_largest_can_all_be_drawn() -> None:
    found = of_token_1(torch.tensor([1.0, 1.0, 1.0, 0.0]), TrainingSamplingParams(top_k=2))
    assert found == pytest.approx(-math.log(3))


# --- the k largest; test_worker_between_ranks has them for every token of every row ---


@torch.no_grad()
def test_the_largest_logits_of_packed_rows_are_zero_behind_their_last_token(model: Any) -> None:
    post_processor = TopkLogitsPostProcessor({}, None, None, None, 1, k=3, enable_seq_packing=True)
    microbatch = processed(batch_of(LENGTHS, width=14), packed=True)
    found, metrics, _ = forward_with_post_processing_fn(model, post_processor, microbatch)
    assert metrics == {}
    for row, length in enumerate(LENGTHS):
        assert not any(part[row, length:].any() for part in found)


# --- refusals ---


@pytest.mark.parametrize("number", [0, -1])
def test_numbers_of_nothing_are_refused(number: int) -> None:
    with pytest.raises(ValueError, match=r"\bk\b"):
        TopkLogitsPostProcessor({}, None, None, None, 1, k=number)
