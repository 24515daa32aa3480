"""What a policy's configuration says about microbatches, in the words of BatchedDataDict.shard_by_batch_size.

The driver, which plans for all ranks, and a worker that plans for itself ask here, so that both plan alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import lcm
from typing import Any, Literal, TypeAlias

from dataplane_client.batched_data_dict import DynamicBatchingArgs, SequencePackingArgs
from trainer_adapter.automodel.config import required

Stage: TypeAlias = Literal["train", "logprob"]
"""Microbatches of inference may hold more tokens than those that are differentiated."""


def width_multiple(config: Mapping[str, Any]) -> int:
    """What the width of every batch, and of every microbatch cut from it, must be a multiple of, in tokens.

    make_sequence_length_divisible_by, 2 * context_parallel_size (each rank takes an early and a late stretch of a
    sequence) and, with sequence parallelism, tensor_parallel_size divide it.
    """
    layout = config["dtensor_cfg"]
    context = int(layout.get("context_parallel_size", 1))
    tensor = int(layout.get("tensor_parallel_size", 1)) if layout.get("sequence_parallel") else 1
    return lcm(int(config.get("make_sequence_length_divisible_by", 1)), 2 * context if context > 1 else 1, tensor)


def dynamic_batching_args(config: Mapping[str, Any], stage: Stage) -> DynamicBatchingArgs | None:
    """None where dynamic batching is off; AssertionError where sequence packing is on as well."""
    if not _is_enabled(config, "dynamic_batching"):
        return None
    if _is_enabled(config, "sequence_packing"):
        raise AssertionError("dynamic_batching and sequence_packing are both enabled; a batch can follow one plan only")
    return DynamicBatchingArgs(
        max_tokens_per_microbatch=required(config, f"dynamic_batching.{stage}_mb_tokens"),
        sequence_length_round=lcm(
            int(required(config, "dynamic_batching.sequence_length_round")), width_multiple(config)
        ),
        input_key="input_ids",
        input_lengths_key="input_lengths",
    )


def sequence_packing_args(config: Mapping[str, Any], stage: Stage) -> SequencePackingArgs | None:
    """None where sequence packing is off; AssertionError where dynamic batching is on as well."""
    if not _is_enabled(config, "sequence_packing"):
        return None
    if _is_enabled(config, "dynamic_batching"):
        raise AssertionError("dynamic_batching and sequence_packing are both enabled; a batch can follow one plan only")
    return SequencePackingArgs(
        max_tokens_per_microbatch=required(config, f"sequence_packing.{stage}_mb_tokens"),
        input_key="input_ids",
        input_lengths_key="input_lengths",
        algorithm=config["sequence_packing"].get("algorithm", "modified_first_fit_decreasing"),
        sequence_length_pad_multiple=int(config.get("make_sequence_length_divisible_by", 1)),
    )


def _is_enabled(config: Mapping[str, Any], block: str) -> bool:
    return bool((config.get(block) or {}).get("enabled", False))
