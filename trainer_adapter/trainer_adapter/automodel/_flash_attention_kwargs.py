"""Where each sequence of a packed row begins and ends, as FlashAttention's variable-length kernels take it."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass
class FlashAttentionKwargs:
    """Sequence i of N is at positions [cu_seqlens[i], cu_seqlens[i + 1]) of the packed row.

    cu_seqlens_q, cu_seqlens_k: [N + 1] int32, which the kernels insist on; equal values in separate storage.
    max_seqlen_q, max_seqlen_k: tokens of the longest sequence.
    """

    cu_seqlens_q: torch.Tensor
    cu_seqlens_k: torch.Tensor
    max_seqlen_q: int
    max_seqlen_k: int


def get_flash_attention_kwargs(input_lengths: torch.Tensor) -> FlashAttentionKwargs:
    """For sequences of input_lengths [N] tokens laid end to end; on their device, one transfer to the host.

    The padding behind the last sequence belongs to none.
    """
    cu_seqlens = torch.nn.functional.pad(input_lengths.cumsum(0, dtype=torch.int32), (1, 0))
    longest = int(input_lengths.max()) if input_lengths.numel() else 0
    return FlashAttentionKwargs(cu_seqlens, cu_seqlens.clone(), longest, longest)
