"""From a batch to the inputs of a forward pass: microbatches, packed or not, and the counts that losses are
divided by.
"""

from trainer_adapter.automodel.data._global_batch import check_sequence_dim, process_global_batch
from trainer_adapter.automodel.data._inputs import FlashAttentionKwargs, ProcessedInputs, ProcessedMicrobatch
from trainer_adapter.automodel.data._microbatches import (
    get_microbatch_iterator,
    make_processed_microbatch_iterator,
    process_microbatch,
)
from trainer_adapter.automodel.data._packing import (
    get_flash_attention_kwargs,
    pack_sequences,
    packed_bounds,
    unpack_rows,
)

__all__ = [
    "FlashAttentionKwargs",
    "ProcessedInputs",
    "ProcessedMicrobatch",
    "check_sequence_dim",
    "get_flash_attention_kwargs",
    "get_microbatch_iterator",
    "make_processed_microbatch_iterator",
    "pack_sequences",
    "packed_bounds",
    "process_global_batch",
    "process_microbatch",
    "unpack_rows",
]
