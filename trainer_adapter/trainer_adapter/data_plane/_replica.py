"""The ranks that work on the same rows, and calls that succeed or fail on all of them.

A rank that raised alone would leave the others in the next collective until its timeout. So every call here has the
same outcome on all ranks of a replica.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed
from torch.distributed import ProcessGroup

from trainer_adapter._exchange import broadcast_values, gather_values
from trainer_adapter._remote_errors import describe_error
from trainer_adapter.automodel.config import DistributedContext

T = TypeVar("T")


class ReplicaGroup(NamedTuple):
    """The ranks of one data-parallel rank.

    group: None if there is only one rank.
    leader: its global rank.
    """

    group: ProcessGroup | None
    leader: int
    is_leader: bool


def replica_group(context: DistributedContext) -> ReplicaGroup:
    """The replica of this rank: all ranks with its coordinate in "dp". The leader's coordinates in "cp" and "tp" are 0.

    If both dimensions are larger than 1 this makes a process group: then it is a collective call of all ranks, once for
    each context.
    """
    own = torch.distributed.get_rank()
    names = [name for name, size in (("cp", context.cp_size), ("tp", context.tp_size)) if size > 1]
    if not names:
        return ReplicaGroup(None, own, is_leader=True)
    mesh = context.device_mesh[tuple(names)]
    if len(names) > 1:
        mesh = mesh._flatten("cp_tp")  # noqa: SLF001  # torch's documented name
    leader = int(mesh.mesh[0])
    return ReplicaGroup(mesh.get_group(), leader, own == leader)


def run_on_leader(make: Callable[[], Mapping[str, Any]], replica: ReplicaGroup, device: torch.device) -> dict[str, Any]:
    """Run `make` on the leader and return its values on every rank, see broadcast_values."""
    if replica.group is None:
        return dict(make())
    return broadcast_values(make, source=replica.leader, group=replica.group, device=device)


def run_on_each_rank(make: Callable[[], T], replica: ReplicaGroup, device: torch.device) -> T:
    """Run `make` on every rank and return this rank's result once all have succeeded.

    If a rank fails it raises its own error, and the others raise RuntimeError.
    """
    if replica.group is None:
        return make()
    failure: str | None = None
    try:
        made = make()
    except BaseException as error:
        failure = describe_error(error)
        raise
    finally:
        accounts = gather_values({"failure": failure}, group=replica.group, device=device)
    failures = [account["failure"] for account in accounts if account["failure"] is not None]
    if failures:
        raise RuntimeError(f"another rank of the replica failed: {failures[0]}")
    return made
