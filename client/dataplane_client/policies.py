"""Policies of tasks: how stale the rows may be that a task gets, and in which order it gets them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from dataplane_client._arguments import checked_count, checked_name
from dataplane_client.errors import InvalidArgumentError
from rl_dataplane.v1 import data_plane_pb2 as pb

WhenStale = Literal["withhold", "drop", "deliver"]
ClaimOrder = Literal["ready", "oldest_version", "newest_version", "lowest_tag", "highest_tag"]
"""Which rows a claim takes first."""

_STALE_PREFIX, _ORDER_PREFIX = "WHEN_STALE_", "CLAIM_ORDER_"


@dataclass(frozen=True)
class TaskPolicy:
    """Which rows a task may get, and in which order.

    max_staleness: how many versions a row (its tag "weight_version") may be behind the partition's weight version when
    it is granted, time in the queue included; None for no bound. A row of an unknown version is withheld from a task
    with a bound.

    when_stale: what becomes of rows beyond the bound. "withhold": the task does not get them; they stay, for other
    tasks. "drop": they are removed from the partition, with the other rows of their group, as soon as no claim holds
    one of them. "deliver": the task gets them, and claim.staleness tells.

    order: of claims that name none. "ready": as rows became ready. "oldest_version", "newest_version": by weight
    version. "lowest_tag", "highest_tag": by the number in the tag order_tag. Rows without it come last; rows that are
    equal in it come as they became ready. A group counts by its first row.
    """

    max_staleness: int | None = None
    when_stale: WhenStale = "withhold"
    order: ClaimOrder = "ready"
    order_tag: str = ""


def policy_message(policy: TaskPolicy, where: str) -> pb.TaskPolicy:
    if policy.when_stale not in get_args(WhenStale):
        raise InvalidArgumentError(
            f"{where}: when_stale must be one of {get_args(WhenStale)}, got {policy.when_stale!r}"
        )
    bound = policy.max_staleness
    return pb.TaskPolicy(
        max_staleness=None
        if bound is None
        else checked_count("max_staleness", bound, where, least=0, most=(1 << 31) - 2),
        when_stale=pb.WhenStale.Value(_STALE_PREFIX + policy.when_stale.upper()),
        order=order_number(policy.order, where),
        order_tag=checked_name("order_tag", policy.order_tag, where),
    )


def task_policy(message: pb.TaskPolicy) -> TaskPolicy:
    return TaskPolicy(
        max_staleness=message.max_staleness if message.HasField("max_staleness") else None,
        when_stale=pb.WhenStale.Name(message.when_stale).removeprefix(_STALE_PREFIX).lower(),  # type: ignore[arg-type]
        order=pb.ClaimOrder.Name(message.order).removeprefix(_ORDER_PREFIX).lower(),  # type: ignore[arg-type]
        order_tag=message.order_tag,
    )


def order_number(order: ClaimOrder | None, where: str) -> pb.ClaimOrder.ValueType:
    if order is None:
        return pb.CLAIM_ORDER_UNSPECIFIED
    if order not in get_args(ClaimOrder):
        raise InvalidArgumentError(f"{where}: order must be one of {get_args(ClaimOrder)} or None, got {order!r}")
    return pb.ClaimOrder.Value(_ORDER_PREFIX + order.upper())
