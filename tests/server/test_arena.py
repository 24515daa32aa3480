"""The arena: a stream written into runs is read back from them, however either is cut."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataplane_server.core.calls.values import Copy, Run, Runs
from dataplane_server.storage.arena import Arena, RunWriter, in_chunks, pieces

SIZE = 4096


@pytest.fixture
def arena() -> Iterator[Arena]:
    arena = Arena(SIZE)
    yield arena
    arena.close()


def test_a_view_shows_what_was_written_through_another(arena: Arena) -> None:
    arena.view(Run(100, 4))[:] = b"abcd"
    assert bytes(arena.view(Run(98, 8))) == b"\0\0abcd\0\0"


def test_copies_leave_their_sources(arena: Arena) -> None:
    arena.view(Run(0, 6))[:] = b"abcdef"
    arena.copy([Copy(0, 100, 3), Copy(4, 200, 2)])
    assert bytes(arena.view(Run(0, 7))) == b"abcdef\0"
    assert bytes(arena.view(Run(99, 5))) == b"\0abc\0"
    assert bytes(arena.view(Run(200, 2))) == b"ef"


def test_a_writer_goes_on_in_the_next_run_and_touches_nothing_between(arena: Arena) -> None:
    writer = RunWriter(arena, [Run(10, 3), Run(20, 2)])
    writer.write(b"ab")
    writer.write(b"cde")
    assert bytes(arena.view(Run(8, 16))) == b"\0\0abc" + bytes(7) + b"de" + bytes(2)


@settings(deadline=None, max_examples=100)
@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=10), st.lists(st.integers(1, 80), min_size=1), st.integers(1, 100)
)
def test_a_stream_comes_back_from_its_runs(sizes: list[int], written: list[int], chunk_bytes: int) -> None:
    arena = Arena(SIZE)
    runs = [Run(64 * position, size) for position, size in enumerate(sizes)][::-1]
    data = bytes(number % 251 for number in range(sum(sizes)))
    writer, rest = RunWriter(arena, runs), data
    for piece in itertools.cycle(written):
        if not rest:
            break
        writer.write(rest[:piece])
        rest = rest[piece:]
    chunks = [b"".join(pieces(arena, chunk)) for chunk in in_chunks(Runs.of(runs), chunk_bytes)]
    assert b"".join(chunks) == data
    assert all(len(chunk) == chunk_bytes for chunk in chunks[:-1])
    arena.close()


@pytest.mark.parametrize("chunk_bytes", [1, 7, 100, 5000])
def test_many_small_runs_are_copied_and_the_same(arena: Arena, chunk_bytes: int) -> None:
    draw = np.random.default_rng(0)
    arena.view(Run(0, SIZE))[:] = draw.bytes(SIZE)
    runs = Runs(draw.integers(0, SIZE - 9, 400), draw.integers(1, 9, 400))
    found = [b"".join(pieces(arena, chunk)) for chunk in in_chunks(runs, chunk_bytes)]
    assert b"".join(found) == b"".join(map(arena.view, runs))
    assert {len(chunk) for chunk in found[:-1]} <= {chunk_bytes}


def test_chunks_are_views(arena: Arena) -> None:
    (piece,) = pieces(arena, Runs.of([Run(0, 4)]))
    arena.view(Run(0, 4))[:] = b"abcd"
    assert bytes(piece) == b"abcd"
