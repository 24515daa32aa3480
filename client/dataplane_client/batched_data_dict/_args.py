"""The two argument dictionaries of BatchedDataDict.shard_by_batch_size, which documents them."""

from __future__ import annotations

from typing import Literal, TypedDict

from dataplane_client.packing import PackingAlgorithm


class DynamicBatchingArgs(TypedDict):
    """Microbatches of rows of similar length, padded to a common length. All counts are in tokens."""

    max_tokens_per_microbatch: int
    sequence_length_round: int
    input_key: str
    input_lengths_key: str


class _RequiredSequencePackingArgs(TypedDict):
    max_tokens_per_microbatch: int
    input_key: str
    input_lengths_key: str
    algorithm: PackingAlgorithm | str
    sequence_length_pad_multiple: int


class SequencePackingArgs(_RequiredSequencePackingArgs, total=False):
    """Microbatches of rows that are laid end to end. All counts are in tokens.

    microbatch_order: "largest_first" puts a shard's fullest microbatches first; "packer" or None (the default) keeps
        the packer's order.
    seed: equal lengths are packed alike in every process; None (the default): "first_fit_shuffle" draws from the global
        random module.
    """

    microbatch_order: Literal["packer", "largest_first"] | None
    seed: int | None
