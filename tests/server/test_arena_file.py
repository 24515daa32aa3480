"""The arena in a file: its values outlive the server, one server uses it, and it knows the former servers' clients."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import json
import mmap
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from dataplane_server.core.calls.values import Run
from dataplane_server.storage.arena import NONCE_BYTES, Arena
from dataplane_server.storage.untruncatable import can_guard

SIZE = 5 * mmap.PAGESIZE
FILE_BYTES = SIZE + 2 * mmap.PAGESIZE
VALUES = bytes(number % 251 for number in range(SIZE))

# Serves one client: `SERVER FILE SIZE SOCKET`. Writes VALUES.
SERVER = """
import pathlib, socket, sys
from dataplane_server.core.calls.values import Run
from dataplane_server.storage.arena import Arena
path, size, peer = pathlib.Path(sys.argv[1]), int(sys.argv[2]), socket.socket(fileno=int(sys.argv[3]))
arena = Arena(size, shared=True, file=path)
arena.view(Run(0, size))[:] = bytes(number % 251 for number in range(size))
with arena.descriptors() as descriptors:
    socket.send_fds(peer, [b"x"], descriptors)
print("serves", flush=True)
sys.stdin.read()
"""

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

# What a client may do with what it received, as JSON: `DEEDS SOCKET SIZE`.
DEEDS = """
import errno, json, mmap, os, socket, sys
_, (reading, writing), _, _ = socket.recv_fds(socket.socket(fileno=int(sys.argv[1])), 1, 2)
size = int(sys.argv[2])
def tried(deed):
    try:
        return deed()
    except OSError as error:
        return errno.errorcode[error.errno]
def change():
    with mmap.mmap(writing, size) as mapping:
        mapping[0:3] = b"new"
print(json.dumps({
    "shrink": tried(lambda: os.ftruncate(writing, 0)),
    "grow": tried(lambda: os.ftruncate(writing, 2 * size)),
    "shrink the reading one": tried(lambda: os.ftruncate(reading, 0)),
    "map the reading one to write": tried(lambda: mmap.mmap(reading, size) and None),
    "change": tried(change),
    "read": mmap.mmap(reading, size, prot=mmap.PROT_READ)[0:3].decode(),
}))
"""

# Refuses a system call to itself, as a container may, before it opens the arena: `UNGUARDED FILE SIZE`.
UNGUARDED = """
import ctypes, json, os, pathlib, struct, sys
from dataplane_server.storage.arena import Arena
steps = [(0x20, 0, 0, 0), (0x15, 0, 1, 444), (6, 0, 0, 0x50000 | 38), (6, 0, 0, 0x7FFF0000)]
program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
filter = ctypes.create_string_buffer(struct.pack("HP", len(steps), ctypes.addressof(program)))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, filter) == 0, ctypes.get_errno()
arena = Arena(int(sys.argv[2]), shared=True, file=pathlib.Path(sys.argv[1]))
with arena.descriptors() as (reading, writing):
    print(json.dumps([arena.guarded, [os.fstat(file).st_size for file in (reading, writing)]]))
"""


@pytest.fixture(params=["memory", "disk"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    if request.param == "disk":
        yield tmp_path / "arena"
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder) / "arena"


def opened(path: Path) -> contextlib.closing[Arena]:
    return contextlib.closing(Arena(SIZE, shared=True, file=path))


@contextlib.contextmanager
def running(script: str, *arguments: object, give: tuple[int, ...] = ()) -> Iterator[subprocess.Popen[str]]:
    """A Python process with these arguments and descriptors, killed at the end."""
    command = [sys.executable, "-c", script, *map(str, arguments)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, pass_fds=give) as process:
        try:
            yield process
        finally:
            process.kill()


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def told(process: subprocess.Popen[str]) -> str:
    """Send an empty line; the answer."""
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return line_of(process)


@contextlib.contextmanager
def served(path: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A server in a process of its own, and the socket that holds what it sends a client."""
    ours, theirs = socket.socketpair()
    with ours, theirs, running(SERVER, path, SIZE, theirs.fileno(), give=(theirs.fileno(),)) as server:
        assert line_of(server) == "serves"
        theirs.close()
        yield server, ours.fileno()


def kill(process: int) -> None:
    """Kill a process, a child of this one or not, and wait until it is gone."""
    handle = os.pidfd_open(process)
    os.kill(process, signal.SIGKILL)
    assert select.select([handle], [], [], 30.0)[0]
    os.close(handle)


def result_of(script: str, *arguments: object, give: tuple[int, ...] = ()) -> Any:
    with running(script, *arguments, give=give) as process:
        return json.loads(line_of(process))


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


# -- values ------------------------------------------------------------------------------------------------------------


def test_values_outlive_a_killed_server(path: Path) -> None:
    with served(path) as (server, _):
        kill(server.pid)
    with opened(path) as arena:
        assert bytes(arena.view(Run(0, SIZE))) == VALUES
        assert not arena.fresh


def test_a_new_file_is_all_zero_private_and_has_its_space(path: Path) -> None:
    before = os.umask(0)
    with opened(path) as arena:
        assert bytes(arena.view(Run(0, SIZE))) == bytes(SIZE)
        assert arena.fresh
    os.umask(before)
    found = path.stat()
    assert (found.st_mode & 0o777, found.st_size) == (0o600, FILE_BYTES)
    assert found.st_blocks * 512 >= FILE_BYTES
    assert list(path.parent.iterdir()) == [path]


def test_each_life_has_its_nonce_where_clients_find_it_and_leaves_no_descriptor(tmp_path: Path) -> None:
    nonces, before = set(), descriptors()
    for _ in range(3):
        with opened(tmp_path / "arena") as arena, arena.descriptors() as (reading, _):
            nonces.add(arena.nonce)
            assert os.pread(reading, NONCE_BYTES, arena.nonce_offset) == arena.nonce
    assert len(nonces) == 3
    assert descriptors() == before


def test_a_file_that_lost_space_gets_it_back(path: Path) -> None:
    with opened(path):
        pass
    with path.open("wb") as file:  # what a copy makes of a file of zeros
        file.truncate(FILE_BYTES)
    assert path.stat().st_blocks == 0
    with opened(path):
        assert path.stat().st_blocks * 512 >= FILE_BYTES


@pytest.mark.parametrize("left_bytes", [0, FILE_BYTES - 1, 9 * FILE_BYTES])
def test_what_a_server_left_that_was_killed_as_it_made_the_file_is_no_hindrance(path: Path, left_bytes: int) -> None:
    unfinished = path.with_name("arena.new")
    unfinished.touch()
    os.truncate(unfinished, left_bytes)
    with opened(path) as arena:
        assert arena.fresh
        assert path.stat().st_size == FILE_BYTES
        assert not unfinished.exists()


def test_an_arena_that_is_not_shared_keeps_its_values_too(tmp_path: Path) -> None:
    with contextlib.closing(Arena(SIZE, file=tmp_path / "arena")) as arena:
        arena.view(Run(0, 3))[:] = b"abc"
        with pytest.raises(ValueError, match="not shared"), arena.descriptors():
            pass
    with opened(tmp_path / "arena") as arena:
        assert bytes(arena.view(Run(0, 3))) == b"abc"


def test_an_arena_without_a_file_is_fresh_and_guarded_and_has_no_former_clients() -> None:
    for shared in (False, True):
        with contextlib.closing(Arena(SIZE, shared=shared)) as arena:
            assert (arena.fresh, arena.guarded, arena.holders()) == (True, True, [])


# -- files that cannot be used -----------------------------------------------------------------------------------------


def test_a_file_of_another_size_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "arena"
    with opened(path) as arena:
        arena.view(Run(0, 3))[:] = b"abc"
    with pytest.raises(
        ValueError, match=rf"{FILE_BYTES} bytes.*{SIZE + FILE_BYTES}.*--memory.*empty the folder {tmp_path}"
    ):
        Arena(2 * SIZE, file=path)
    with opened(path) as arena:
        assert bytes(arena.view(Run(0, 3))) == b"abc"


def test_an_arena_larger_than_its_volume_names_what_is_missing_and_leaves_nothing(path: Path) -> None:
    before = descriptors()
    volume = os.statvfs(path.parent)
    with pytest.raises(
        OSError, match=rf"cannot allocate \d+ bytes.*: (\d+) bytes are missing in {path.parent}"
    ) as raised:
        Arena(1 << 60, file=path)
    assert raised.value.errno == errno.ENOSPC
    missing = int(str(raised.value).split(" bytes are missing")[0].split()[-1])
    assert missing == pytest.approx((1 << 60) - volume.f_bavail * volume.f_frsize, abs=1 << 40)
    assert list(path.parent.iterdir()) == []
    assert descriptors() == before


def test_a_file_that_may_not_be_so_large_is_an_os_error_and_leaves_nothing(path: Path) -> None:
    script = (
        "import json, pathlib, resource, sys; from dataplane_server.storage.arena import Arena\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), int(sys.argv[2])))\n"
        "try: Arena(int(sys.argv[2]), file=pathlib.Path(sys.argv[1]))\n"
        "except OSError as error: print(json.dumps([error.errno, str(error)]))"
    )
    number, text = result_of(script, path, SIZE)
    assert number == errno.EFBIG
    assert f"cannot allocate {FILE_BYTES} bytes: File too large: '{path}'" in text
    assert list(path.parent.iterdir()) == []


# -- one server --------------------------------------------------------------------------------------------------------


def test_a_file_has_one_server_which_keeps_it_while_it_is_stopped_and_loses_it_when_it_dies(path: Path) -> None:
    with served(path) as (server, _):
        in_use = pytest.raises(OSError, match=f"another server, process {server.pid}, uses this file: '{path}'")
        with in_use:
            Arena(SIZE, file=path)
        os.kill(server.pid, signal.SIGSTOP)
        with in_use:
            Arena(SIZE, file=path)
        kill(server.pid)
        with opened(path):
            pass


def started(path: Path) -> Arena | OSError:
    try:
        return Arena(SIZE, file=path)
    except OSError as error:
        return error


def test_of_servers_that_start_at_once_one_gets_the_file(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as threads:
        for number in range(50):
            path = tmp_path / str(number) / "arena"
            path.parent.mkdir()
            ends = list(threads.map(started, [path] * 4))
            (arena,) = [end for end in ends if isinstance(end, Arena)]
            assert {end.errno for end in ends if isinstance(end, OSError)} == {errno.EBUSY}
            arena.view(Run(0, 3))[:] = b"abc"
            assert path.read_bytes()[:3] == b"abc"
            assert list(path.parent.iterdir()) == [path]
            arena.close()


def test_a_server_never_has_a_file_that_was_removed_before_it_started(tmp_path: Path) -> None:
    path = tmp_path / "arena"

    def live(number: int) -> bytes | None:
        arena = started(path)
        if isinstance(arena, OSError):
            return None
        arena.view(Run(0, 1))[:] = bytes([number])
        found = path.read_bytes()[:1]
        path.unlink()
        arena.close()
        return found

    numbers = list(range(100)) * 4
    with ThreadPoolExecutor(4) as threads:
        ends = list(threads.map(live, numbers))
    assert any(ends)
    assert all(end in (None, bytes([number])) for number, end in zip(numbers, ends, strict=True))


def test_a_closed_arena_leaves_its_file_to_the_next_although_a_call_that_was_cut_off_still_holds_a_view(
    tmp_path: Path,
) -> None:
    arena = Arena(SIZE, file=tmp_path / "arena")
    held = arena.view(Run(0, 8))
    arena.close()
    with opened(tmp_path / "arena"):
        assert bytes(held) == bytes(8)


# -- what clients are given --------------------------------------------------------------------------------------------


@pytest.mark.skipif(not can_guard(), reason="the system has no Landlock that guards files' sizes")
def test_a_client_maps_the_arena_both_ways_and_cannot_truncate_it(path: Path) -> None:
    with served(path) as (_, received):
        deeds = result_of(DEEDS, received, SIZE, give=(received,))
    assert deeds == {
        "shrink": "EACCES",
        "grow": "EACCES",
        "shrink the reading one": "EINVAL",
        "map the reading one to write": "EACCES",
        "change": None,
        "read": "new",
    }
    assert path.stat().st_size == FILE_BYTES


def test_the_server_itself_is_not_restricted(tmp_path: Path) -> None:
    with opened(tmp_path / "arena") as arena, arena.descriptors():
        assert arena.guarded is can_guard()
        os.truncate(tmp_path / "arena", FILE_BYTES)
        with (tmp_path / "other").open("wb") as file:
            assert file.truncate(100) == 100


def test_where_the_system_refuses_landlock_clients_are_served_and_the_arena_says_so(tmp_path: Path) -> None:
    assert result_of(UNGUARDED, tmp_path / "arena", SIZE) == [False, [FILE_BYTES, FILE_BYTES]]


def test_programs_that_are_started_inherit_nothing(tmp_path: Path) -> None:
    with opened(tmp_path / "arena") as arena, arena.descriptors() as files:
        assert [os.get_inheritable(file) for file in files] == [False, False]
        assert [fcntl.fcntl(file, fcntl.F_GETFL) & os.O_ACCMODE for file in files] == [os.O_RDONLY, os.O_RDWR]


# -- holders -----------------------------------------------------------------------------------------------------------

KEEPS = ["descriptors", "reading", "writing", "private", "reading in a child", "writing in a child"]


@pytest.mark.parametrize("killed", [True, False], ids=["killed", "told to drop it"])
@pytest.mark.parametrize("keeps", KEEPS)
def test_a_client_of_a_killed_server_is_a_holder_until_it_has_nothing_left(
    path: Path, keeps: str, killed: bool
) -> None:
    with served(path) as (server, received), running(CLIENT, received, keeps, give=(received,)) as client:
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
def former_clients(path: Path, number: int) -> Iterator[list[list[int]]]:
    """What clients of a life that is over still have: each a reading descriptor and a writing one."""
    pairs = []
    with opened(path) as arena:
        for _ in range(number):
            with arena.descriptors() as files:
                pairs.append([os.dup(file) for file in files])
    try:
        yield pairs
    finally:
        for file in itertools.chain(*pairs):
            os.close(file)


def test_holders_of_this_life_are_not_listed(tmp_path: Path) -> None:
    with former_clients(tmp_path / "arena", 1), opened(tmp_path / "arena") as arena, arena.descriptors():
        assert len(arena.holders()) == 1


def test_no_two_holders_of_a_file_have_the_same_number(tmp_path: Path) -> None:
    seen: list[int] = []
    for _ in range(3):
        with former_clients(tmp_path / "arena", 2), former_clients(tmp_path / "arena", 3):
            with opened(tmp_path / "arena") as arena:
                found = arena.holders()
            assert found == sorted(found)
            assert len(found) == 5
            seen += found
    assert len(set(seen)) == 15


@pytest.mark.parametrize("lost", [0, 1], ids=["the reading one", "the writing one"])
def test_a_client_that_lost_one_of_its_descriptors_is_a_holder(tmp_path: Path, lost: int) -> None:
    with former_clients(tmp_path / "arena", 1) as (pair,), opened(tmp_path / "arena") as arena:
        with Path(os.devnull).open() as nothing:
            os.dup2(nothing.fileno(), pair[lost])
        assert len(arena.holders()) == 1


def lock(file: int, kind: int, start: int, length: int) -> None:
    fcntl.fcntl(file, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", kind, os.SEEK_SET, start, length, 0))


def test_a_client_that_locks_more_than_its_number_is_found_and_costs_no_more(tmp_path: Path) -> None:
    with former_clients(tmp_path / "arena", 1) as ((reading, _),), opened(tmp_path / "arena") as arena:
        lock(reading, fcntl.F_RDLCK, 0, 1 << 61)
        assert 1 <= len(arena.holders()) <= 3


def test_holders_are_found_in_whatever_order_the_kernel_tells_of_them(tmp_path: Path) -> None:
    with former_clients(tmp_path / "arena", 3) as (first, *_), opened(tmp_path / "arena") as arena:
        before = arena.holders()
        for file in first:
            lock(file, fcntl.F_UNLCK, 0, 0)
        assert arena.holders() == before[1:]
        for file in first:
            lock(file, fcntl.F_RDLCK, arena.file_bytes + before[0], 1)
        assert arena.holders() == before
