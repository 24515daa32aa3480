"""Log-probabilities of the tokens that are there, and the mean by which every loss here is normalised.

The training runs on several ranks and microbatches, and each sees a part of the tokens. Dividing every part's sum by
the number of tokens of the whole global batch makes the parts add up to the global mean, however unequal they are.
"""

from __future__ import annotations

import torch
from torch import Tensor


def token_logprobs(logits: Tensor, input_ids: Tensor) -> Tensor:
    """Log-probability of each token given the ones before it: [B,S] fp32, column 0 is 0.

    `logits` [B,S,V]: `logits[b, i]` predicts token `i + 1`. Columns of padding hold values without meaning.
    """
    distribution = torch.log_softmax(logits[:, :-1].float(), dim=-1)
    chosen = distribution.gather(-1, input_ids[:, 1:, None]).squeeze(-1)
    return torch.nn.functional.pad(chosen, (1, 0))


def forward_logprobs(model: torch.nn.Module, input_ids: Tensor, temperature: float = 1.0) -> Tensor:
    """`token_logprobs` of logits / `temperature` under `model`, for right-padded rows.

    No attention mask is needed: attention is causal, so padding on the right is never looked at by a real token.
    """
    return token_logprobs(model(input_ids=input_ids, use_cache=False).logits / temperature, input_ids)


def response_mask(token_mask: Tensor, sample_mask: Tensor) -> Tensor:
    """Which tokens count in a loss: [B,S] bool, column 0 false (nothing predicts it), rows outside `sample_mask`
    false.
    """
    mask = token_mask.bool() & sample_mask.bool()[:, None]
    return mask & (torch.arange(mask.shape[1], device=mask.device) > 0)


def global_mean(values: Tensor, mask: Tensor, global_count: Tensor | float) -> Tensor:
    """This part's share of the mean over the `global_count` masked values of the global batch; nothing masked gives 0.

    What the mask leaves out contributes exactly 0 to value and gradient, even where it is infinite or not a number.
    """
    return values.masked_fill(~mask, 0.0).sum() / (global_count + 1e-8)
