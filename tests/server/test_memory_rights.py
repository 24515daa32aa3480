"""What a process can do with the memory that it was given, by its user: the kernel's answers, as the docs tell them.

The server's user is 1000. Each receiver runs without supplementary groups in a process of its own.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from tests.server.test_arena_file import result_of

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can change its user")

# `RECEIVER FILE USER`: a server of user 1000 has an arena, in FILE unless that is empty. What this user then may do.
RECEIVER = """
import ctypes, errno, json, mmap, os, pathlib, sys
from dataplane_server.storage.arena import Arena
SIZE, libc = mmap.PAGESIZE, ctypes.CDLL(None)
os.seteuid(1000)
arena = Arena(SIZE, shared=True, file=pathlib.Path(sys.argv[1]) if sys.argv[1] else None)
reading, user = arena.descriptors()[0], int(sys.argv[2])
os.seteuid(0)
os.setgroups([])
os.setresgid(user, user, user)
os.setresuid(user, user, user)
libc.prctl(4, 1, 0, 0, 0)  # its /proc is its own, as after exec
def tried(deed):
    try:
        deed()
        return "done"
    except OSError as error:
        return errno.errorcode[error.errno]
def write_anew():
    with mmap.mmap(os.open(f"/proc/self/fd/{reading}", os.O_RDWR), SIZE) as mapping:
        mapping[0:1] = b"x"
print(json.dumps([
    tried(lambda: mmap.mmap(reading, SIZE)),
    tried(lambda: os.pwrite(reading, b"x", 0)),
    tried(write_anew),
    tried(lambda: os.fchmod(reading, 0o600)),
    tried(write_anew),
]))
"""

# The last three: open it anew to write, give itself the right to do so, open it anew again.
DEEDS = {
    "another user": (2000, ["EACCES", "EPERM", "EACCES"], ["EACCES", "EPERM", "EACCES"]),
    "the server's user": (1000, ["EACCES", "done", "done"], ["done", "done", "done"]),
    "root": (0, ["done", "done", "done"], ["done", "done", "done"]),
}


@pytest.mark.parametrize("in_file", [False, True], ids=["no file", "file"])
@pytest.mark.parametrize("receiver", DEEDS)
def test_who_may_only_read_cannot_write_unless_it_is_the_servers_user_or_root(receiver: str, in_file: bool) -> None:
    user, in_memory, of_file = DEEDS[receiver]
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        os.chown(folder, 1000, 1000)
        found = result_of(RECEIVER, Path(folder) / "arena" if in_file else "", user)
    assert found == ["EACCES", "EBADF", *(of_file if in_file else in_memory)]


# `SERVER FILE`: a server of user 1000 whose client, of the same user, takes all rights to the arena from its user.
SERVER = """
import json, mmap, os, pathlib, sys
from dataplane_server.storage.arena import Arena
os.setresuid(1000, 1000, 1000)
arena = Arena(mmap.PAGESIZE, shared=True, file=pathlib.Path(sys.argv[1]) if sys.argv[1] else None)
first, nonce = [os.dup(file) for file in arena.descriptors()], arena.nonce
os.fchmod(first[0], 0)
reading, writing = arena.descriptors()
with mmap.mmap(writing, mmap.PAGESIZE) as mapping:
    mapping[0:3] = b"new"
with mmap.mmap(reading, mmap.PAGESIZE, prot=mmap.PROT_READ) as mapping:
    print(json.dumps([mapping[0:3].decode(), arena.nonce == nonce]))
"""


@pytest.mark.parametrize("in_file", [False, True], ids=["no file", "file"])
def test_a_client_that_takes_all_rights_from_the_memory_keeps_it_from_no_later_one(in_file: bool) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        os.chown(folder, 1000, 1000)
        assert result_of(SERVER, Path(folder) / "arena" if in_file else "") == ["new", True]
