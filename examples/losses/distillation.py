"""Distillation from a teacher of which only the k largest logits of every position are known.

With p the teacher's and q the student's distribution over the next token, the loss is a mean over tokens of

    forward   KL(p || q) = sum p log(p / q)     (arXiv:1503.02531): the student covers the teacher's modes
    reverse   KL(q || p) = sum q log(q / p)     (arXiv:2306.08543): the student avoids what the teacher avoids
    mixed     mixed_kl_weight * forward + (1 - mixed_kl_weight) * reverse

The teacher's mass outside the k candidates is unknown, so an option decides it:

- zero_outside_topk=False: both distributions are renormalised to the k candidates. The student's mass elsewhere is
  free.
- zero_outside_topk=True: the teacher has no mass outside; the student is normalised over the whole vocabulary. The
  forward divergence is then exact, because p is 0 outside. The reverse one would be infinite, so p is taken as
  exp(outside_logprob) at each token outside. With H the student's entropy over the whole vocabulary it is

      -H - sum over candidates of q log p - (1 - sum over candidates of q) * outside_logprob.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from trainer_adapter.losses import LossInputType, LossResult, LossType
from trainer_adapter.losses.masking import counts, masked_mean, token_weights
from trainer_adapter.losses.metrics import as_floats


@dataclass(frozen=True)
class DistillationOptions:
    """Options of DistillationLoss: the direction, its mixture, and the treatment of other tokens.

    outside_logprob is also the least log p of a candidate, such as one that the teacher filtered out (logit -inf).
    """

    kl_type: Literal["forward", "reverse", "mixed"] = "mixed"
    mixed_kl_weight: float = 0.5
    zero_outside_topk: bool = False
    outside_logprob: float = -100.0

    def __post_init__(self) -> None:
        if self.kl_type not in ("forward", "reverse", "mixed"):
            raise ValueError(f"kl_type must be forward, reverse or mixed, not {self.kl_type!r}")
        if not 0 <= self.mixed_kl_weight <= 1:
            raise ValueError(f"mixed_kl_weight must lie in [0, 1], not {self.mixed_kl_weight}")


class DistillationLoss:
    """The loss that the module's docstring defines."""

    loss_type = LossType.TOKEN_LEVEL
    input_type = LossInputType.DISTILLATION

    def __init__(self, options: DistillationOptions | None = None) -> None:
        self._options = options or DistillationOptions()
        self.zero_outside_topk = self._options.zero_outside_topk
        self.kl_type = self._options.kl_type

    def __call__(
        self,
        student_topk_logprobs: Tensor,
        teacher_topk_logprobs: Tensor,
        H_all: Tensor | None,  # noqa: N803  # the workers' name
        data: Mapping[str, Any],
        global_valid_seqs: Tensor,
        global_valid_toks: Tensor,
    ) -> LossResult:
        """student_topk_logprobs, teacher_topk_logprobs: [B,S-1,k], at the teacher's candidates. The teacher's are
        renormalised to these, the student's too without zero_outside_topk.
        H_all: [B,S-1], required with zero_outside_topk unless kl_type is "forward".
        data: `token_mask` [B,S], `sample_mask` [B].
        """
        mask = token_weights(data, student_topk_logprobs.dtype)
        student = student_topk_logprobs.masked_fill((mask == 0)[..., None], 0.0)
        teacher = teacher_topk_logprobs.to(student.dtype)
        loss = masked_mean(self._divergence(student, teacher, H_all), mask, global_valid_toks)
        return loss, as_floats({"loss": loss, **counts(data, mask)})

    def _divergence(self, student: Tensor, teacher: Tensor, entropy: Tensor | None) -> Tensor:
        floored = teacher.clamp(min=self._options.outside_logprob)
        forward = (teacher.exp() * (floored - student)).sum(-1)
        if self.kl_type == "forward":
            return forward
        reverse = self._reverse(student, floored, entropy)
        if self.kl_type == "reverse":
            return reverse
        return self._options.mixed_kl_weight * forward + (1 - self._options.mixed_kl_weight) * reverse

    def _reverse(self, student: Tensor, teacher: Tensor, entropy: Tensor | None) -> Tensor:
        shares = student.exp()
        if not self.zero_outside_topk:
            return (shares * (student - teacher)).sum(-1)
        if entropy is None:
            raise ValueError(f"H_all is required for a {self.kl_type} divergence with zero_outside_topk")
        outside = (1 - shares.sum(-1)) * self._options.outside_logprob
        return -entropy - (shares * teacher).sum(-1) - outside
