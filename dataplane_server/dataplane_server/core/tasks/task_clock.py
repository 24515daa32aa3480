"""How long a task has been in each of its states."""

from __future__ import annotations

from dataplane_server.core.tasks.task_states import TASK_STATES, TaskState


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
