"""Tensors whose positions are dealt out over context-parallel ranks.

Which positions a rank holds is known from its shard of `seq_index`, and from nothing else: causal attention is balanced
by giving every rank one early and one late stretch, so a shard is not a range.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor
from torch.distributed import ProcessGroup

from trainer_adapter.automodel.data import ProcessedInputs
from trainer_adapter.automodel.parallel.collectives import concatenated

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


@dataclass(frozen=True)
class SequenceShard:
    """positions: [S_own] int64, the places in the sequence that this rank holds. group: the ranks with the others, of
    which each holds S_own as well.
    """

    positions: Tensor
    group: ProcessGroup

    def whole(self, own: Tensor) -> Tensor:
        """[B,S,...] in order on every rank, from this rank's [B,S_own,...]. Differentiable."""
        order = concatenated(self.positions, 0, self.group).argsort()
        return concatenated(own, 1, self.group).index_select(1, order)

    def next_tokens(self, input_ids: Tensor) -> Tensor:
        """For each position of this rank the token after it, [B,S_own]; the first token for the last position.

        input_ids: [B,S], the whole sequence.
        """
        return input_ids.roll(-1, dims=1).index_select(1, self.positions)


def sequence_shard(inputs: ProcessedInputs, cp_mesh: DeviceMesh | None) -> SequenceShard | None:
    """Which positions of inputs this rank of cp_mesh holds; None: all, since nothing was prepared to be dealt out."""
    if not inputs.has_context_parallel:
        return None
    if cp_mesh is None or inputs.seq_index is None:
        raise ValueError("a microbatch prepared for context parallelism needs a cp_mesh and its seq_index")
    if inputs.seq_index.shape[1] * cp_mesh.size() != inputs.seq_len:
        raise ValueError(
            f"seq_index has {inputs.seq_index.shape[1]} positions of {inputs.seq_len} on each of {cp_mesh.size()} "
            "ranks: the forward pass and what is made of it need context_parallel_contexts around them"
        )
    return SequenceShard(inputs.seq_index[0], cp_mesh.get_group())
