"""The two argument dictionaries of BatchedDataDict.shard_by_batch_size. Lengths and budgets are in tokens."""

from __future__ import annotations

from typing import Literal, TypedDict

from dataplane_client.packing import PackingAlgorithm


class DynamicBatchingArgs(TypedDict):
    """Microbatches of rows of similar length, padded to a common length.

    max_tokens_per_microbatch: rows times padded length never exceed it.
    sequence_length_round: padded lengths are multiples of it, unless capped at the width of data[input_key].
    input_key: a rectangular tensor column, rows x positions.
    input_lengths_key: the column of valid lengths, one per row.
    """

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
    """Microbatches of rows that are laid end to end.

    max_tokens_per_microbatch: the summed padded lengths of a microbatch never exceed it.
    input_key: the column that the caller packs; not read here.
    input_lengths_key: the column of valid lengths, one per row.
    algorithm: see dataplane_client.packing.get_packer.
    sequence_length_pad_multiple: each length is rounded up to a multiple of it.
    microbatch_order: "largest_first" puts a shard's fullest microbatches first; "packer" or None (the default) keeps
        the packer's order.
    """

    microbatch_order: Literal["packer", "largest_first"] | None
