"""The states of a row for a task, the states of the task itself, queued claims as views see them, and counters."""

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


class TaskClock:
    """Adds up the time that a task spends in each state, from the first `enter` on. `now` is monotonic, in seconds; a
    `now` before the last one counts as the last one.
    """

    __slots__ = ("_seconds", "_since", "_state")

    def __init__(self) -> None:
        self._seconds: dict[str, float] = dict.fromkeys(TASK_STATES, 0.0)
        self._state: TaskState = "idle"
        self._since: float | None = None

    @property
    def entered(self) -> tuple[float, ...]:
        """Seconds in every state until the task entered its current one."""
        return tuple(self._seconds.values())

    @property
    def state_number(self) -> int:
        """The index of the current state in TASK_STATES."""
        return TASK_STATES.index(self._state)

    @property
    def since(self) -> float | None:
        """When the task entered its current state; None before the first `enter`."""
        return self._since

    def enter(self, state: TaskState, now: float) -> None:
        """The task is in this state from now on."""
        if self._since is not None:
            now = max(now, self._since)
            self._seconds[self._state] += now - self._since
        self._since = now
        self._state = state

    def seconds(self, now: float) -> dict[str, float]:
        """Seconds in every state until now."""
        seconds = dict(self._seconds)
        if self._since is not None:
            seconds[self._state] += max(now - self._since, 0.0)
        return seconds
