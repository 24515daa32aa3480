"""Queues of ready rows and groups, beside plain lists."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.caller import int64

from dataplane_server.core.tasks.queues import Entries, GroupQueue, KeyedGroupQueue, KeyedQueue, ReadyQueue

Model = list[tuple[float, int]]

STEPS = st.lists(
    st.tuples(st.sampled_from(["append", "append", "prepend", "drop"]), st.lists(st.integers(0, 9), max_size=80)),
    max_size=60,
)
"""A change, and the keys of what is added; as many are dropped."""


def changed(model: Model, change: str, new: Model, *, keyed: bool) -> Model:
    """Key and number of each entry, in order."""
    if change == "drop":
        return model[len(new) :]
    together = [*model, *new] if change == "append" else [*new, *model]
    return sorted(together, key=lambda entry: entry[0]) if keyed else together


@given(steps=STEPS, keyed=st.booleans())
def test_any_changes_of_a_queue_of_rows_agree_with_a_list(steps: list[tuple[str, list[int]]], keyed: bool) -> None:
    queue: ReadyQueue | KeyedQueue = KeyedQueue() if keyed else ReadyQueue()
    model: Model = []
    fresh = 0
    for change, drawn in steps:
        keys = np.array([key / 2 if key < 9 else np.inf for key in drawn])
        numbers = range(fresh, fresh + len(drawn))
        fresh += len(drawn)
        entries = Entries(int64(numbers), keys) if keyed else Entries(int64(numbers))
        if change == "drop":
            assert queue.peek(len(drawn)).numbers.tolist() == [number for _, number in model[: len(drawn)]]
            queue.drop(min(len(drawn), len(queue)))
        else:
            queue.append(entries) if change == "append" else queue.prepend(entries)
        model = changed(model, change, list(zip(keys.tolist(), numbers, strict=True)), keyed=keyed)
        assert len(queue) == len(model)
        assert queue.peek(fresh).numbers.tolist() == [number for _, number in model]
    queue.clear()
    assert len(queue) == 0


@given(steps=STEPS, keyed=st.booleans())
def test_any_changes_of_a_queue_of_groups_agree_with_a_list(steps: list[tuple[str, list[int]]], keyed: bool) -> None:
    queue: GroupQueue | KeyedGroupQueue = KeyedGroupQueue() if keyed else GroupQueue()
    model: Model = []
    fresh = 0
    for change, drawn in steps:
        keys, numbers = [float(key) for key in drawn], list(range(fresh, fresh + len(drawn)))
        fresh += len(drawn)
        if change == "drop":
            assert queue.peek(len(drawn)) == [number for _, number in model[: len(drawn)]]
            gone = {number for _, number in model[1 : 1 + len(drawn)]}  # also from the middle
            for number in gone:
                queue.discard(number)
            model = [entry for entry in model if entry[1] not in gone]
        else:
            queue.append(numbers, keys) if change == "append" else queue.prepend(numbers, keys)
            model = changed(model, change, list(zip(keys, numbers, strict=True)), keyed=keyed)
        assert len(queue) == len(model)
        assert list(queue) == queue.peek(fresh) == [number for _, number in model]
        assert all(number in queue for _, number in model)
    queue.clear()
    assert list(queue) == []


@pytest.mark.parametrize("batch", [*(pytest.param(batch, marks=pytest.mark.long) for batch in (1, 7)), 4096])
def test_a_million_keyed_entries_lie_in_few_runs(batch: int) -> None:
    queue, keys = KeyedQueue(), np.random.default_rng(0).random(200_000 if batch < 100 else 1_000_000)
    keys = keys[: 20_000 * batch]
    for begin in range(0, len(keys), batch):
        numbers = np.arange(begin, min(begin + batch, len(keys)))
        queue.append(Entries(numbers, keys[begin : begin + batch]))
    assert len(queue._runs) <= 16
    assert queue.peek(len(keys)).numbers.tolist() == np.argsort(keys, kind="stable").tolist()
