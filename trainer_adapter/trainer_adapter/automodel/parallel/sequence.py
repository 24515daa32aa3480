"""Tensors whose positions are sharded over context-parallel ranks.

A rank's shard of `seq_index` is the only record of its positions. For balanced causal attention every rank has one
early and one late stretch, so a shard is not a range.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor
from torch.distributed import ProcessGroup

from trainer_adapter.automodel.data import ProcessedInputs
from trainer_adapter.automodel.parallel.collectives import concat_over

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


@dataclass(frozen=True)
class SequenceShard:
    """This rank's positions of a sequence.

    positions: [S_own] int64.
    group: the ranks that share the sequence; each has S_own positions.
    """

    positions: Tensor
    group: ProcessGroup

    def gather(self, own: Tensor) -> Tensor:
        """Gather [B,S,...] in order on every rank, from this rank's [B,S_own,...]. Differentiable."""
        order = concat_over(self.positions, 0, self.group).argsort()
        return concat_over(own, 1, self.group).index_select(1, order)

    def next_tokens(self, input_ids: Tensor) -> Tensor:
        """The token after each position of this rank, [B,S_own]; the first token for the last position.

        input_ids: [B,S], the whole sequence.
        """
        return input_ids.roll(-1, dims=1).index_select(1, self.positions)


def sequence_shard(inputs: ProcessedInputs, cp_mesh: DeviceMesh | None) -> SequenceShard | None:
    """This rank's shard of the inputs; None if they were not prepared for context parallelism."""
    if not inputs.has_context_parallel:
        return None
    if cp_mesh is None or inputs.seq_index is None:
        raise ValueError("the microbatch is prepared for context parallelism: pass a cp_mesh, and keep its seq_index")
    if inputs.seq_index.shape[1] * cp_mesh.size() != inputs.seq_len:
        raise ValueError(
            f"seq_index has {inputs.seq_index.shape[1]} positions of {inputs.seq_len} on each of {cp_mesh.size()} "
            "ranks: run the forward pass and its post-processing inside context_parallel_contexts"
        )
    return SequenceShard(inputs.seq_index[0], cp_mesh.get_group())
