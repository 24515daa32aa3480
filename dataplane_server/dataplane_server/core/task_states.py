"""Where a row stands with a task, and who waits for rows of it: what the views of a task and the task itself share."""

from __future__ import annotations

from dataclasses import dataclass

UNTAKEN, CLAIMED, CONSUMED, DELAYED, DEAD = range(5)
STATE_NAMES = ("untaken", "claimed", "consumed", "delayed", "dead")


@dataclass(frozen=True, slots=True)
class Waiter:
    """A claim that waits at a view: its place in the order of arrival, what it asks for (rows, or whole groups, and
    tokens of all together, 0 for no limit), and since when (monotonic, s).
    """

    ticket: int
    min_size: int
    batch_size: int
    max_tokens: int = 0
    since: float = 0.0
