"""The report of a training call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from trainer_adapter.automodel.rank import compute_device, computes_on_gpu


def aggregate_training_statistics(
    losses: Sequence[Tensor | float],
    all_mb_metrics: Iterable[Mapping[str, Any]],
    grad_norm: Tensor | None,
    dp_group: ProcessGroup | None,
    dtype: torch.dtype,
) -> dict[str, Any]:
    """Build this rank's report; a collective call over dp_group (None: this rank is alone).

    losses: this rank's shares of the loss of each global batch.
    all_mb_metrics: metrics of each real microbatch.
    grad_norm: None if nothing was trained.
    dtype: of the model.

    Returns `global_loss` (float32 on the CPU, one entry for each global batch, summed over the ranks), `grad_norm`,
    `rank`, `gpu_name` ("cpu" without a GPU), `model_dtype`, and `all_mb_metrics`, a list of Python numbers for each
    metric.
    """
    device = compute_device()
    shares = [torch.as_tensor(loss, dtype=torch.float32, device=device).view(1) for loss in losses]
    global_loss = torch.cat([torch.zeros(0, device=device), *shares])
    if dp_group is not None:
        torch.distributed.all_reduce(global_loss, group=dp_group)
    return {
        "global_loss": global_loss.cpu(),
        "grad_norm": grad_norm,
        "rank": torch.distributed.get_rank() if torch.distributed.is_initialized() else 0,
        "gpu_name": torch.cuda.get_device_name(device) if computes_on_gpu() else "cpu",
        "model_dtype": dtype,
        "all_mb_metrics": _collect_lists(all_mb_metrics),
    }


def _collect_lists(all_mb_metrics: Iterable[Mapping[str, Any]]) -> dict[str, list[Any]]:
    lists: dict[str, list[Any]] = {}
    for metrics in all_mb_metrics:
        for name, value in metrics.items():
            lists.setdefault(name, []).append(value.item() if isinstance(value, Tensor) else value)
    return lists
