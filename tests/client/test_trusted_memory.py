"""Memory that a client does not map: of users that it does not trust, of other servers, of a size that can shrink.

White-box: our server lends no such memory.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import resource
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.integration.wire.local_peer import framed

from dataplane_client._connect.deadline import Deadline
from dataplane_client._connect.locator import Place
from dataplane_client._memory.shared_arena import SharedArena, attach
from dataplane_client._verbs._async.transport import AsyncTransport
from dataplane_client.errors import UnavailableError
from dataplane_client.options import ClientOptions
from rl_dataplane.v1 import data_plane_pb2 as plane_pb
from rl_dataplane.v1 import local_pb2 as pb
from rl_dataplane.v1.local_frames import memory_nonce

SIZE = 4 * mmap.PAGESIZE
PROOF = b"p" * 16
only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can change its user")

# `LISTENER USER`: a process of this user listens at NAME, and closes the first connection.
LISTENER = """
import os, socket
with socket.socket(socket.AF_UNIX) as listener:
    listener.bind(NAME)
    os.setresuid(USER, USER, USER)
    listener.listen()
    print("listens", flush=True)
    listener.accept()[0].close()
"""


@pytest.fixture
def place(tmp_path: Path) -> str:
    return str(tmp_path / "a.sock.local")


@contextlib.contextmanager
def lent(
    place: str,
    files: Sequence[int],
    arena_bytes: int = SIZE,
    before: Callable[[], object] = lambda: None,
    **others: Any,
) -> Iterator[None]:
    """A server that answers the first ATTACH with these descriptors. before: called before that."""
    response = framed(0, pb.AttachResponse(session=b"s" * 16, arena_bytes=arena_bytes, proof=PROOF, **others))

    def answer() -> None:
        peer = peers.enter_context(listener.accept()[0])
        peer.recv(64)
        before()
        socket.send_fds(peer, [response], files)

    with socket.socket(socket.AF_UNIX) as listener, contextlib.ExitStack() as peers:
        listener.bind(place)
        listener.listen()
        server = threading.Thread(target=answer)
        server.start()
        yield
        server.join(200)


def memory_file(flags: int, seals: int = 0) -> Callable[[Path], int]:
    def make(path: Path) -> int:
        descriptor = os.memfd_create("arena", flags)
        os.ftruncate(descriptor, SIZE)
        if seals:
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
        return descriptor

    return make


sealed = memory_file(os.MFD_ALLOW_SEALING, fcntl.F_SEAL_SHRINK)


def file_of(mode: int, owner: int | None = None) -> Callable[[Path], int]:
    def make(path: Path) -> int:
        path.write_bytes(bytes(SIZE))
        path.chmod(mode)
        if owner is not None:
            os.chown(path, owner, -1)
        return os.open(path, os.O_RDWR)

    return make


@pytest.mark.parametrize("memory", [sealed, file_of(0o600), file_of(0o644)], ids=["sealed", "0600", "0644"])
@pytest.mark.parametrize("number", [1, 2])
def test_memory_that_cannot_shrink_is_mapped(
    place: str, tmp_path: Path, memory: Callable[[Path], int], number: int
) -> None:
    file = memory(tmp_path / "arena")
    with lent(place, [file] * number):
        arena = SharedArena(place, memory_nonce(PROOF, file))
    assert (arena.readable.nbytes, arena.can_write) == (SIZE, number == 2)
    os.close(file)


NOT_SEALED, SHRINKS = "sealed", "owner"
SHORT, OTHER = f"{SIZE} bytes.* {SIZE + 1}", "not that of the server"
MEMORIES = {
    "a memory file that is not sealed": (memory_file(os.MFD_ALLOW_SEALING), SIZE, PROOF, NOT_SEALED),
    "one that cannot be sealed": (memory_file(0), SIZE, PROOF, NOT_SEALED),
    "a file of its group": (file_of(0o660), SIZE, PROOF, rf"{SHRINKS} \d+, mode 0660"),
    "a file of all": (file_of(0o602), SIZE, PROOF, rf"{SHRINKS} \d+, mode 0602"),
    "shorter than its server says": (sealed, SIZE + 1, PROOF, SHORT),
    "of a server that does not know the proof": (sealed, SIZE, b"q" * 16, OTHER),
    "a file of another user": (file_of(0o600, owner=4321), SIZE, PROOF, rf"{SHRINKS} 4321, mode 0600"),
}


@pytest.mark.parametrize("memory", MEMORIES)
def test_memory_that_can_shrink_or_is_of_another_server_is_not_mapped(place: str, tmp_path: Path, memory: str) -> None:
    if os.geteuid() != 0 and "another user" in memory:
        pytest.skip("only root can change a file's owner")
    make, size, proof, words = MEMORIES[memory]
    file = make(tmp_path / "arena")
    with lent(place, [file], arena_bytes=size), pytest.raises(ConnectionError, match=words):
        SharedArena(place, memory_nonce(proof, file))
    os.close(file)


@pytest.mark.parametrize("other", [0, 1], ids=["the reading one", "the writing one"])
def test_a_descriptor_of_other_memory_is_not_mapped(place: str, tmp_path: Path, other: int) -> None:
    """The proof alone does not help to put other memory in the place of the server's."""
    right, files = sealed(tmp_path), [sealed(tmp_path), sealed(tmp_path)]
    files[1 - other] = right
    with lent(place, files), pytest.raises(ConnectionError, match=OTHER):
        SharedArena(place, memory_nonce(PROOF, right))


@contextlib.contextmanager
def listening(name: str, user: int) -> Iterator[None]:
    script = LISTENER.replace("NAME", repr(name)).replace("USER", str(user))
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "listens\n"
        yield


@only_root
def test_a_user_that_is_not_trusted_is_not_asked_for_memory(place: str) -> None:
    abstract = f"\0untrusted-{os.getpid()}"
    with listening(abstract, 65533), pytest.raises(ConnectionError) as refused:
        SharedArena(abstract, b"")
    assert str(refused.value) == "user 65533 listens there; this process trusts only root, its user (0)"
    with listening(place, 65533), pytest.raises(ConnectionError, match=r"its user \(0\) and the file's owner \(0\)"):
        SharedArena(place, b"")


@only_root
def test_the_owner_of_the_sockets_file_is_trusted(place: str) -> None:
    with listening(place, 65533):
        os.chown(place, 65533, 65533)
        with pytest.raises(ConnectionResetError):  # it was asked, and went
            SharedArena(place, b"")


# -- failures that say nothing about the memory ------------------------------------------------------------------------


def status_of(file: int) -> plane_pb.GetServerStatusResponse:
    """What the server says over gRPC that lends a file."""
    return plane_pb.GetServerStatusResponse(shared_memory=plane_pb.SharedMemory(nonce=memory_nonce(PROOF, file)))


@contextlib.contextmanager
def no_descriptor_left() -> Iterator[None]:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    first = os.open(os.devnull, os.O_RDONLY)
    os.close(first)
    resource.setrlimit(resource.RLIMIT_NOFILE, (first, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_without_room_for_its_descriptors_memory_is_asked_for_again(place: str, tmp_path: Path) -> None:
    file = sealed(tmp_path)
    with (
        contextlib.ExitStack() as limits,
        lent(place, [file, file], before=lambda: limits.enter_context(no_descriptor_left())),
        pytest.raises(ConnectionResetError, match="open files"),
    ):
        attach(Place(f"unix://{tmp_path}/a.sock"), status_of(file), "", 20.0)
    os.close(file)


def test_a_server_that_is_silent_is_told_from_a_call_that_has_no_time(place: str, tmp_path: Path) -> None:
    file = sealed(tmp_path)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(place)
        silent.listen()
        for timeout_s, kind in ((0.0, ConnectionResetError), (100.0, TimeoutError)):
            with pytest.raises(kind, match="timed out"):
                attach(Place(f"unix://{tmp_path}/a.sock"), status_of(file), "", timeout_s)
    os.close(file)


async def test_a_silent_coordinator_is_an_error_with_words(place: str, tmp_path: Path) -> None:
    file = sealed(tmp_path)
    transport = AsyncTransport(f"unix://{tmp_path}/a.sock", ClientOptions(transport="shm"))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        host, port = silent.getsockname()
        with (
            lent(place, [file], calls_host=host, calls_port=port),
            pytest.raises(UnavailableError, match=r"timed out$"),
        ):
            await transport._attached(status_of(file), Deadline(100.0))
    await transport.close()
    os.close(file)
