"""The arena that clients share: what they can do with it, and, where it is a file, how it outlives its server.

A file has one server at a time; `test_arena_holders.py` shows that it knows the clients of former ones.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
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
from dataplane_server.storage.arena import Arena
from dataplane_server.storage.untruncatable import can_guard

SIZE = 5 * mmap.PAGESIZE - 100
SHARED_BYTES = 5 * mmap.PAGESIZE
FILE_BYTES = 6 * mmap.PAGESIZE
VALUES = bytes(number % 251 for number in range(SIZE))

# Serves one client: `SERVER FILE SIZE SOCKET`. Writes VALUES.
SERVER = """
import pathlib, socket, sys
from dataplane_server.core.calls.values import Run
from dataplane_server.storage.arena import Arena
path, size, peer = pathlib.Path(sys.argv[1]), int(sys.argv[2]), socket.socket(fileno=int(sys.argv[3]))
arena = Arena(size, shared=True, file=path)
arena.view(Run(0, size))[:] = bytes(number % 251 for number in range(size))
socket.send_fds(peer, [b"x"], arena.descriptors())
print("serves", flush=True)
sys.stdin.read()
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
    "write the reading one": tried(lambda: os.pwrite(reading, b"x", 0)),
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
print(json.dumps([arena.guarded, [os.fstat(file).st_size for file in arena.descriptors()]]))
"""


@contextlib.contextmanager
def path_on(medium: str, tmp_path: Path) -> Iterator[Path]:
    if medium == "disk":
        yield tmp_path / "arena"
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder) / "arena"


@pytest.fixture(params=["memory", "disk"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    with path_on(request.param, tmp_path) as path:
        yield path


def opened(path: Path | None) -> contextlib.closing[Arena]:
    return contextlib.closing(Arena(SIZE, shared=True, file=path))


@pytest.fixture(params=["no file", "memory", "disk"])
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Arena]:
    with path_on(request.param, tmp_path) as path, opened(None if request.param == "no file" else path) as arena:
        yield arena


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
    ready = select.poll()  # whatever the number of the handle
    ready.register(handle, select.POLLIN)
    assert ready.poll(300_000)
    os.close(handle)


def result_of(script: str, *arguments: object, give: tuple[int, ...] = ()) -> Any:
    with running(script, *arguments, give=give) as process:
        return json.loads(line_of(process))


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def size_of(arena: Arena) -> int:
    """Of what clients are given."""
    return os.fstat(arena.descriptors()[0]).st_size


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


@pytest.mark.parametrize("in_file", [False, True], ids=["no file", "file"])
def test_each_life_has_a_nonce_that_names_its_memory_and_leaves_no_descriptor(tmp_path: Path, in_file: bool) -> None:
    nonces, before = set(), descriptors()
    for _ in range(3):
        with opened(tmp_path / "arena" if in_file else None) as arena:
            assert arena.file_bytes == SHARED_BYTES
            for found in map(os.fstat, arena.descriptors()):
                named = hashlib.sha256(arena.proof + struct.pack("<QQ", found.st_dev, found.st_ino)).digest()
                assert named == arena.nonce
            nonces.add(arena.nonce)
    assert len(nonces) == 3
    assert descriptors() == before


def test_a_file_that_its_volume_opened_to_a_group_is_the_servers_alone_again(path: Path) -> None:
    with opened(path):
        path.chmod(0o660)  # as a kubelet does with an fsGroup
    with opened(path):
        assert path.stat().st_mode & 0o777 == 0o600


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
        assert not arena.shared
        arena.view(Run(0, 3))[:] = b"abc"
        with pytest.raises(ValueError, match="not shared"):
            arena.descriptors()
    with opened(tmp_path / "arena") as arena:
        assert bytes(arena.view(Run(0, 3))) == b"abc"


def test_an_arena_without_a_file_is_fresh_and_guarded_and_has_no_former_clients() -> None:
    for shared in (False, True):
        with contextlib.closing(Arena(SIZE, shared=shared)) as arena:
            assert (arena.shared, arena.fresh, arena.guarded, arena.holders()) == (shared, True, True, [])


# -- files that cannot be used -----------------------------------------------------------------------------------------


def test_a_file_of_another_size_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "arena"
    with opened(path) as arena:
        arena.view(Run(0, 3))[:] = b"abc"
    needed = FILE_BYTES + 5 * mmap.PAGESIZE
    words = rf"{FILE_BYTES} bytes.*{needed}.*--memory.*empty the folder {tmp_path}"
    with pytest.raises(ValueError, match=words):
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


@pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])
@pytest.mark.parametrize("size", [1 << 60, 1 << 63], ids=["more than there is", "more than a file may have"])
def test_an_arena_that_cannot_be_had_leaves_no_descriptor(size: int, shared: bool) -> None:
    before = descriptors()
    with pytest.raises((OSError, OverflowError)):
        Arena(size, shared=shared)
    assert descriptors() == before


# -- one server --------------------------------------------------------------------------------------------------------


def test_a_file_has_one_server_which_keeps_it_while_it_is_stopped_and_loses_it_when_it_dies(path: Path) -> None:
    with served(path) as (server, _):
        in_use = pytest.raises(OSError, match=f"process {server.pid}.*'{path}'")
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


def test_a_client_maps_the_arena_both_ways_and_cannot_truncate_it(shared: Arena) -> None:
    if not shared.guarded:
        pytest.skip("the system has no Landlock that guards files' sizes")
    in_memory = shared.file_bytes == size_of(shared)
    before, refused = size_of(shared), "EPERM" if in_memory else "EACCES"
    ours, theirs = socket.socketpair()
    with ours, theirs:
        socket.send_fds(theirs, [b"x"], shared.descriptors())
        deeds = result_of(DEEDS, ours.fileno(), SIZE, give=(ours.fileno(),))
    assert deeds == {
        "shrink": refused,
        "grow": refused,
        "shrink the reading one": "EINVAL",
        "map the reading one to write": "EACCES",
        "write the reading one": "EBADF",
        "change": None,
        "read": "new",
    }
    assert bytes(shared.view(Run(0, 3))) == b"new"
    assert size_of(shared) == before


def test_the_server_itself_is_not_restricted(tmp_path: Path) -> None:
    with opened(tmp_path / "arena") as arena:
        assert arena.guarded is can_guard()
        os.truncate(tmp_path / "arena", FILE_BYTES)
        with (tmp_path / "other").open("wb") as file:
            assert file.truncate(100) == 100


def test_where_the_system_refuses_landlock_clients_are_served_and_the_arena_says_so(tmp_path: Path) -> None:
    assert result_of(UNGUARDED, tmp_path / "arena", SIZE) == [False, [FILE_BYTES, FILE_BYTES]]


def test_programs_that_are_started_inherit_nothing(shared: Arena) -> None:
    files = shared.descriptors()
    assert [os.get_inheritable(file) for file in files] == [False, False]
    assert [fcntl.fcntl(file, fcntl.F_GETFL) & os.O_ACCMODE for file in files] == [os.O_RDONLY, os.O_RDWR]


@pytest.mark.parametrize("lives", [1 << 41, (1 << 64) - 1])
def test_a_file_that_counts_lives_without_end_is_damaged(path: Path, lives: int) -> None:
    with opened(path):
        pass
    with path.open("r+b") as file:
        file.seek(SHARED_BYTES)
        file.write(lives.to_bytes(8, "little"))
    with pytest.raises(ValueError, match=f"arena .* {lives} "):
        Arena(SIZE, shared=True, file=path)
