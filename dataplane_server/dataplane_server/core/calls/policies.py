"""Policies of a partition, which can change while it is used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dataplane_server.core.calls.refusal import Reason, Refusal

WhenStale = Literal["withhold", "drop", "deliver"]
"""What becomes of rows that are staler than a task allows; see TaskPolicy in data_plane.proto."""
ClaimOrder = Literal["ready", "oldest_version", "newest_version", "lowest_tag", "highest_tag"]
"""Which rows a claim takes first."""


@dataclass(frozen=True, slots=True)
class TaskPolicy:
    """max_staleness: in versions; None for no bound. order_tag: of the orders by a tag, empty for the others."""

    max_staleness: int | None = None
    when_stale: WhenStale = "withhold"
    order: ClaimOrder = "ready"
    order_tag: str = ""

    @property
    def bound(self) -> int | None:
        """The staleness beyond which the task gets no row."""
        return None if self.when_stale == "deliver" else self.max_staleness


@dataclass(frozen=True, slots=True)
class TaskPolicyOf:
    """The policy of a named task."""

    task: str
    policy: TaskPolicy


def check_order(order: ClaimOrder, order_tag: str) -> None:
    """Refuse an order by a tag that names none, and a tag for another order."""
    by_tag = order in ("lowest_tag", "highest_tag")
    if by_tag != bool(order_tag):
        rule = "needs the name of the tag (order_tag)" if by_tag else "is not by a tag, so order_tag must be empty"
        raise Refusal(Reason.INVALID_REQUEST, f"the order {order!r} {rule}, got {order_tag!r}")
