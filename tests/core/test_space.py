"""Room in the arena: what is handed out was free, what is given back becomes free, whatever the order."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.caller import int64
from tests.core.machine.arena import free_ranges, longest_room

from dataplane_server.core.calls.values import Int64Array, Run
from dataplane_server.core.rows.ranges import merged_runs
from dataplane_server.core.rows.space import Space


def place_rows(space: Space, sizes: Sequence[int]) -> Int64Array | None:
    """Offsets for rows of one column."""
    placed = space.allocate_columns(int64(sizes)[None])
    return None if placed is None else placed[0][0]


class SpaceAndByteMap:
    """A space beside a map with one entry a byte. Rows in use are kept one by one."""

    def __init__(self, capacity: int) -> None:
        self.space = Space(capacity)
        self.in_use = bytearray(capacity)
        self.rows: list[Run] = []

    def allocate(self, sizes: Sequence[int]) -> bool:
        offsets = place_rows(self.space, sizes)
        if offsets is None:
            assert sum(sizes) > longest_room(self.in_use), "there is a range that is long enough"
            return False
        for offset, size in zip(offsets.tolist(), sizes, strict=True):
            assert not any(self.in_use[offset : offset + size])
            assert offset + size <= self.space.capacity
            self.in_use[offset : offset + size] = b"\1" * size
            if size:
                self.rows.append(Run(offset, size))
        return True

    def release(self, choices: Sequence[int]) -> None:
        chosen = list(dict.fromkeys(choice % len(self.rows) for choice in choices)) if self.rows else []
        gone = [self.rows[index] for index in chosen]
        self.rows = [row for row in self.rows if row not in gone]
        for offset, size in gone:
            self.in_use[offset : offset + size] = bytes(size)
        self.space.release_rows(int64([row.offset for row in gone]), int64([row.size_bytes for row in gone]))

    def check(self) -> None:
        assert self.space.used == sum(self.in_use)
        assert self.space.free == self.in_use.count(0)
        merged = list(self.space.free_ranges())
        pieces = [*merged, *self.space.pending_ranges()]
        assert self.space.free == sum(end - start for start, end in pieces)
        for start, end in pieces:
            assert not any(self.in_use[start:end])
        if len(pieces) == len(merged):
            assert sorted(merged) == free_ranges(self.in_use)
            assert self.space.largest_free == longest_room(self.in_use)
            assert self.space.free_pieces == len(merged)


sizes_of_rows = st.lists(st.integers(0, 150), min_size=1, max_size=8)
steps = st.lists(st.tuples(st.booleans(), sizes_of_rows), min_size=1, max_size=40)


@given(capacity=st.integers(1, 2000), steps=steps)
def test_any_sequence_of_allocations_and_releases_agrees_with_a_byte_map(
    capacity: int, steps: list[tuple[bool, list[int]]]
) -> None:
    both = SpaceAndByteMap(capacity)
    for allocate, numbers in steps:
        if allocate:
            both.allocate(numbers)
        else:
            both.release(numbers)
        both.check()
    both.release(range(len(both.rows)))
    assert list(both.space.free_ranges()) == [(0, capacity)]


def test_a_long_history_in_a_nearly_full_arena_agrees_with_a_byte_map() -> None:
    both, dice, admitted = SpaceAndByteMap(20_000), random.Random(7), 0
    for _ in range(1500):
        admitted += both.allocate([dice.choice((0, 1, 63, 64, 65, 300)) for _ in range(dice.randrange(1, 12))])
        if dice.random() < 0.2:
            both.release([dice.randrange(1000) for _ in range(dice.randrange(1, 40))])
        both.check()
    assert 500 < admitted < 1400, "the arena was full at times, and had room at others"


def test_tiny_rows_leave_no_slivers() -> None:
    space = Space(8000)
    for _ in range(200):
        assert space.allocate_columns(int64([8] * 5).reshape(5, 1)) is not None
    assert space.free == 0


@pytest.mark.long
def test_many_ranges_given_back_at_once_are_free_at_once_and_found() -> None:
    both, dice = SpaceAndByteMap(100_000), random.Random(3)
    for size in (20, 12, 9, 4):
        assert both.allocate([size] * 2000)
    for _ in range(6):
        both.release(dice.sample(range(len(both.rows)), 1500))
        assert list(both.space.pending_ranges())
        both.check()
        while both.allocate([dice.choice((4, 9, 30)) for _ in range(400)]):
            both.check()
    both.release(range(len(both.rows)))
    while list(both.space.pending_ranges()):
        before = both.space.pending_frees
        both.space.merge_pending(700)
        assert before - 700 <= both.space.pending_frees < before
        both.check()
    assert list(both.space.free_ranges()) == [(0, 100_000)]


def test_columns_of_which_the_last_does_not_fit_take_nothing() -> None:
    space = Space(64)
    assert space.allocate_columns(int64([33, 31]).reshape(2, 1)) is None  # each begins at a multiple of 8
    assert (space.used, space.largest_free) == (0, 64)


@pytest.mark.parametrize(
    ("pieces", "runs"),
    [
        pytest.param([], [], id="nothing"),
        pytest.param([(5, 0), (0, 0)], [], id="empty pieces vanish"),
        pytest.param([(0, 4), (4, 4), (8, 2)], [(0, 10)], id="adjacent pieces become one"),
        pytest.param([(0, 4), (99, 0), (4, 4)], [(0, 8)], id="an empty piece between does not part them"),
        pytest.param([(4, 4), (0, 4)], [(4, 4), (0, 4)], id="order is kept"),
        pytest.param([(0, 4), (5, 4)], [(0, 4), (5, 4)], id="a gap parts"),
    ],
)
def test_runs_are_as_few_as_can_be_and_in_order(pieces: list[tuple[int, int]], runs: list[tuple[int, int]]) -> None:
    offsets, sizes = int64([offset for offset, _ in pieces]), int64([size for _, size in pieces])
    assert merged_runs(offsets, sizes) == [Run(*run) for run in runs]
