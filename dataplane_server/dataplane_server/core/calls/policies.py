"""Policies of a partition, which can change while it is used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dataplane_server.core.calls.filters import ALL_ROWS, Filter, check_filter
from dataplane_server.core.calls.refusal import Reason, Refusal

WhenStale = Literal["withhold", "drop", "deliver"]
"""What becomes of rows that are staler than a task allows; see TaskPolicy in data_plane.proto."""
WhenExcluded = Literal["withhold", "drop"]
"""What becomes of rows that do not fit the filter of a task; see TaskPolicy in data_plane.proto."""
ClaimOrder = Literal["ready", "oldest_version", "newest_version", "lowest_tag", "highest_tag"]
"""Which rows a claim takes first."""


@dataclass(frozen=True, slots=True)
class TaskPolicy:
    """max_staleness: in versions; None for no bound. order_tag: of the orders by a tag, empty for the others. where: of
    all claims of the task, besides their own filters. rows_per_version: that the trainer takes of each weight version,
    which paces producers; 0 if it does not.
    """

    max_staleness: int | None = None
    when_stale: WhenStale = "withhold"
    order: ClaimOrder = "ready"
    order_tag: str = ""
    where: Filter = ALL_ROWS
    when_excluded: WhenExcluded = "withhold"
    rows_per_version: int = 0

    @property
    def bound(self) -> int | None:
        """The staleness beyond which the task gets no row."""
        return None if self.when_stale == "deliver" else self.max_staleness

    @property
    def most_ahead(self) -> int | None:
        """How many rows may be before the task or taken of the present weight version; None for any number."""
        if not self.rows_per_version or self.max_staleness is None:
            return None
        return (self.max_staleness + 1) * self.rows_per_version

    @property
    def drops_stale(self) -> bool:
        """Whether rows beyond the bound are removed."""
        return self.when_stale == "drop" and self.bound is not None

    @property
    def drops_excluded(self) -> bool:
        """Whether rows that do not fit the filter are removed."""
        return self.when_excluded == "drop" and bool(self.where)


@dataclass(frozen=True, slots=True)
class TaskPolicyOf:
    """The policy of a named task."""

    task: str
    policy: TaskPolicy


def check_policy(policy: TaskPolicy) -> int:
    """Refuse a policy that contradicts itself. Returns the memory of its filter in bytes."""
    check_order(policy.order, policy.order_tag)
    if policy.rows_per_version and policy.max_staleness is None:
        message = "rows_per_version paces producers by max_staleness, so it needs one"
        raise Refusal(Reason.INVALID_REQUEST, message)
    return check_filter(policy.where, with_age=False)


def check_order(order: ClaimOrder, order_tag: str) -> None:
    """Refuse an order by a tag that names none, and a tag for another order."""
    by_tag = order in ("lowest_tag", "highest_tag")
    if by_tag != bool(order_tag):
        rule = "needs the name of the tag (order_tag)" if by_tag else "is not by a tag, so order_tag must be empty"
        raise Refusal(Reason.INVALID_REQUEST, f"the order {order!r} {rule}, got {order_tag!r}")
