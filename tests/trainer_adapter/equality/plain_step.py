"""One step of a plain transformers model: the reference of the equality table. It shares no code with the trainer.

One process, one row at a time, without padding: forward pass, log-softmax, loss, and gradients by autograd. The loss is
a mean over the tokens that count of

    -min(r A, clip(r, 0.8, 1.25) A) min(w, 2) + 0.1 (exp(-d) - 1 + d)

with r = exp(logprob - prev), w = exp(prev - generation), d = logprob - reference.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

Tensors = dict[str, Tensor]


def plain_step(model: Path, rows: Mapping[str, Tensor], temperature: float) -> tuple[Tensor, Tensor, Tensors]:
    """Log-probabilities [B,S] (0 in column 0 and padding), the loss, and the gradients by name.

    rows: [B,S] input_ids, token_mask, prev_logprobs, generation_logprobs, reference_policy_logprobs and advantages; [B]
    input_lengths and sample_mask.
    """
    policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    counts = rows["token_mask"][:, 1:] * rows["sample_mask"][:, None]
    logprobs, loss = torch.zeros(rows["input_ids"].shape), torch.zeros(())
    for row, length in enumerate(rows["input_lengths"].tolist()):
        ids = rows["input_ids"][row, :length]
        logits = policy(input_ids=ids[None], use_cache=False).logits[0, :-1] / temperature
        own = logits.log_softmax(-1).gather(-1, ids[1:, None])[:, 0]
        logprobs[row, 1:length] = own.detach()
        columns = {name: column[row, 1:length] for name, column in rows.items() if column.ndim == 2}
        loss = loss + (_losses(own, columns) * counts[row, : length - 1]).sum() / counts.sum()
    loss.backward()
    return (
        logprobs,
        loss.detach(),
        {name: part.grad for name, part in policy.named_parameters() if part.grad is not None},
    )


def _losses(logprobs: Tensor, columns: Mapping[str, Tensor]) -> Tensor:
    ratio = (logprobs - columns["prev_logprobs"]).exp()
    gain = columns["advantages"]
    clipped = -torch.minimum(ratio * gain, ratio.clamp(0.8, 1.25) * gain)
    weight = (columns["prev_logprobs"] - columns["generation_logprobs"]).exp().clamp(max=2.0)
    difference = logprobs - columns["reference_policy_logprobs"]
    return clipped * weight + 0.1 * ((-difference).exp() - 1 + difference)
