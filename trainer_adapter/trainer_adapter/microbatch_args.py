"""How a policy's configuration plans microbatches, as arguments of BatchedDataDict.shard_by_batch_size.

The driver plans for all ranks; a worker that is called directly plans for itself. Both use this module, so both plan
alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import lcm
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

from dataplane_client.batched_data_dict import (
    BatchedDataDict,
    DynamicBatchingArgs,
    SequencePackingArgs,
    SlicedDataDict,
)
from trainer_adapter.automodel.config import is_enabled, required

Stage: TypeAlias = Literal["train", "logprob"]
"""The limits on tokens per microbatch differ: inference keeps no activations."""

T = TypeVar("T")


class MicrobatchArgs(NamedTuple):
    """The arguments of the enabled plan. At most one is set; with none, a microbatch is a fixed number of rows."""

    packing: SequencePackingArgs | None
    dynamic: DynamicBatchingArgs | None

    def shard(
        self, data: BatchedDataDict[T], shards: int, batch_size: int | None
    ) -> tuple[list[SlicedDataDict[T]], list[int] | None]:
        """Divide a batch into shards with the plan of their microbatches.

        batch_size: rows of a global batch over all shards; None: all rows. The second value maps the shards' rows, one
        shard after the other, to rows of `data`; None: the order is unchanged. With dynamic batching that holds only
        for batch_size=None. Raises AssertionError if the rows cannot be divided evenly.
        """
        if self.packing is not None:
            return data.shard_by_batch_size(shards, batch_size=batch_size, sequence_packing_args=self.packing)
        if self.dynamic is not None:
            return data.shard_by_batch_size(shards, batch_size=batch_size, dynamic_batching_args=self.dynamic)
        return data.shard_by_batch_size(shards, batch_size=batch_size), None


def microbatch_args(config: Mapping[str, Any], stage: Stage) -> MicrobatchArgs:
    """Read the enabled plan from the configuration.

    Raises AssertionError when both plans are enabled, KeyError when the enabled one lacks a setting.
    """
    packs, is_dynamic = is_enabled(config, "sequence_packing"), is_enabled(config, "dynamic_batching")
    if packs and is_dynamic:
        raise AssertionError("dynamic_batching and sequence_packing are both enabled; enable at most one of them")
    return MicrobatchArgs(
        packing=_packing_args(config, stage) if packs else None,
        dynamic=_dynamic_args(config, stage) if is_dynamic else None,
    )


def width_multiple(config: Mapping[str, Any]) -> int:
    """The number of tokens that must divide the width of every batch and of every microbatch cut from it.

    It is the least common multiple of make_sequence_length_divisible_by, 2 * context_parallel_size (each rank takes an
    early and a late stretch of a sequence) and, with sequence parallelism, tensor_parallel_size.
    """
    layout = config["dtensor_cfg"]
    context = int(layout.get("context_parallel_size", 1))
    tensor = int(layout.get("tensor_parallel_size", 1)) if layout.get("sequence_parallel") else 1
    return lcm(int(config.get("make_sequence_length_divisible_by", 1)), 2 * context if context > 1 else 1, tensor)


def _dynamic_args(config: Mapping[str, Any], stage: Stage) -> DynamicBatchingArgs:
    return DynamicBatchingArgs(
        max_tokens_per_microbatch=required(config, f"dynamic_batching.{stage}_mb_tokens"),
        sequence_length_round=lcm(
            int(required(config, "dynamic_batching.sequence_length_round")), width_multiple(config)
        ),
        input_key="input_ids",
        input_lengths_key="input_lengths",
    )


def _packing_args(config: Mapping[str, Any], stage: Stage) -> SequencePackingArgs:
    return SequencePackingArgs(
        max_tokens_per_microbatch=required(config, f"sequence_packing.{stage}_mb_tokens"),
        input_key="input_ids",
        input_lengths_key="input_lengths",
        algorithm=config["sequence_packing"].get("algorithm", "modified_first_fit_decreasing"),
        sequence_length_pad_multiple=int(config.get("make_sequence_length_divisible_by", 1)),
        seed=0,  # without a driver every rank plans for itself, and those of a replica must plan alike
    )
