"""Entries in line, beside a deque."""

from __future__ import annotations

import os
from collections import deque

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.caller import int64

from dataplane_server.core.tasks.view import ReadyQueue

PROFILE = settings.get_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


@settings(PROFILE)
@given(steps=st.lists(st.tuples(st.sampled_from(["append", "prepend", "drop"]), st.integers(0, 200)), max_size=40))
def test_any_sequence_of_changes_agrees_with_a_deque(steps: list[tuple[str, int]]) -> None:
    queue, model, fresh = ReadyQueue(), deque[int](), 0
    for change, count in steps:
        entries = list(range(fresh, fresh + count))
        fresh += count
        if change == "append":
            queue.append(int64(entries))
            model.extend(entries)
        elif change == "prepend":
            queue.prepend(int64(entries))
            model.extendleft(reversed(entries))
        else:
            gone = min(count, len(model))
            assert queue.peek(gone).tolist() == [model.popleft() for _ in range(gone)]
            queue.drop(gone)
        assert len(queue) == len(model)
        assert queue.peek(fresh).tolist() == list(model)
    queue.clear()
    assert len(queue) == 0
