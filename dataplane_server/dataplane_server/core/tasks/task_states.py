"""The states of a row for a task, the states of a task itself, queued claims as views see them, and counters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

UNTAKEN, CLAIMED, CONSUMED, DELAYED, DEAD = range(5)
STATE_NAMES = ("untaken", "claimed", "consumed", "delayed", "dead")

TaskState = Literal["idle", "serving", "waiting", "waiting_for_consumers"]
TASK_STATES: tuple[TaskState, ...] = get_args(TaskState)


class Amount(NamedTuple):
    """How much a claim takes from a view. min_size, batch_size: of what the view queues (rows, or whole groups), or of
    the rows of whole groups (counts_rows). max_tokens: of all together; 0 for no limit.
    """

    min_size: int
    batch_size: int
    max_tokens: int = 0
    counts_rows: bool = False


@dataclass(frozen=True, slots=True)
class Waiter:
    """A claim that is queued at a view. number: its place in the order of arrival. since: monotonic, s."""

    number: int
    amount: Amount
    since: float = 0.0


@dataclass(slots=True)
class TaskCounters:
    """Claims granted, the seconds that they were queued together, claims committed, bytes of their columns. versioned:
    rows granted whose weight version is known; versions_behind: how far they were behind the partition's, together.
    """

    claims: int = 0
    claim_wait_s: float = 0.0
    commits: int = 0
    commit_bytes: int = 0
    versioned: int = 0
    versions_behind: int = 0
