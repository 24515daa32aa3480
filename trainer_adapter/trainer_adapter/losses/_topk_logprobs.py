"""The input of losses that compare the policy with a teacher, of which only the k largest logits are known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from trainer_adapter.losses._interface import LossFunction
from trainer_adapter.losses.masking import require, token_weights


def topk_logprobs(logits: Tensor, data: Mapping[str, Any], loss_fn: LossFunction) -> dict[str, Tensor | None]:
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
