"""Concatenates the columns of all ranks of a process group, in rank order, on every rank.

Ranks first exchange descriptions of their columns. All ranks check the same descriptions, so that bad input raises the
same error everywhere, before any rank waits in a collective that another rank will never enter.

A tensor of any dtype travels as bytes: each rank fills its own rows of a zeroed result, and a SUM over the ranks' bytes
(all but one are zero at each position) is the result, with gloo and nccl alike. Each rank sends about twice the bytes
of the result. Lists and arrays are pickled by torch.distributed, which is safe among the ranks of one job.
"""

from __future__ import annotations

from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed

from dataplane_client.batched_data_dict._columns import Columns


class _Layout(NamedTuple):
    kind: str
    dtype: str = ""
    row_shape: tuple[int, ...] = ()


_SUPPORTED = ("tensor", "list", "ndarray")
_Described = dict[str, tuple[_Layout, int]]


def _describe(value: Any) -> tuple[_Layout, int]:
    """The layout, which must be the same on all ranks, and the number of rows, which may differ."""
    if isinstance(value, torch.Tensor):
        if value.is_nested or value.ndim == 0:
            return _Layout("nested tensor" if value.is_nested else "0-d tensor"), 0
        return _Layout("tensor", str(value.dtype), tuple(value.shape[1:])), value.shape[0]
    if isinstance(value, np.ndarray) and value.ndim:
        return _Layout("ndarray", str(value.dtype), value.shape[1:]), value.shape[0]
    if isinstance(value, list):
        return _Layout("list"), len(value)
    return _Layout(type(value).__name__), 0


def gather_columns(columns: Columns, group: torch.distributed.ProcessGroup) -> dict[str, Any]:
    described = _gather_objects({key: _describe(value) for key, value in columns.items()}, group)
    _check_agreement(described)
    gathered: dict[str, Any] = {}
    for key, (layout, _) in described[0].items():  # so that all ranks enter the collectives in one order
        if layout.kind == "tensor":
            gathered[key] = _gather_tensor(columns[key], [ranks[key][1] for ranks in described], group)
        else:
            parts = _gather_parts(key, columns[key], group)
            gathered[key] = np.concatenate(parts) if layout.kind == "ndarray" else list(chain.from_iterable(parts))
    return {key: gathered[key] for key in columns}


def _check_agreement(described: list[_Described]) -> None:
    for rank, theirs in enumerate(described):
        if theirs.keys() != described[0].keys():
            raise ValueError(f"all_gather: rank 0 has columns {sorted(described[0])}, rank {rank} has {sorted(theirs)}")
        for key, (layout, _) in theirs.items():
            expected = described[0][key][0]
            if layout.kind not in _SUPPORTED:
                raise NotImplementedError(
                    f"all_gather: column {key!r} of rank {rank} is a {layout.kind}, not a tensor, list or ndarray"
                )
            if layout != expected:
                raise ValueError(
                    f"all_gather: column {key!r} is {tuple(expected)} on rank 0 but {tuple(layout)} on rank {rank}"
                )


class _End:
    """Is pickled after a column, so it knows whether all of that was."""

    def __init__(self) -> None:
        self.reached = False

    def __reduce__(self) -> tuple[type[_End], tuple[()]]:
        self.reached = True
        return _End, ()


class _Unpicklable(NamedTuple):
    """What a rank sends in place of a column, so that no other rank waits for it."""

    why: str


def _gather_parts(key: str, value: Any, group: torch.distributed.ProcessGroup) -> list[Any]:
    end = _End()
    try:
        gathered = _gather_objects((value, end), group)
    except Exception as error:
        if end.reached:  # so it is of the collective, or another rank's part cannot be unpickled here
            raise
        gathered = _gather_objects((_Unpicklable(f"{type(error).__name__}: {error}"), end), group)
    parts = [part for part, _ in gathered]
    for rank, part in enumerate(parts):
        if isinstance(part, _Unpicklable):
            raise TypeError(f"all_gather: column {key!r} of rank {rank} cannot be pickled: {part.why}")
    return parts


def _gather_objects(value: Any, group: torch.distributed.ProcessGroup) -> list[Any]:
    gathered: list[Any] = [None] * torch.distributed.get_world_size(group)
    torch.distributed.all_gather_object(gathered, value, group=group)
    return gathered


def _gather_tensor(value: torch.Tensor, rows: list[int], group: torch.distributed.ProcessGroup) -> torch.Tensor:
    start = sum(rows[: torch.distributed.get_rank(group)])
    nccl_only = torch.distributed.get_backend(group) == "nccl"
    device = torch.device("cuda") if nccl_only and not value.is_cuda else value.device
    result = torch.zeros((sum(rows), *value.shape[1:]), dtype=value.dtype, device=device)
    result[start : start + value.shape[0]] = value.detach()
    if result.numel():
        torch.distributed.all_reduce(result.view(-1).view(torch.uint8), group=group)
    return result.to(value.device)
