"""Binds gRPC servers to addresses, and decides who owns a socket file and who may connect to it.

A socket file is created with its final mode. A chmod after bind would leave a window in which other users may connect,
and would follow a link that has replaced the file. gRPC binds in C, where fchmod cannot reach the file, so the umask
sets the mode. The umask belongs to the process, so it also applies to files that other threads create meanwhile.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Iterator

import grpc


def bind(server: grpc.aio.Server, address: str, mode: int | None = None) -> str:
    """Bind a gRPC server to `unix:///path`, with a file of this mode, or to `host:port`. Returns the address, with the
    port that the system chose for port 0. Raises OSError.
    """
    if address.startswith("unix:"):
        path = unix_path(address)
        _check_unused(path)
        address = f"unix://{path}"
    try:
        with files_of_mode(mode):
            port = server.add_insecure_port(address)
    except RuntimeError as error:
        raise OSError(f"cannot listen on {address}: {error}") from None
    return address if address.startswith("unix:") else f"{address.rpartition(':')[0]}:{port}"


@contextlib.contextmanager
def files_of_mode(mode: int | None) -> Iterator[None]:
    """A block in which socket files are created with this mode. None: the umask decides."""
    if mode is None:
        yield
        return
    before = os.umask(0o777 & ~mode)
    try:
        yield
    finally:
        os.umask(before)


def unix_path(address: str) -> str:
    return address.removeprefix("unix:").removeprefix("//")


def _check_unused(path: str) -> None:
    """Raises OSError if a server listens on the socket file, or might: its mode keeps us from connecting. gRPC would
    take the file over without asking. It may take over the file of a killed server; it removes its own when it stops.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        found = probe.connect_ex(path)
    if found in (0, errno.EAGAIN):
        raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE), path)
    if found == errno.EACCES:
        raise OSError(errno.EACCES, "No permission to connect: another user's socket, or a closed folder", path)
