"""Samples that ranks took of one model, brought together: parts of the same sample, and samples of other batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from trainer_adapter.automodel.rank import rank_device

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


def samples_of_all_ranks(own: Tensor, mesh: DeviceMesh | None) -> Tensor:
    """[all samples, tensors] float32, from [samples, tensors] of each rank; a collective call.

    Ranks that differ in cp and tp only have seen parts of the same samples, of which the largest counts; those along dp
    have samples of their own, in numbers of their own. NaN becomes infinite, which no maximum hides.
    """
    largest = own.nan_to_num(nan=torch.inf, posinf=torch.inf)
    if mesh is None:
        return largest
    largest = largest.to(rank_device(mesh.device_type))
    for name in ("cp", "tp"):
        torch.distributed.all_reduce(largest, torch.distributed.ReduceOp.MAX, mesh.get_group(name))
    return _gathered(largest, mesh["dp"])


def _gathered(own: Tensor, dp: DeviceMesh) -> Tensor:
    """Gathered in tables of one size, since collectives take no other."""
    count = torch.tensor([len(own)], device=own.device)
    counts = [torch.empty_like(count) for _ in range(dp.size())]
    torch.distributed.all_gather(counts, count, dp.get_group())
    numbers = [int(number) for number in counts]
    table = torch.zeros(max(numbers), own.shape[1], device=own.device)
    table[: len(own)] = own
    tables = [torch.empty_like(table) for _ in numbers]
    torch.distributed.all_gather(tables, table, dp.get_group())
    return torch.cat([rows[:number] for rows, number in zip(tables, numbers, strict=True)])
