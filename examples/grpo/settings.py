"""The settings of the example, chosen so that a run on two CPU cores takes about two minutes and learns with every
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

    warmup_*: supervised steps over all ranks, samples in each step, peak learning rate.
    steps, prompts_per_step, group_size: GRPO steps, prompts in each step, rollouts of each prompt.
    optimizer_steps_per_batch: optimizer steps into which the rollouts of a step are divided.
    clip_low, clip_high: the probability ratio is clipped to 1 - clip_low .. 1 + clip_high.
    lr: learning rate of the first GRPO step. temperature, max_new_tokens: for sampling.
    micro_batch_tokens, micro_batch_rows: maximum size of a rank's forward pass: padded tokens if microbatches are
        planned by tokens, otherwise rows. max_grad_norm: L2, before the optimizer step.
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
