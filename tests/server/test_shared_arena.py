"""The arena as other processes are given it: one descriptor for reading, one for writing, of a size that stays."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dataplane_server.core.calls.values import Run
from dataplane_server.storage.arena import NONCE_BYTES, Arena

SIZE = 5000


@pytest.fixture
def arena() -> Iterator[Arena]:
    arena = Arena(SIZE, shared=True)
    yield arena
    arena.close()


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_an_arena_says_whether_it_is_shared(arena: Arena) -> None:
    alone = Arena(SIZE)
    assert (arena.shared, alone.shared) == (True, False)
    with pytest.raises(ValueError, match="not shared"), alone.descriptors():
        pass
    alone.close()


def test_the_nonce_stands_behind_the_values_in_a_page_of_its_own(arena: Arena) -> None:
    assert arena.nonce_offset == 2 * mmap.PAGESIZE
    assert arena.file_bytes == 3 * mmap.PAGESIZE
    with arena.descriptors() as (reading, _):
        assert os.fstat(reading).st_size == arena.file_bytes
        assert os.pread(reading, NONCE_BYTES, arena.nonce_offset) == arena.nonce
    assert len(arena.nonce) == NONCE_BYTES


def test_arenas_have_different_nonces() -> None:
    arenas = [Arena(SIZE) for _ in range(10)]
    assert len({arena.nonce for arena in arenas}) == 10
    for arena in arenas:
        arena.close()


def test_one_descriptor_reads_and_only_reads(arena: Arena) -> None:
    with arena.descriptors() as (reading, _):
        with pytest.raises(PermissionError):
            mmap.mmap(reading, arena.file_bytes, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.pwrite(reading, b"x", 0)
        with mmap.mmap(reading, arena.file_bytes, prot=mmap.PROT_READ) as mapping:
            arena.view(Run(10, 3))[:] = b"abc"
            assert mapping[10:13] == b"abc"
            with pytest.raises(TypeError):
                mapping[10] = 0


def test_the_other_writes(arena: Arena) -> None:
    with arena.descriptors() as (_, writing), mmap.mmap(writing, arena.file_bytes) as mapping:
        mapping[20:23] = b"abc"
        assert bytes(arena.view(Run(20, 3))) == b"abc"


@pytest.mark.parametrize("size", [0, SIZE, 1 << 30])
def test_nobody_changes_its_size(arena: Arena, size: int) -> None:
    with arena.descriptors() as (_, writing), pytest.raises(PermissionError):
        os.ftruncate(writing, size)


def test_another_process_that_was_given_the_descriptor_sees_what_is_written(arena: Arena) -> None:
    code = "import mmap, sys; print(mmap.mmap(int(sys.argv[1]), int(sys.argv[2]), prot=mmap.PROT_READ)[7:10].decode())"
    arena.view(Run(7, 3))[:] = b"abc"
    with arena.descriptors() as (reading, _):
        command = [sys.executable, "-c", code, str(reading), str(arena.file_bytes)]
        seen = subprocess.run(command, pass_fds=[reading], capture_output=True, text=True, check=True).stdout
    assert seen == "abc\n"


def test_programs_that_are_started_inherit_nothing(arena: Arena) -> None:
    with arena.descriptors() as (reading, writing):
        assert (os.get_inheritable(reading), os.get_inheritable(writing)) == (False, False)


def test_a_mapping_outlives_the_arena(arena: Arena) -> None:
    other = Arena(SIZE, shared=True)
    other.view(Run(0, 3))[:] = b"abc"
    with other.descriptors() as (reading, _):
        mapping = mmap.mmap(reading, other.file_bytes, prot=mmap.PROT_READ)
    other.close()
    assert mapping[:3] == b"abc"
    mapping.close()


def test_an_arena_leaves_no_descriptor() -> None:
    before = descriptors()
    arena = Arena(SIZE, shared=True)
    with arena.descriptors():
        pass
    arena.close()
    assert descriptors() == before


@pytest.mark.parametrize("size", [1 << 60, 1 << 63], ids=["more than there is", "more than a file may have"])
def test_an_arena_that_cannot_be_had_leaves_no_descriptor(size: int) -> None:
    before = descriptors()
    with pytest.raises((OSError, OverflowError)):
        Arena(size, shared=True)
    assert descriptors() == before
