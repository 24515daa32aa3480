"""Gathering the samples of all ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from trainer_adapter.automodel.rank import rank_device

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


def gather_samples(own: Tensor, mesh: DeviceMesh | None) -> Tensor:
    """Gather [samples, tensors] of each rank into [all samples, tensors] float32; a collective call.

    Ranks that differ only in cp and tp have parts of the same samples, of which the largest counts; ranks along dp have
    different samples, in any number. NaN becomes infinity, which a maximum keeps.
    """
    largest = own.nan_to_num(nan=torch.inf, posinf=torch.inf)
    if mesh is None:
        return largest
    largest = largest.to(rank_device(mesh.device_type))
    for name in ("cp", "tp"):
        torch.distributed.all_reduce(largest, torch.distributed.ReduceOp.MAX, mesh.get_group(name))
    return _gather_unequal(largest, mesh["dp"])


def _gather_unequal(own: Tensor, dp: DeviceMesh) -> Tensor:
    """Gather tables of different lengths, padded to one size because collectives require that."""
    count = torch.tensor([len(own)], device=own.device)
    counts = [torch.empty_like(count) for _ in range(dp.size())]
    torch.distributed.all_gather(counts, count, dp.get_group())
    numbers = [int(number) for number in counts]
    table = torch.zeros(max(numbers), own.shape[1], device=own.device)
    table[: len(own)] = own
    tables = [torch.empty_like(table) for _ in numbers]
    torch.distributed.all_gather(tables, table, dp.get_group())
    return torch.cat([rows[:number] for rows, number in zip(tables, numbers, strict=True)])
