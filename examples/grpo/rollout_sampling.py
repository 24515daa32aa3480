"""Sample rollouts: responses with the log-probability of every token under the model that sampled it.

The log-probabilities are recorded while `generate` runs, from the distributions that the tokens are drawn from. Only
the chosen token's value is kept, so memory grows with tokens, not with tokens times vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from special_tokens import eos_id, pad_id
from token_batch import TokenBatch, pad_samples


@dataclass(frozen=True)
class Rollouts(TokenBatch):
    """N samples; the samples of one prompt are adjacent.

    `generation_logprobs` [N,S] fp32: column i is log p(token i | tokens before i) on response tokens, 0 elsewhere.
    `responses`: the N response texts without special tokens.
    """

    generation_logprobs: Tensor
    responses: tuple[str, ...]


class _ChosenLogprobs(LogitsProcessor):
    """Records log-probabilities: sees each step's logits before its token is drawn, and the token one call later."""

    def __init__(self, temperature: float) -> None:
        self._temperature = temperature
        self._distribution: Tensor | None = None
        self._columns: list[Tensor] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self._record(input_ids[:, -1])
        self._distribution = torch.log_softmax(scores.float() / self._temperature, dim=-1)
        return scores

    def _record(self, tokens: Tensor) -> None:
        if self._distribution is not None:
            self._columns.append(self._distribution.gather(1, tokens[:, None]))

    def finish(self, last_tokens: Tensor) -> Tensor:
        """Return [N, generated tokens]. last_tokens: [N], the tokens of the last step, which no later call shows."""
        self._record(last_tokens)
        return torch.cat(self._columns, dim=1)


def sampling_config(tokenizer: PreTrainedTokenizerBase, temperature: float, max_new_tokens: int) -> GenerationConfig:
    """Sampling from the whole distribution, whatever the model's own defaults are."""
    return GenerationConfig(
        do_sample=True,
        temperature=temperature,
        top_k=0,
        top_p=1.0,
        repetition_penalty=1.0,
        max_new_tokens=max_new_tokens,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )


def left_pad(prompts: Sequence[Sequence[int]], pad_token_id: int) -> tuple[Tensor, Tensor]:
    """Pad prompts for `generate`, with aligned ends: `input_ids` and `attention_mask`, both [N,P] int64."""
    width = max(map(len, prompts))
    ids = [[*[pad_token_id] * (width - len(prompt)), *prompt] for prompt in prompts]
    mask = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    return torch.tensor(ids), torch.tensor(mask)


def cut_at_eos(tokens: Sequence[int], eos_token_id: int) -> list[int]:
    """The tokens up to and including the first end-of-sequence token; all tokens if there is none."""
    tokens = list(tokens)
    return tokens[: tokens.index(eos_token_id) + 1] if eos_token_id in tokens else tokens


@torch.no_grad()
def sample_rollouts(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Sequence[int]],
    *,
    group_size: int,
    temperature: float,
    max_new_tokens: int,
) -> Rollouts:
    """Draw `group_size` samples of each prompt (token ids, not empty) with torch's global generator.

    Log-probabilities are those of logits / `temperature`; the loss must compute them alike. Blocks until the longest
    response of the batch has ended, at most `max_new_tokens` steps.
    """
    repeated = [prompt for prompt in prompts for _ in range(group_size)]
    input_ids, attention_mask = left_pad(repeated, pad_id(tokenizer))
    recorder = _ChosenLogprobs(temperature)
    generate: Any = model.generate  # transformers' types hide that it can be called
    sequences = generate(
        input_ids=input_ids,
        attention_mask=attention_mask,
        generation_config=sampling_config(tokenizer, temperature, max_new_tokens),
        logits_processor=LogitsProcessorList([recorder]),
    )
    generated = sequences[:, input_ids.shape[1] :]
    step_logprobs = recorder.finish(sequences[:, -1])
    responses = [cut_at_eos(row, eos_id(tokenizer)) for row in generated.tolist()]
    batch = pad_samples(repeated, responses, pad_id(tokenizer))
    logprobs = torch.zeros(batch.input_ids.shape)
    for row, (prompt, response) in enumerate(zip(repeated, responses, strict=True)):
        logprobs[row, len(prompt) : len(prompt) + len(response)] = step_logprobs[row, : len(response)]
    texts = tuple(tokenizer.batch_decode(responses, skip_special_tokens=True))
    return Rollouts(batch.input_ids, batch.input_lengths, batch.token_mask, logprobs, texts)
