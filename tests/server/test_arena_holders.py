"""A server knows which clients of former servers may still read and write the arena's file."""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.server.test_arena_file import kill, line_of, opened, path_on, running, served

# A client: `CLIENT SOCKET KEEPS`. Keeps something of what it received, tells which process has it, drops it when told.
CLIENT = """
import mmap, os, socket, sys
_, (reading, writing), _, _ = socket.recv_fds(socket.socket(fileno=int(sys.argv[1])), 1, 2)
keeps, size = sys.argv[2], os.fstat(reading).st_size
maps = {
    "reading": lambda: mmap.mmap(reading, size, prot=mmap.PROT_READ),
    "writing": lambda: mmap.mmap(writing, size),
    "private": lambda: mmap.mmap(reading, size, flags=mmap.MAP_PRIVATE),
}
files, kept = [reading, writing], []
if keeps != "descriptors":
    kept.append(maps[keeps.split()[0]]())
    while files:
        os.close(files.pop())
if keeps.endswith("in a child") and os.fork():
    os._exit(0)
print(os.getpid(), flush=True)
sys.stdin.readline()
for mapping in kept:
    mapping.close()
for file in files:
    os.close(file)
print("dropped", flush=True)
sys.stdin.readline()
"""


def told(process: subprocess.Popen[str]) -> str:
    """Send an empty line; the answer."""
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return line_of(process)


KEEPS = ["descriptors", "reading", "writing", "private", "reading in a child", "writing in a child"]


@pytest.mark.parametrize(
    ("medium", "killed"),
    [
        pytest.param("memory", True, id="killed"),
        pytest.param("disk", False, id="told to drop it", marks=pytest.mark.long),
    ],
)
@pytest.mark.parametrize("keeps", KEEPS)
def test_a_client_of_a_killed_server_is_a_holder_until_it_has_nothing_left(
    tmp_path: Path, medium: str, keeps: str, killed: bool
) -> None:
    with (
        path_on(medium, tmp_path) as path,
        served(path) as (server, received),
        running(CLIENT, received, keeps, give=(received,)) as client,
    ):
        holding = int(line_of(client))
        kill(server.pid)
        if holding != client.pid:
            client.wait()
        with opened(path) as arena:
            assert len(arena.holders()) == 1
            if killed:
                kill(holding)
            else:
                assert told(client) == "dropped"
            assert arena.holders() == []


def test_what_a_dead_server_sent_and_no_client_received_is_held_too(tmp_path: Path) -> None:
    with served(tmp_path / "arena") as (server, _):
        kill(server.pid)
        with opened(tmp_path / "arena") as arena:
            assert len(arena.holders()) == 1
    with opened(tmp_path / "arena") as arena:
        assert arena.holders() == []


@contextlib.contextmanager
def former_clients(path: Path) -> Iterator[list[int]]:
    """What the clients of a life that is over still have: a reading descriptor and a writing one."""
    with opened(path) as arena:
        files = [os.dup(file) for file in arena.descriptors()]
    try:
        yield files
    finally:
        for file in files:
            os.close(file)


def test_each_former_life_whose_clients_live_is_listed_and_not_this_one(tmp_path: Path) -> None:
    path = tmp_path / "arena"
    with former_clients(path), contextlib.ExitStack() as second:
        second.enter_context(former_clients(path))
        with former_clients(path), opened(path) as arena:
            assert arena.holders() == [1, 2, 3]
            second.close()
            assert arena.holders() == [1, 3]


@pytest.mark.parametrize("lost", [0, 1], ids=["the reading one", "the writing one"])
def test_a_client_that_lost_one_of_its_descriptors_is_a_holder(tmp_path: Path, lost: int) -> None:
    with former_clients(tmp_path / "arena") as files, opened(tmp_path / "arena") as arena:
        with Path(os.devnull).open() as nothing:
            os.dup2(nothing.fileno(), files[lost])
        assert arena.holders() == [1]


def lock(file: int, kind: int, start: int, length: int) -> None:
    fcntl.fcntl(file, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", kind, os.SEEK_SET, start, length, 0))


def test_a_client_that_locks_more_than_its_number_is_found_and_costs_no_more(tmp_path: Path) -> None:
    with former_clients(tmp_path / "arena") as (reading, _), opened(tmp_path / "arena") as arena:
        lock(reading, fcntl.F_RDLCK, 0, 1 << 61)
        assert 1 <= len(arena.holders()) <= 3


def test_holders_are_found_in_whatever_order_the_kernel_tells_of_them(tmp_path: Path) -> None:
    path = tmp_path / "arena"
    with former_clients(path) as first, former_clients(path), former_clients(path), opened(path) as arena:
        for file in first:
            lock(file, fcntl.F_UNLCK, 0, 0)
        assert arena.holders() == [2, 3]
        for file in first:
            lock(file, fcntl.F_RDLCK, arena.file_bytes + 1, 1)
        assert arena.holders() == [1, 2, 3]
