"""Causal attention of a rank's positions with keys and values that travel from rank to rank (ring attention,
arXiv:2310.01889).

Torch's functions behind its context_parallel are the rounds: they send keys and values on while a rank attends to those
it has, and send gradients after them. Torch enters them through scaled_dot_product_attention, where most kernels need a
key for each query head, so that grouped heads would be repeated before they travel: 8 times the traffic for 8 groups.
Here they travel as they are. What a kernel needs repeated is repeated by the rank that has received it, and the
gradients of the copies are summed, in float32, before they travel.

It supports one causal sequence for each row: neither packed sequences, nor sliding windows, nor dropout, whose random
numbers torch keeps of the last round alone. The ranks are state of the process, not of a thread: activation
checkpointing repeats the forward pass in a thread of the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from trainer_adapter.automodel.parallel.gathered_attention import refuse_unusual

try:
    from torch.distributed.tensor.experimental._context_parallel import _attention as _rounds
except ImportError:  # torch 2.9
    from torch.distributed.tensor.experimental import _attention as _rounds  # type: ignore[no-redef]

_SEQUENCE = 2
_ring: ProcessGroup | None = None


@contextmanager
def attend_in_ring(group: ProcessGroup) -> Iterator[None]:
    """Inside the block, layers attend to the positions of all ranks; each rank has an early and a late stretch."""
    global _ring
    _rounds.set_rotate_method("alltoall")  # by default torch gathers the keys and values of all ranks at once
    _ring = group
    try:
        yield
    finally:
        _ring = None


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

    Returns [B,S_own,H,D]. RuntimeError outside of `attend_in_ring`.
    """
    if sliding_window is not None or dropout:
        what = "sliding windows" if sliding_window is not None else "dropout in attention"
        raise NotImplementedError(
            f"torch's ring attention does not support {what}: set dtensor_cfg.context_parallel_attention=gathered"
        )
    refuse_unusual(attention_mask, arguments)
    if _ring is None:
        raise RuntimeError("context parallelism: run the forward pass inside context_parallel_contexts")
    output: Tensor = _Ring.apply(query, key, value, scaling, _ring)  # type: ignore[no-untyped-call]
    return output.transpose(1, 2).contiguous(), None


class _Ring(torch.autograd.Function):
    """Causal attention over the ranks of a group: query [B,H,S_own,D], key and value [B,H_kv,S_own,D]."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, scale: float | None, group: ProcessGroup
    ) -> Tensor:
        kernel = _kernel_for(query)
        ctx.how = {"group": group, "seq_dim": _SEQUENCE, "is_causal": True, "scale": scale}
        output, logsumexp, *rest = _rounds._templated_ring_attention(  # noqa: SLF001  # torch shows it through DTensor only
            op=kernel.attend, query=query, key=key, value=value, **ctx.how
        )
        ctx.kernel, ctx.rest = kernel, dict(zip(kernel.rest, rest, strict=False))  # and a mask for debugging
        ctx.save_for_backward(query, key, value, output, logsumexp)
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        query, key, value, output, logsumexp = ctx.saved_tensors
        of_query, of_key, of_value, *_ = _rounds._templated_ring_attention_backward(  # noqa: SLF001
            op=ctx.kernel.attend_back,
            grad_out=gradient,
            grad_out_name=ctx.kernel.gradient,
            query=query,
            key=key,
            value=value,
            out=output,
            logsumexp=logsumexp,
            **ctx.how,
            **ctx.rest,
        )
        return of_query, of_key, of_value, None, None


# --- one round ---


@dataclass(frozen=True)
class _Kernel:
    """Attention over one round's keys.

    forward, backward: torch's operators. given, given_back: their arguments beside those of every kernel.
    rest: the names by which backward takes what forward returns beside the output and the logarithm of its sums.
    gradient: the name by which it takes the output's gradient.
    groups: whether a key may serve several query heads.
    """

    forward: Callable[..., tuple[Any, ...]]
    backward: Callable[..., tuple[Any, ...]]
    given: Mapping[str, Any]
    given_back: Mapping[str, Any]
    rest: tuple[str, ...]
    gradient: str
    groups: bool

    def attend(self, query: Tensor, key: Tensor, value: Tensor, **how: Any) -> tuple[Any, ...]:
        key, value = (self._copied(part, query) for part in (key, value))
        return self.forward(query=query, key=key, value=value, **self.given, **how)

    def attend_back(self, query: Tensor, key: Tensor, value: Tensor, **how: Any) -> tuple[Tensor, ...]:
        copies = [self._copied(part, query) for part in (key, value)]
        of_query, *of_copies = self.backward(query=query, key=copies[0], value=copies[1], **self.given_back, **how)[:3]
        return of_query, *(self._summed(part, key) for part in of_copies)

    def _copied(self, part: Tensor, query: Tensor) -> Tensor:
        groups = query.shape[1] // part.shape[1]
        return part if self.groups or groups == 1 else part.repeat_interleave(groups, dim=1)

    def _summed(self, gradient: Tensor, key: Tensor) -> Tensor:
        if gradient.shape == key.shape:
            return gradient
        of_groups: Tensor = gradient.unflatten(1, (key.shape[1], -1))
        return of_groups.sum(2, dtype=torch.float32)


_aten: Any = torch.ops.aten
_ON_CPU = _Kernel(
    _aten._scaled_dot_product_flash_attention_for_cpu,  # noqa: SLF001  # the operators have no other names
    _aten._scaled_dot_product_flash_attention_for_cpu_backward,  # noqa: SLF001
    given={},
    given_back={"dropout_p": 0.0},
    rest=(),
    gradient="grad_out",
    groups=False,
)
_EFFICIENT = _Kernel(
    _aten._scaled_dot_product_efficient_attention,  # noqa: SLF001
    _aten._scaled_dot_product_efficient_attention_backward,  # noqa: SLF001
    given={"attn_bias": None, "compute_log_sumexp": True},
    given_back={"attn_bias": None, "dropout_p": 0.0, "grad_input_mask": [True, True, True, False]},
    rest=("philox_seed", "philox_offset"),
    gradient="grad_out_",
    groups=False,
)
_FLASH = _Kernel(
    _aten._scaled_dot_product_flash_attention,  # noqa: SLF001
    _aten._scaled_dot_product_flash_attention_backward,  # noqa: SLF001
    given={},
    given_back={"dropout_p": 0.0},
    rest=("cum_seq_q", "cum_seq_k", "max_q", "max_k", "philox_seed", "philox_offset"),
    gradient="grad_out",
    groups=True,
)


def _kernel_for(query: Tensor) -> _Kernel:
    """FlashAttention needs 16 bits."""
    if query.device.type != "cuda":
        return _ON_CPU
    return _EFFICIENT if query.dtype == torch.float32 else _FLASH
