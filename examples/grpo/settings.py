"""The numbers of the example, chosen so that a run on two CPU cores takes about two minutes and learns for every
seed.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ModelSettings:
    """Shape of the tiny model (about 0.2 million parameters). initializer_range is wider than is usual for large
    models: at this width the usual 0.02 costs minutes before attention forms.
    """

    vocab_size: int = 512
    hidden_size: int = 64
    intermediate_size: int = 192
    layers: int = 3
    heads: int = 4
    max_positions: int = 512
    initializer_range: float = 0.06


@dataclass(frozen=True)
class GrpoSettings:
    """One run: warm-up, then GRPO.

    warmup_*: supervised steps over all ranks, samples a step, peak learning rate.
    steps, prompts_per_step, group_size: GRPO steps, prompts in each, rollouts of a prompt.
    optimizer_steps_per_batch: how many parts a step's rollouts are trained on in.
    clip_low, clip_high: the range of the probability ratio is 1 - clip_low to 1 + clip_high.
    lr: learning rate of the first GRPO step. temperature, max_new_tokens: of sampling.
    micro_batch_tokens, micro_batch_rows: of a rank's forward pass at most, padded tokens where it is planned by tokens,
        and rows where it is not. max_grad_norm: L2, before the optimizer step.
    """

    warmup_steps: int = 550
    warmup_batch_size: int = 32
    warmup_lr: float = 5e-3
    steps: int = 60
    prompts_per_step: int = 16
    group_size: int = 8
    optimizer_steps_per_batch: int = 2
    lr: float = 4e-4
    clip_low: float = 0.2
    clip_high: float = 0.28
    temperature: float = 1.0
    max_new_tokens: int = 72
    micro_batch_tokens: int = 2048
    micro_batch_rows: int = 4
    max_grad_norm: float = 1.0
