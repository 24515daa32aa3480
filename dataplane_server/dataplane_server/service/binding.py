"""Taking addresses: what gRPC and sockets leave open about whose a socket file is and who may connect to it.

A socket file comes into being with its final rights. Rights set afterwards would leave a moment in which anybody may
connect, and would follow whatever link has taken the file's place by then. gRPC binds in C, out of reach of fchmod, so
it is the umask that decides: it is the process's own, so for that moment it also holds for other threads' files.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Iterator

import grpc


def bind(server: grpc.aio.Server, address: str, mode: int | None = None) -> str:
    """Let a gRPC server listen at `unix:///path`, whose file gets the rights `mode`, or at `host:port`; the address,
    with the port that the system chose where 0 was asked for. Raises OSError.
    """
    if address.startswith("unix:"):
        path = unix_path(address)
        _check_nobody_listens(path)
        address = f"unix://{path}"
    try:
        with files_of_mode(mode):
            port = server.add_insecure_port(address)
    except RuntimeError as error:
        raise OSError(f"cannot listen on {address}: {error}") from None
    return address if address.startswith("unix:") else f"{address.rpartition(':')[0]}:{port}"


@contextlib.contextmanager
def files_of_mode(mode: int | None) -> Iterator[None]:
    """A block in which socket files come into being with these rights; None leaves it to the umask."""
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


def _check_nobody_listens(path: str) -> None:
    """Raises OSError when a server answers on the socket file, which gRPC would take over without asking, or may: its
    rights keep us from asking. A file that a killed server left is taken over; one's own is removed by gRPC as it stops
    listening.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        found = probe.connect_ex(path)
    if found in (0, errno.EAGAIN):
        raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE), path)
    if found == errno.EACCES:
        raise OSError(errno.EACCES, "Another user's socket, or a folder that is closed to us", path)
