"""Which rows a task gets, and in which order: its policy, and what a claim asks for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

from dataplane_client._common.arguments import checked_choice, checked_count, checked_name
from dataplane_client.errors import InvalidArgumentError
from dataplane_client.records.filters import Where, filter_message
from rl_dataplane.v1 import data_plane_pb2 as pb

WhenStale = Literal["withhold", "drop", "deliver"]
WhenExcluded = Literal["withhold", "drop"]
ClaimOrder = Literal["ready", "oldest_version", "newest_version", "lowest_tag", "highest_tag"]
"""Which rows a claim takes first."""
BatchUnit = Literal["rows", "groups"]
"""What the sizes of a claim count."""

_STALE_PREFIX, _EXCLUDED_PREFIX, _ORDER_PREFIX = "WHEN_STALE_", "WHEN_EXCLUDED_", "CLAIM_ORDER_"


@dataclass(frozen=True)
class TaskPolicy:
    """Which rows a task may get, and in which order.

    max_staleness: how many versions a row (its tag "weight_version") may be behind the partition's weight version when
    it is granted, time in the queue included; None for no bound. A row of an unknown version is withheld from a task
    with a bound.

    when_stale: what becomes of rows beyond the bound. "withhold": the task does not get them; they stay, for other
    tasks. "drop": they are removed from the partition, with the other rows of their group, as soon as no claim holds
    one of them. "deliver": the task gets them; see claim.staleness.

    order: of claims that name none. "ready": as rows became ready. "oldest_version", "newest_version": by weight
    version. "lowest_tag", "highest_tag": by the number in the tag order_tag. Rows without it come last; rows that are
    equal in it come as they became ready. A group counts by its first row.

    where: no claim or draw of the task gets a row that does not fit, and no claim of whole groups a group with such a
    row, whatever filter the call has. An expression or a mapping, as in `claim`; the policy of a description has the
    expression.

    when_excluded: what becomes of the other rows. "withhold": they stay, for other tasks and for tags that change.
    "drop": those that have every tag and fact which the filter names, none of them null, are removed as stale rows are.
    A row that lacks one is withheld, since the tag may still come.

    rows_per_version: how many rows the trainer takes of each weight version, which paces producers; needs
    max_staleness. New rows then wait while the rows before the task, and those it has taken since the weight version
    moved, are (max_staleness + 1) * rows_per_version. So a row is taken before it is too stale, if rows are taken in
    the order in which they came. register_partition(replace=True) forgets the rows taken. 0: no pace.

    set_policies refuses when_stale without max_staleness, and when_excluded without where.
    """

    max_staleness: int | None = None
    when_stale: WhenStale = "withhold"
    order: ClaimOrder = "ready"
    order_tag: str = ""
    where: Where | None = None
    when_excluded: WhenExcluded = "withhold"
    rows_per_version: int = 0

    def __post_init__(self) -> None:
        policy_message(self, "TaskPolicy")  # refuses what is wrong where it is written, not at set_policies


def checked_policy(policy: TaskPolicy, where: str) -> pb.TaskPolicy:
    """Raises InvalidArgumentError also for a policy that says what becomes of rows, and has no rule for which. Servers
    take such policies, so descriptions may have them.
    """
    message = policy_message(policy, where)
    if policy.max_staleness is None and policy.when_stale != "withhold":
        raise InvalidArgumentError(f"{where}: when_stale {policy.when_stale!r} needs max_staleness: no row is stale")
    if policy.where is None and policy.when_excluded != "withhold":
        raise InvalidArgumentError(f"{where}: when_excluded {policy.when_excluded!r} needs where: no row is excluded")
    return message


class Selection(NamedTuple):
    """Which rows a claim takes, and which of them first."""

    where: Where | None = None
    order: ClaimOrder | None = None
    order_tag: str = ""


def policy_message(policy: TaskPolicy, where: str) -> pb.TaskPolicy:
    if not isinstance(policy, TaskPolicy):
        raise InvalidArgumentError(f"{where}: a policy must be a TaskPolicy, got {policy!r}")
    when_stale = checked_choice("when_stale", policy.when_stale, WhenStale, where)
    when_excluded = checked_choice("when_excluded", policy.when_excluded, WhenExcluded, where)
    bound = policy.max_staleness
    return pb.TaskPolicy(
        max_staleness=None
        if bound is None
        else checked_count("max_staleness", bound, where, least=0, most=(1 << 31) - 2),
        when_stale=pb.WhenStale.Value(_STALE_PREFIX + when_stale.upper()),
        order=order_number(policy.order, where),
        order_tag=checked_name("order_tag", policy.order_tag, where),
        where=filter_message(policy.where, where),
        rows_per_version=checked_count("rows_per_version", policy.rows_per_version, where, least=0, most=(1 << 31) - 1),
        when_excluded=pb.WhenExcluded.Value(_EXCLUDED_PREFIX + when_excluded.upper()),
    )


def order_number(order: ClaimOrder | None, where: str) -> pb.ClaimOrder.ValueType:
    if order is None:
        return pb.CLAIM_ORDER_UNSPECIFIED
    if order not in get_args(ClaimOrder):
        raise InvalidArgumentError(f"{where}: order must be one of {get_args(ClaimOrder)} or None, got {order!r}")
    return pb.ClaimOrder.Value(_ORDER_PREFIX + order.upper())
