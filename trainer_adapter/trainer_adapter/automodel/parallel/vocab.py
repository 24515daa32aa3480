"""Logits whose vocabulary may be sharded over tensor-parallel ranks, and results computed from them without gathering.

A rank holds a consecutive range of the vocabulary: ceil(V / ranks) entries on every rank, fewer or none on the last
ones, as DTensor shards it. Short ranges are padded with -inf, which has probability 0, so all ranks send tensors of one
shape.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed.tensor import DTensor, Replicate

from trainer_adapter.automodel.parallel.collectives import concat_over
from trainer_adapter.losses._token_logprobs import POSITIONS_AT_ONCE, chosen_logprobs


@dataclass(frozen=True)
class VocabShard:
    """A rank's range of the vocabulary.

    own: [..., V_own], differentiable; V_own is the same on all ranks.
    vocab_size: V, without padding.
    group: the ranks that hold the other ranges; None: own is the whole vocabulary.
    """

    own: Tensor
    vocab_size: int
    group: ProcessGroup | None

    def gather(self) -> Tensor:
        """Gather [..., V] on every rank. Differentiable."""
        if self.group is None:
            return self.own
        return concat_over(self.own, self.own.ndim - 1, self.group)[..., : self.vocab_size]

    def logprobs(self, tokens: Tensor, at_once: int = POSITIONS_AT_ONCE, temperature: float = 1.0) -> Tensor:
        """Log-probabilities [B,S], float32, of tokens [B,S] int64 in [0, V), from own [B,S,V_own]. Differentiable.

        at_once: positions that are normalised at the same time. temperature: own is divided by it.
        """
        if self.group is None:
            return chosen_logprobs(self.own, tokens, None, at_once, temperature)
        return chosen_logprobs(self.own, tokens - self._first(), self.group, at_once, temperature)

    def topk(self, k: int) -> tuple[Tensor, Tensor]:
        """The min(k, V) largest logits, float32, largest first, and their int64 vocabulary ids; both [..., min(k, V)].

        Not differentiable with several ranks.
        """
        if self.group is None:
            values, ids = self.own.topk(min(k, self.vocab_size), dim=-1)
            return values.float(), ids
        candidates = self._gathered_topk(k, self.group)
        values, places = candidates[0].topk(min(k, self.vocab_size), dim=-1)
        return values, candidates[1].gather(-1, places)

    def _gathered_topk(self, k: int, group: ProcessGroup) -> tuple[Tensor, Tensor]:
        """Each rank's k largest logits (all of a shorter range) and their vocabulary ids.

        Padding is removed by its place, because a real logit may also be -inf.
        """
        width = min(k, self.own.shape[-1])
        counts = [min(width, self._held_by(rank)) for rank in range(group.size())]
        own = self.own.detach()[..., : self._held_by(torch.distributed.get_rank(group))]
        values, ids = own.topk(min(width, own.shape[-1]), dim=-1)
        values = values.float()
        short = (0, width - values.shape[-1])
        values = concat_over(torch.nn.functional.pad(values, short), values.ndim - 1, group)
        ids = concat_over(torch.nn.functional.pad(ids + self._first(), short), ids.ndim - 1, group)
        real = [rank * width + place for rank, count in enumerate(counts) for place in range(count)]
        return values[..., real], ids[..., real]

    def _held_by(self, rank: int) -> int:
        width = self.own.shape[-1]
        return max(0, min(width, self.vocab_size - rank * width))

    def _first(self) -> int:
        """The vocabulary id of the first entry of own."""
        return torch.distributed.get_rank(self.group) * self.own.shape[-1]


def vocab_shard(logits: Tensor) -> VocabShard:
    """This rank's range of the vocabulary, the last dimension of logits [..., V].

    A DTensor may be sharded in any way over its mesh; other dimensions than the vocabulary are gathered first.
    """
    if not isinstance(logits, DTensor):
        return VocabShard(logits, logits.shape[-1], None)
    mesh, vocab = logits.device_mesh, logits.ndim - 1
    vocab_axis = [axis for axis, placement in enumerate(logits.placements) if placement.is_shard(vocab)][-1:]
    placements = [kept if axis in vocab_axis else Replicate() for axis, kept in enumerate(logits.placements)]
    own = logits.redistribute(placements=placements).to_local()
    if not vocab_axis:
        return VocabShard(own, logits.shape[-1], None)
    short = -(-logits.shape[-1] // mesh.size(vocab_axis[0])) - own.shape[-1]
    padded = torch.nn.functional.pad(own, (0, short), value=float("-inf")) if short else own
    return VocabShard(padded, logits.shape[-1], mesh.get_group(vocab_axis[0]))
