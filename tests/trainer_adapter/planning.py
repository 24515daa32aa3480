"""How tests plan microbatches of `input_ids` and `input_lengths`."""

from __future__ import annotations

from dataplane_client.batched_data_dict import DynamicBatchingArgs, SequencePackingArgs


def packing_args(
    max_tokens: int, algorithm: str = "modified_first_fit_decreasing", pad_multiple: int = 1
) -> SequencePackingArgs:
    return SequencePackingArgs(
        max_tokens_per_microbatch=max_tokens,
        input_key="input_ids",
        input_lengths_key="input_lengths",
        algorithm=algorithm,
        sequence_length_pad_multiple=pad_multiple,
    )


def dynamic_args(max_tokens: int, rounding: int) -> DynamicBatchingArgs:
    return DynamicBatchingArgs(
        max_tokens_per_microbatch=max_tokens,
        sequence_length_round=rounding,
        input_key="input_ids",
        input_lengths_key="input_lengths",
    )
