"""The interface of a loss.

A loss returns the *share* of its microbatch: a masked sum divided by a count over the whole global batch. Summed over
microbatches and data-parallel ranks the shares are the global mean, for parts of any size. The same holds for the
metrics of our losses, except those that end in `_min` or `_max`.

Losses have two shapes, see LossFunction. `call_loss` calls both. Our losses have the newer one: a worker with a sharded
vocabulary or sequence can compute their input in its own way.
"""

from __future__ import annotations

import enum
from typing import Any, Protocol, TypeAlias

import torch

LossResult: TypeAlias = tuple[torch.Tensor, dict[str, Any]]
"""The loss (0-d, to be differentiated) and metrics, `num_valid_samples` among them."""


class LossType(enum.Enum):
    """The unit that a loss averages over."""

    TOKEN_LEVEL = "token_level"  # noqa: S105  # a unit of averaging, not a secret
    SEQUENCE_LEVEL = "sequence_level"


class LossInputType(enum.Enum):
    """The keyword inputs of a loss of the newer shape; T = S - 1, k teacher candidates for each position.

    LOGIT: `logits` [B,S,V]; position i predicts token i + 1.
    LOGPROB: `next_token_logprobs` [B,T]; column i is log p(token i + 1 | tokens up to i).
    DISTILLATION: `student_topk_logprobs` and `teacher_topk_logprobs` [B,T,k], and `H_all` [B,T] or None, the student's
    entropy over the whole vocabulary.
    """

    LOGIT = "logit"
    LOGPROB = "logprob"
    DISTILLATION = "distillation"


def value_of(loss_fn: object, name: str) -> object:
    """The value of an enumeration that a loss names; None without it.

    Values are compared, because a loss may use another package's enumeration with the same names.
    """
    member = getattr(loss_fn, name, None)
    return getattr(member, "value", member)


class LossFunction(Protocol):
    """A loss of either shape.

    Older shape: `loss_fn(next_token_logits, data, global_valid_seqs, global_valid_toks)`, positionally, with logits
    [B,S,V]; position i predicts token i + 1, and the loss does the shift.
    Newer shape, recognised by its attribute `input_type` (LossInputType): `loss_fn(data=, global_valid_seqs=,
    global_valid_toks=, ...)` with the inputs of that type.

    data: the microbatch, a mapping.
    global_valid_seqs, global_valid_toks: 0-d counts over the global batch.
    The attribute `loss_type` (LossType) is optional; TOKEN_LEVEL requires a `token_mask` in the batch.
    The attribute `rows_together` is optional: 2 marks a loss over pairs of consecutive rows, which is refused dynamic
    batching and sequence packing, because these separate the pairs.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> LossResult: ...
