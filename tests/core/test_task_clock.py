"""Seconds by state, beside a plain account of the same changes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dataplane_server.core.tasks.task_clock import TaskClock
from dataplane_server.core.tasks.task_states import TASK_STATES, TaskState

CHANGES = st.lists(st.tuples(st.sampled_from(TASK_STATES), st.integers(0, 50)), max_size=30)


@given(changes=CHANGES, last=st.integers(0, 60))
def test_all_time_since_the_first_change_is_in_some_state(changes: list[tuple[TaskState, int]], last: int) -> None:
    clock, spent = TaskClock(), dict.fromkeys(TASK_STATES, 0)
    state, since = None, 0
    for entered, now in changes:
        clock.enter(entered, now)
        now = max(now, since)
        if state is not None:
            spent[state] += now - since
        state, since = entered, now
    if state is not None:
        spent[state] += max(last - since, 0)
    assert clock.seconds(last) == spent
