"""Results of a packed row, back in the rows of the batch that was packed."""

from __future__ import annotations

from torch import Tensor

from trainer_adapter.automodel._flash_attention_kwargs import FlashAttentionKwargs
from trainer_adapter.automodel.data import ProcessedMicrobatch


def sequence_bounds(microbatch: ProcessedMicrobatch) -> Tensor:
    """[N+1] int32: sequence i of a packed microbatch is at positions [bounds[i], bounds[i + 1]) of its one row."""
    kwargs = microbatch.processed_inputs.flash_attn_kwargs
    if not isinstance(kwargs, FlashAttentionKwargs):
        raise ValueError(
            "enable_seq_packing is set, but the microbatch was not packed: its flash_attn_kwargs are empty"
        )
    return kwargs.cu_seqlens_q


def unpacked(packed: Tensor, microbatch: ProcessedMicrobatch) -> Tensor:
    """[N,S,...] with zeros behind each sequence, from packed [1,L,...]; S as the rows were wide before packing."""
    bounds = sequence_bounds(microbatch).tolist()
    shape = (microbatch.original_batch_size, microbatch.original_seq_len, *packed.shape[2:])
    rows = packed.new_zeros(shape)
    for row, start, end in zip(rows, bounds, bounds[1:], strict=False):
        row[: end - start] = packed[0, start:end]
    return rows
