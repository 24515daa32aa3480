"""For how long a task has been in which state: who waits for whom.

Whoever changes a task says in which state it is from then on; a scrape adds up. So the cost is two additions for each
change, and nothing runs while nothing happens.
"""

from __future__ import annotations

from typing import Literal, get_args

TaskState = Literal["idle", "serving", "waiting_for_producers", "waiting_for_consumers", "waiting_by_policy"]
TASK_STATES: tuple[TaskState, ...] = get_args(TaskState)


class TaskClock:
    """Adds up the time in each state, from the first `enter` on: before it a task is idle, for no time. `now` is
    monotonic, in seconds; a `now` before the last one counts as that.
    """

    __slots__ = ("_seconds", "_since", "_state")

    def __init__(self) -> None:
        self._seconds: dict[str, float] = dict.fromkeys(TASK_STATES, 0.0)
        self._state: TaskState = "idle"
        self._since: float | None = None

    @property
    def entered(self) -> tuple[float, ...]:
        """Seconds in every state, as of when the task entered the one that it is in."""
        return tuple(self._seconds.values())

    @property
    def state_number(self) -> int:
        """Which of the states the task is in."""
        return TASK_STATES.index(self._state)

    @property
    def since(self) -> float | None:
        """When it entered it; None before the first `enter`."""
        return self._since

    def enter(self, state: TaskState, now: float) -> None:
        """From now on the task is in this state."""
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
