"""The states of a row for a task, the states of a task itself, queued claims as views see them, and counters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

UNTAKEN, CLAIMED, CONSUMED, DELAYED, DEAD = range(5)
STATE_NAMES = ("untaken", "claimed", "consumed", "delayed", "dead")

TaskState = Literal["idle", "serving", "waiting_for_producers", "waiting_for_consumers", "waiting_by_policy"]
TASK_STATES: tuple[TaskState, ...] = get_args(TaskState)


@dataclass(frozen=True, slots=True)
class Waiter:
    """A claim that is queued at a view. number: its place in the order of arrival. The sizes are those of the claim: of
    rows or whole groups, and tokens of all together (0 for no limit). since: monotonic, s.
    """

    number: int
    min_size: int
    batch_size: int
    max_tokens: int = 0
    since: float = 0.0


@dataclass(slots=True)
class TaskCounters:
    """Claims granted, the seconds that they were queued together, claims committed, bytes of their columns."""

    claims: int = 0
    claim_wait_s: float = 0.0
    commits: int = 0
    commit_bytes: int = 0
