"""A grid of packed micro-batches for the ranks of a data-parallel trainer, as prime-rl's orchestrator makes it.

Each micro-batch has 8,192 tokens of 4 sequences: Python lists with a value a token, and the lengths and environments of
the sequences. Both sides start from these lists, and end with tensors in every rank. prime-rl's ranks make tensors of
the lists with torch; our sender makes arrays with NumPy, which takes a third of that time. Our client takes the lists,
too, but needs longer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch

MicroBatch: TypeAlias = Mapping[str, Any]
Grid: TypeAlias = Sequence[Sequence[MicroBatch]]
"""The micro-batches of each rank."""

RANKS = 8
BATCHES = 4
TOKENS = 8192
PER_TOKEN = {
    "input_ids": torch.int64,
    "loss_mask": torch.bool,
    "advantages": torch.float32,
    "inference_logprobs": torch.float32,
    "position_ids": torch.int64,
    "temperatures": torch.float32,
}
PER_SEQUENCE = {"sequence_lengths": torch.int64, "seq_lens": torch.int64}
_SEQUENCES = 4
_TENSORS = {**PER_TOKEN, **PER_SEQUENCE}
_ARRAYS = {torch.int64: np.int64, torch.float32: np.float32, torch.bool: np.bool_}
FIELDS = (*_TENSORS, "env_names")


def build() -> Grid:
    """The same grid in every process."""
    random = np.random.default_rng(0)
    return [[_micro_batch(random) for _ in range(BATCHES)] for _ in range(RANKS)]


def tensors(batch: MicroBatch) -> dict[str, Any]:
    """The lists of numbers as tensors."""
    made: dict[str, Any] = {name: torch.tensor(batch[name], dtype=dtype) for name, dtype in _TENSORS.items()}
    return {**made, "env_names": batch["env_names"]}


def arrays(batch: MicroBatch) -> dict[str, Any]:
    """The lists of numbers as arrays of the same types."""
    made: dict[str, Any] = {name: np.array(batch[name], _ARRAYS[dtype]) for name, dtype in _TENSORS.items()}
    return {**made, "env_names": batch["env_names"]}


def together(batches: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The fields of a rank's micro-batches under one name each, for a digest or to touch them."""
    return {f"{number}.{name}": value for number, batch in enumerate(batches) for name, value in batch.items()}


def _micro_batch(random: np.random.Generator) -> MicroBatch:
    lengths = random.multinomial(TOKENS, np.full(_SEQUENCES, 1 / _SEQUENCES)).tolist()
    return {
        "input_ids": random.integers(1, 32_000, TOKENS).tolist(),
        "loss_mask": (random.random(TOKENS) < 0.7).tolist(),
        "advantages": random.standard_normal(TOKENS, np.float32).tolist(),
        "inference_logprobs": (-random.random(TOKENS, np.float32)).tolist(),
        "position_ids": [position for length in lengths for position in range(length)],
        "temperatures": [1.0] * TOKENS,
        "sequence_lengths": lengths,
        "seq_lens": lengths,
        "env_names": [f"environment {number}" for number in range(_SEQUENCES)],
    }
