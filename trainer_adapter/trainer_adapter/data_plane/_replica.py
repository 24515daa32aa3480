"""The ranks that work on the same rows, and what one of them does for all.

Law: whatever one rank of a replica does for the others, or all do each for itself, ends on all of them with the same
outcome. A rank that raised alone would leave the others in the next collective until its timeout.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed
from torch.distributed import ProcessGroup

from trainer_adapter._exchange import broadcast_outcome, gather_values
from trainer_adapter._remote_errors import describe_error
from trainer_adapter.automodel.config import DistributedContext

T = TypeVar("T")


class ReplicaGroup(NamedTuple):
    """The ranks of one data-parallel rank. group: None where there is one only. leader: its global rank."""

    group: ProcessGroup | None
    leader: int
    is_leader: bool


def replica_group(context: DistributedContext) -> ReplicaGroup:
    """Of this rank: all that share its place in "dp". The leader's coordinates in "cp" and "tp" are 0.

    With both dimensions larger than 1 this makes a process group: a collective call of all ranks, once a context.
    """
    own = torch.distributed.get_rank()
    names = [name for name, size in (("cp", context.cp_size), ("tp", context.tp_size)) if size > 1]
    if not names:
        return ReplicaGroup(None, own, is_leader=True)
    mesh = context.device_mesh[tuple(names)]
    if len(names) > 1:
        mesh = mesh._flatten("cp_tp")  # noqa: SLF001  # torch documents it and has no other name for it
    leader = int(mesh.mesh[0])
    return ReplicaGroup(mesh.get_group(), leader, own == leader)


def run_on_leader(make: Callable[[], Mapping[str, Any]], replica: ReplicaGroup, device: torch.device) -> dict[str, Any]:
    """What the leader makes, on every rank of the replica; tensors on device. Failures as broadcast_outcome."""
    if replica.group is None:
        return dict(make())
    return broadcast_outcome(make, source=replica.leader, group=replica.group, device=device)


def run_on_each_rank(make: Callable[[], T], replica: ReplicaGroup, device: torch.device) -> T:
    """What this rank makes, once all of the replica have; RuntimeError on those that did well when another did not."""
    if replica.group is None:
        return make()
    try:
        made = make()
    except BaseException as error:
        gather_values({"failure": describe_error(error)}, group=replica.group, device=device)
        raise
    accounts = gather_values({"failure": None}, group=replica.group, device=device)
    failures = [account["failure"] for account in accounts if account["failure"] is not None]
    if failures:
        raise RuntimeError(f"another rank of the replica failed: {failures[0]}")
    return made
