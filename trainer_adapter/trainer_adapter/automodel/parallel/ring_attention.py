"""Causal attention of a rank's positions with torch's context_parallel, which passes keys and values from rank to rank.

It needs CUDA, where it uses FlashAttention or the memory-efficient kernel. It supports one causal sequence for each
row: neither packed sequences nor sliding windows. Torch decides the positions of a rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.experimental._attention import set_rotate_method
from torch.nn.attention import SDPBackend, sdpa_kernel

from trainer_adapter.automodel.data import ProcessedInputs
from trainer_adapter.automodel.parallel.gathered_attention import refuse_unusual

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


@contextmanager
def attend_in_ring(inputs: ProcessedInputs, mesh: DeviceMesh) -> Iterator[Tensor]:
    """Torch shards a copy of seq_index; yield this rank's part [S_own] of it."""
    if inputs.seq_index is None:
        raise ValueError("the microbatch has no seq_index: process it with cp_size > 1")
    set_rotate_method("alltoall")  # by default torch gathers the keys and values of all ranks at once
    index = inputs.seq_index.clone()
    kernels = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]  # torch has no ring for the others
    with context_parallel(mesh, buffers=[index], buffer_seq_dims=[1]), sdpa_kernel(kernels):
        yield index[0].clone()


def ring_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **arguments: Any,
) -> tuple[Tensor, None]:
    """An attention function of transformers: query [B,H,S_own,D], key and value [B,H_kv,S_own,D], no mask.

    Returns [B,S_own,H,D]. Grouped heads are repeated, because the memory-efficient kernel does not support groups.
    """
    if sliding_window is not None:
        raise NotImplementedError(
            "torch's context parallelism does not support sliding windows: set "
            "dtensor_cfg.context_parallel_attention=gathered"
        )
    refuse_unusual(attention_mask, arguments)
    groups = query.shape[1] // key.shape[1]
    key, value = (part.repeat_interleave(groups, dim=1) for part in (key, value))
    output = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, dropout_p=dropout, is_causal=True, scale=scaling
    )
    return output.transpose(1, 2).contiguous(), None
