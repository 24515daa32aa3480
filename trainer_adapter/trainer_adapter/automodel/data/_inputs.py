"""The inputs of one forward pass, and the microbatch that they were made from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from dataplane_client.batched_data_dict import BatchedDataDict


@dataclass
class FlashAttentionKwargs:
    """The bounds of packed sequences, as arguments of FlashAttention's variable-length kernels.

    Sequence i of N is at positions [cu_seqlens[i], cu_seqlens[i + 1]) of the packed row.
    cu_seqlens_q, cu_seqlens_k: [N + 1] int32, as the kernels require; equal values in separate storage.
    max_seqlen_q, max_seqlen_k: tokens of the longest sequence.
    bounds: the values of cu_seqlens_q on the host, where reading them does not wait for the device.
    """

    cu_seqlens_q: torch.Tensor
    cu_seqlens_k: torch.Tensor
    max_seqlen_q: int
    max_seqlen_k: int
    bounds: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.bounds:
            self.bounds = self.cu_seqlens_q.tolist()


@dataclass
class ProcessedInputs:
    """The inputs of one forward pass: B rows of S tokens. A packed microbatch is one row, B = 1.

    input_ids: [B,S] int64.
    seq_len: S.
    attention_mask: [B,S] bool, all true; None for packed or context-parallel inputs.
    position_ids: [B,S] int64; None if the model computes its own (multimodal).
    flash_attn_kwargs: bounds of the packed sequences; empty if not packed.
    vlm_kwargs: tensors of images and similar, by the model's argument names.
    cp_buffers: the tensors that context parallelism shards along dim 1; empty without it.
    seq_index: [1,S] int64, 0 to S - 1; a shard of it gives the original positions of that shard. None without context
    parallelism.
    """

    input_ids: torch.Tensor
    seq_len: int
    attention_mask: torch.Tensor | None = None
    position_ids: torch.Tensor | None = None
    flash_attn_kwargs: dict[str, Any] | FlashAttentionKwargs = field(default_factory=dict)
    vlm_kwargs: dict[str, Any] = field(default_factory=dict)
    cp_buffers: list[torch.Tensor] = field(default_factory=list)
    seq_index: torch.Tensor | None = None

    @property
    def has_context_parallel(self) -> bool:
        return bool(self.cp_buffers)

    @property
    def has_flash_attention(self) -> bool:
        return bool(self.flash_attn_kwargs)

    @property
    def is_multimodal(self) -> bool:
        return bool(self.vlm_kwargs)


@dataclass
class ProcessedMicrobatch:
    """A microbatch and its inputs.

    data_dict: the microbatch, the same object that was cut from the batch.
    original_batch_size, original_seq_len: rows and columns of its input_ids before packing.
    """

    data_dict: BatchedDataDict[Any]
    processed_inputs: ProcessedInputs
    original_batch_size: int
    original_seq_len: int
