"""Context parallelism: the positions of a sequence that a rank computes, and attention over those of all ranks.

A sequence is cut into 2 * cp stretches. Rank r gets stretch r and the r-th from the end: causal attention costs more
for later positions, so all ranks do equal work. A microbatch is sharded only during its forward and backward pass;
before and after, its tensors are whole.

Models find the attention by a name registered with transformers. No mask is registered under that name: transformers
would take a jump of positions for a new packed sequence and mask the early stretch from the late one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from trainer_adapter.automodel.choices import context_parallel_attention
from trainer_adapter.automodel.config import DistributedContext
from trainer_adapter.automodel.data import FlashAttentionKwargs, ProcessedInputs
from trainer_adapter.automodel.packages import require_transformers
from trainer_adapter.automodel.parallel.gathered_attention import attend_to, gathered_attention, shard_sequence
from trainer_adapter.automodel.parallel.ring_attention import attend_in_ring, ring_attention

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

_ATTENTIONS = {"gathered": gathered_attention, "torch": ring_attention}


def register_attention(config: Mapping[str, Any]) -> str:
    """Register the configured attention with transformers and return its name."""
    kind = context_parallel_attention(config)
    name = f"rl_dataplane_{kind}"
    require_transformers().AttentionInterface.register(name, _ATTENTIONS[kind])
    return name


def check_attention(model: Any) -> None:
    """Raise NotImplementedError for a model with layers that do not use a registered attention function.

    Such layers would silently treat a rank's positions as the whole sequence.
    """
    kinds = set(getattr(model.config, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}
    if kinds or not getattr(model, "_supports_attention_backend", False):
        raise NotImplementedError(
            f"Context parallel is not supported for {type(model).__name__}: its layers compute "
            f"{', '.join(sorted(kinds)) or 'attention by themselves'}; set dtensor_cfg.context_parallel_size=1"
        )


def context_parallel_contexts(
    context: DistributedContext, config: Mapping[str, Any]
) -> Callable[[ProcessedInputs], AbstractContextManager[None]] | None:
    """Return a function from a microbatch's inputs to the context of its forward and backward pass; None if cp_size is
    1.

    Inside the context the tensors of cp_buffers, the same objects, hold this rank's S / cp_size positions. Afterwards
    they are whole again, also after an exception. The context raises ValueError for inputs that were not prepared for
    context parallelism and for a width that is not a multiple of 2 * cp_size.
    """
    if context.cp_size == 1:
        return None
    mesh, kind = context.device_mesh["cp"], context_parallel_attention(config)

    @contextmanager
    def enter(inputs: ProcessedInputs) -> Iterator[None]:
        _check_inputs(inputs, mesh.size())
        positions = positions_of_ranks(inputs.seq_len, mesh.size(), inputs.input_ids.device)
        own = positions[mesh.get_local_rank()]
        with _attend(inputs, positions, mesh, kind), _shard_buffers(inputs.cp_buffers, own):
            yield

    return enter


def _check_inputs(inputs: ProcessedInputs, ranks: int) -> None:
    if not inputs.has_context_parallel:
        raise ValueError(f"the microbatch is not prepared for context parallelism: process it with cp_size={ranks}")
    if inputs.seq_len % (2 * ranks):
        raise ValueError(
            f"input_ids: rows of {inputs.seq_len} tokens cannot be divided over context_parallel_size={ranks} into an "
            f"early and a late stretch each: set make_sequence_length_divisible_by to a multiple of {2 * ranks}"
        )


@contextmanager
def _shard_buffers(buffers: list[Tensor], positions: Tensor) -> Iterator[None]:
    """Make the tensors hold these positions of dim 1. Their memory, often a part of a batch, is not written."""
    whole = [buffer.data for buffer in buffers]
    try:
        for buffer in buffers:
            buffer.data = buffer.data.index_select(1, positions)
        yield
    finally:
        for buffer, data in zip(buffers, whole, strict=True):
            buffer.data = data


def _attend(
    inputs: ProcessedInputs, positions: list[Tensor], mesh: DeviceMesh, kind: str
) -> AbstractContextManager[None]:
    """A context in which attention sees the positions of all ranks."""
    if kind == "torch":
        return attend_in_ring(mesh.get_group())
    packed = inputs.flash_attn_kwargs
    bounds = packed.cu_seqlens_q if isinstance(packed, FlashAttentionKwargs) else None
    return attend_to(shard_sequence(positions, mesh.get_local_rank(), bounds, mesh.get_group()))


def positions_of_ranks(length: int, ranks: int, device: torch.device) -> list[Tensor]:
    """The positions of each rank, [length / ranks] int64 each; 2 * ranks must divide length."""
    stretches = torch.arange(length, device=device).chunk(2 * ranks)
    return [torch.cat([stretches[rank], stretches[-1 - rank]]) for rank in range(ranks)]
