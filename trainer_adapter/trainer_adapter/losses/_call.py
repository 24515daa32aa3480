"""Calling a loss of either shape, and preparing the input of the newer shape."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor

from trainer_adapter.losses._interface import LossFunction, LossInputType, LossResult, value_of
from trainer_adapter.losses._token_logprobs import next_token_logprobs
from trainer_adapter.losses.masking import require, token_weights

PrepareFunction: TypeAlias = Callable[[Tensor, Mapping[str, Any], LossFunction], dict[str, Any]]
"""(logits, data, loss_fn) -> the keyword arguments of its `input_type`. Workers with a shard of the vocabulary or of
the sequence pass their own.
"""


def prepare_loss_input(logits: Tensor, data: Mapping[str, Any], loss_fn: LossFunction) -> dict[str, Any]:
    """The keyword arguments for `loss_fn.input_type`, from whole logits [B,S,V].

    Raises ValueError for a type that is not one of LossInputType.
    """
    kind = value_of(loss_fn, "input_type")
    if kind == LossInputType.LOGIT.value:
        return {"logits": logits}
    if kind == LossInputType.LOGPROB.value:
        return {"next_token_logprobs": next_token_logprobs(logits, require(data, "input_ids"))}
    if kind == LossInputType.DISTILLATION.value:
        return _topk_logprobs(logits, data, loss_fn)
    wanted = getattr(loss_fn, "input_type", None)
    raise ValueError(f"input_type of {type(loss_fn).__name__} is {wanted!r}, not one of {[*LossInputType]}")


def call_loss(
    loss_fn: LossFunction,
    next_token_logits: Tensor,
    data: Mapping[str, Any],
    global_valid_seqs: Tensor,
    global_valid_toks: Tensor,
    *,
    prepare_fn: PrepareFunction = prepare_loss_input,
) -> LossResult:
    """Call `loss_fn` on one microbatch: with prepared input if it has an `input_type`, otherwise with the logits.

    next_token_logits: [B,S,V], already divided by the temperature. prepare_fn is not called for the older shape.
    """
    if not hasattr(loss_fn, "input_type"):
        return loss_fn(next_token_logits, data, global_valid_seqs, global_valid_toks)
    prepared = prepare_fn(next_token_logits, data, loss_fn)
    return loss_fn(data=data, global_valid_seqs=global_valid_seqs, global_valid_toks=global_valid_toks, **prepared)


def _topk_logprobs(logits: Tensor, data: Mapping[str, Any], loss_fn: LossFunction) -> dict[str, Tensor | None]:
    """The input of a loss with input_type DISTILLATION, from whole logits [B,S,V].

    data: `teacher_topk_logits` and `teacher_topk_indices` [B,S,k]; their last position is dropped, as it is from the
    logits.
    loss_fn: its attributes `zero_outside_topk` (default False) and `kl_type` decide whether the student is normalised
    over the vocabulary and whether its entropy is needed.
    Positions outside `token_mask` have undefined values.
    """
    width = max(require(data, "input_ids").shape[1] - 1, 0)
    unused = (token_weights(data) == 0)[..., None]
    computed_in = torch.promote_types(logits.dtype, torch.float32)
    teacher = require(data, "teacher_topk_logits")[:, :width].to(computed_in)
    indices = require(data, "teacher_topk_indices")[:, :width]
    inputs: dict[str, Tensor | None] = {"teacher_topk_logprobs": teacher.log_softmax(-1), "H_all": None}
    if not getattr(loss_fn, "zero_outside_topk", False):
        chosen = logits[:, :width].gather(-1, indices).to(computed_in).masked_fill(unused, 0.0)
        return {**inputs, "student_topk_logprobs": chosen.log_softmax(-1)}
    student = logits[:, :width].to(computed_in).masked_fill(unused, 0.0).log_softmax(-1)
    if getattr(loss_fn, "kl_type", None) != "forward":
        inputs["H_all"] = -(student.exp() * student).sum(-1)
    return {**inputs, "student_topk_logprobs": student.gather(-1, indices)}
