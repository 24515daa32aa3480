"""The cache against a memory in which each copy writes what it is a copy of."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dataplane_server.cluster.cache import Cache, CachedRun, RemoteRun

BASE, SIZE = 4096, 256
runs = st.lists(
    st.builds(RemoteRun, st.integers(1, 2), st.integers(0, 5), st.sampled_from([8, 13, 64]), st.integers(0, 2)),
    min_size=1,
    max_size=6,
)


def held(cache: Cache, *wanted: RemoteRun) -> tuple[list[CachedRun], list[CachedRun]]:
    found = cache.hold(wanted)
    assert found is not None
    return found


class Reads(RuleBasedStateMachine):
    """Reads that hold copies and release them in any order, and failed fetches."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = Cache(BASE, SIZE)
        self.memory: np.ndarray[tuple[int, ...], np.dtype[np.object_]] = np.full(BASE + SIZE, None, np.object_)
        self.reads: list[list[CachedRun]] = []
        self.forgotten: set[CachedRun] = set()
        self.unused: list[RemoteRun] = []  # known ones, the first to go first

    def of(self, copy: CachedRun) -> slice:
        return slice(copy.offset, copy.offset + copy.run.size_bytes)

    @property
    def in_use(self) -> set[CachedRun]:
        return {copy for read in self.reads for copy in read}

    @rule(wanted=runs)
    def read(self, wanted: list[RemoteRun]) -> None:
        known = {copy.run for copy in self.in_use - self.forgotten} | set(self.unused)
        before = self.cache.used_bytes
        answer = self.cache.hold(wanted)
        if answer is None:
            new = sum(run.size_bytes for run in set(wanted) - known)
            in_use = sum(copy.run.size_bytes for copy in self.in_use)
            assert new > 0
            assert new + in_use > SIZE // 4  # what is refused is more than odds and ends
            self.unused = [run for run in self.unused if run in self.cache._known]
            return
        found, new_ones = answer
        assert {copy.run for copy in found} == known & set(wanted)
        assert {copy.run for copy in found + new_ones} == set(wanted)
        for copy in new_ones:
            assert BASE <= copy.offset <= BASE + SIZE - copy.run.size_bytes
            self.memory[self.of(copy)] = [copy.run] * copy.run.size_bytes
        evicted = [run for run in self.unused if run not in self.cache._known]
        kept = [run for run in self.unused if run not in set(wanted)]
        assert evicted == kept[: len(evicted)]
        if before + sum(copy.run.size_bytes for copy in new_ones) <= SIZE // 4:
            assert not evicted
        self.unused = [run for run in kept if run not in evicted]
        self.reads.append(found + new_ones)

    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        if self.reads:
            read = self.reads.pop(data.draw(st.integers(0, len(self.reads) - 1)))
            self.cache.release(read)
            self.unused += [copy.run for copy in read if copy not in self.in_use | self.forgotten]

    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        if self.reads:
            read = data.draw(st.sampled_from(self.reads))
            self.cache.forget(read)
            self.forgotten |= set(read)

    @rule()
    def forget_all(self) -> None:
        self.cache.forget_all()
        self.forgotten |= self.in_use
        self.unused = []

    @invariant()
    def copies_in_use_are_whole(self) -> None:
        for copy in self.in_use:
            assert list(self.memory[self.of(copy)]) == [copy.run] * copy.run.size_bytes

    @invariant()
    def nothing_else_is_in_use(self) -> None:
        in_use = sum(copy.run.size_bytes for copy in self.in_use)
        assert self.cache.used_bytes == in_use + sum(run.size_bytes for run in self.unused)


TestReads = Reads.TestCase
TestReads.settings = settings(max_examples=200, stateful_step_count=30, deadline=None)


@given(sizes=st.lists(st.integers(1, 50), min_size=1, max_size=5))
def test_the_copies_of_one_read_adjoin_in_its_order(sizes: list[int]) -> None:
    _, new = held(Cache(BASE, SIZE), *(RemoteRun(1, at, size, 0) for at, size in enumerate(sizes)))
    ends = np.cumsum(sizes) + BASE
    assert [copy.offset for copy in new] == (ends - sizes).tolist()


@pytest.mark.parametrize("size_bytes", [0, 8])
def test_what_is_larger_than_the_cache_is_refused_and_evicts_nothing(size_bytes: int) -> None:
    cache = Cache(BASE, size_bytes)
    if size_bytes:
        cache.release(held(cache, RemoteRun(1, 0, 8, 0))[1])
    assert cache.hold([RemoteRun(1, 0, 9, 0)]) is None
    assert cache.used_bytes == size_bytes
