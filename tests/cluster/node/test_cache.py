"""The cache against a memory in which each copy writes what it is a copy of."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dataplane_server.cluster.node.cache import Cache, CachedRun, RemoteRun

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
        evicted = [run for run in self.unused if self.cache.find(run) is None]
        kept = [run for run in self.unused if run not in set(wanted)]
        assert evicted == kept[: len(evicted)]
        if answer is None:
            self.refused(wanted, known, evicted)
            return
        found, new_ones = answer
        assert {copy.run for copy in found} == known & set(wanted)
        assert {copy.run for copy in found + new_ones} == set(wanted)
        for copy in new_ones:
            assert BASE <= copy.offset <= BASE + SIZE - copy.run.size_bytes
            self.memory[self.of(copy)] = [copy.run] * copy.run.size_bytes
        if before + sum(copy.run.size_bytes for copy in new_ones) <= SIZE // 4:
            assert not evicted
        self.unused = kept[len(evicted) :]
        self.reads.append(found + new_ones)

    def refused(self, wanted: list[RemoteRun], known: set[RemoteRun], evicted: list[RemoteRun]) -> None:
        """Either the new runs are too large, and nothing has changed, or free pieces are too short for them."""
        new, found = set(wanted) - known, set(wanted) & set(self.unused)
        in_use = sum(copy.run.size_bytes for copy in self.in_use)
        needed = sum(run.size_bytes for run in new | found) + in_use
        assert new
        assert needed > SIZE // 4  # what is refused is more than odds and ends
        if needed > SIZE:
            assert not evicted
        else:
            assert set(evicted) == set(self.unused) - found
            self.unused = [run for run in dict.fromkeys(wanted) if run in found]

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


def run(at: int, size_bytes: int, version: int, node: int = 1) -> RemoteRun:
    return RemoteRun(node, at, size_bytes, version)


def test_a_read_is_refused_if_its_copies_lie_so_that_free_pieces_are_too_short() -> None:
    cache = Cache(BASE, SIZE)
    cache.release(held(cache, run(0, 8, 0))[1])
    kept = [run(at, 64, 0) for at in (1, 2, 3)]
    cache.release(held(cache, *kept)[1])
    assert cache.hold([*kept, run(4, 64, 0)]) is None  # 8 bytes before them, and 56 behind them
    assert cache.used_bytes == 3 * 64
    assert held(cache, *kept)[1] == []


TestReads = Reads.TestCase
TestReads.settings = settings(stateful_step_count=30)


@given(sizes=st.lists(st.integers(1, 50), min_size=1, max_size=5))
def test_the_copies_of_one_read_adjoin_in_its_order(sizes: list[int]) -> None:
    _, new = held(Cache(BASE, SIZE), *(RemoteRun(1, at, size, 0) for at, size in enumerate(sizes)))
    ends = np.cumsum(sizes) + BASE
    assert [copy.offset for copy in new] == (ends - sizes).tolist()


def test_a_read_that_finds_only_short_pieces_holds_no_copy_that_is_there() -> None:
    cache = Cache(BASE, 48)
    copies = [held(cache, RemoteRun(1, at, 8, 0))[1][0] for at in range(6)]
    cache.release(copies[::2])
    assert cache.hold([copies[0].run, RemoteRun(2, 0, 16, 0)]) is None
    held(cache, *(RemoteRun(3, at, 8, 0) for at in range(3)))  # in the places of the three that were released
