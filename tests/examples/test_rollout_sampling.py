from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from problem_file import prompt_ids
from rollout_sampling import Rollouts, sample_rollouts

GROUP, LIMIT = 12, 48
QUESTIONS = ("How many?", "Maya has 14 apples and gives 3 of them to Tom. How many apples are left?", "2+2?")


def _sample(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, temperature: float) -> Rollouts:
    torch.manual_seed(0)
    prompts = [prompt_ids(tokenizer, question) for question in QUESTIONS]
    return sample_rollouts(model, tokenizer, prompts, group_size=GROUP, temperature=temperature, max_new_tokens=LIMIT)


@pytest.fixture(scope="module")
def rollouts(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Rollouts:
    return _sample(model, tokenizer, temperature=1.0)


@pytest.fixture
def greedy_defaults(model: PreTrainedModel) -> Iterator[None]:
    """A model shipped with settings that leave one token to choose from."""
    before = model.generation_config
    model.generation_config = GenerationConfig(do_sample=True, top_k=1, repetition_penalty=1.5, top_p=0.1)
    yield
    model.generation_config = before


@torch.no_grad()
def _teacher_forced(model: PreTrainedModel, rollouts: Rollouts, temperature: float) -> torch.Tensor:
    """Row by row without padding: nothing of a batch can help or hurt."""
    result = torch.zeros(rollouts.input_ids.shape)
    for row, length in enumerate(rollouts.input_lengths.tolist()):
        ids = rollouts.input_ids[row : row + 1, :length]
        logits = model(input_ids=ids, use_cache=False).logits[0] / temperature
        result[row, 1:length] = logits[:-1].log_softmax(-1).gather(-1, ids[0, 1:, None])[:, 0]
    return result.masked_fill(~rollouts.token_mask, 0.0)


@pytest.mark.parametrize("temperature", [1.0, 0.5, 1.7])
def test_sampling_logprobs_equal_those_of_a_teacher_forced_forward(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, temperature: float
) -> None:
    rollouts = _sample(model, tokenizer, temperature)
    expected = _teacher_forced(model, rollouts, temperature)
    torch.testing.assert_close(rollouts.generation_logprobs, expected, rtol=0, atol=1e-4)
    assert (rollouts.generation_logprobs[rollouts.token_mask] < 0).all()


@pytest.mark.usefixtures("greedy_defaults")
def test_defaults_shipped_with_the_model_do_not_narrow_the_sampling(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> None:
    rollouts = _sample(model, tokenizer, temperature=1.0)
    expected = _teacher_forced(model, rollouts, 1.0)
    torch.testing.assert_close(rollouts.generation_logprobs, expected, rtol=0, atol=1e-4)
    assert len(set(rollouts.responses[:GROUP])) > 1


def test_samples_of_a_prompt_lie_beside_each_other_and_begin_with_it(
    rollouts: Rollouts, tokenizer: PreTrainedTokenizerBase
) -> None:
    assert rollouts.input_ids.shape[0] == GROUP * len(QUESTIONS)
    for row, ids in enumerate(rollouts.input_ids.tolist()):
        prompt = prompt_ids(tokenizer, QUESTIONS[row // GROUP])
        assert ids[: len(prompt)] == prompt
        assert rollouts.token_mask[row].int().argmax() == len(prompt)


def test_a_response_ends_with_its_only_end_of_sequence_token_or_at_the_limit(
    rollouts: Rollouts, tokenizer: PreTrainedTokenizerBase
) -> None:
    ended = 0
    for ids, mask in zip(rollouts.input_ids, rollouts.token_mask, strict=True):
        response = ids[mask].tolist()
        stops = [index for index, token in enumerate(response) if token == tokenizer.eos_token_id]
        assert stops == [len(response) - 1] or (not stops and len(response) == LIMIT)
        ended += bool(stops)
    assert 0 < ended < len(rollouts.input_ids)


def test_the_mask_covers_the_response_up_to_the_length_and_the_rest_is_padding(
    rollouts: Rollouts, tokenizer: PreTrainedTokenizerBase
) -> None:
    columns = torch.arange(rollouts.input_ids.shape[1])
    beyond = columns >= rollouts.input_lengths[:, None]
    assert (rollouts.input_ids[beyond] == tokenizer.pad_token_id).all()
    assert not rollouts.token_mask[beyond].any()
    assert (rollouts.token_mask.sum(1) + rollouts.token_mask.int().argmax(1) == rollouts.input_lengths).all()
    assert int(rollouts.input_lengths.max()) == rollouts.input_ids.shape[1]
