"""Binds gRPC servers to addresses, and decides who owns a socket file and who may connect to it.

A socket file is created with its final mode. A chmod after bind would leave a window in which other users may connect,
and would follow a link that has replaced the file. gRPC binds in C, where fchmod cannot reach the file, so the umask
sets the mode. The umask belongs to the process, so it also applies to files that other threads create meanwhile.

An address is tried before gRPC binds it: gRPC takes a socket file over without asking, and tells only its own log why
it cannot bind.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc

from dataplane_server.access.peers import peer_of
from dataplane_server.config import host_and_port

_MAX_PATH_BYTES = 107  # of sockaddr_un, without its final zero
_SLASHES_OF_GRPC = 2  # before a path
_NOT_FOR_GRPC = re.compile("[#?\udc80-\udcff]|%[0-9A-Fa-f]{2}")


def bind(
    server: grpc.aio.Server,
    address: str,
    mode: int | None = None,
    setting: str = "listen",
    tls: grpc.ServerCredentials | None = None,
) -> str:
    """Bind a gRPC server to `unix:///path`, with a file of this mode, or to `host:port`, with TLS if it is given.
    Returns the address, with the port that the system chose for port 0. Raises OSError that says why not; setting: the
    one that chooses the address.
    """
    if address.startswith("unix:"):
        address = f"unix://{unix_path(address)}"
        if (problem := problem_of_path(unix_path(address), _MAX_PATH_BYTES - _SLASHES_OF_GRPC)) is not None:
            raise OSError(f"cannot listen on {address}: {problem}")
    else:
        check_port(setting, address)
    try:
        with files_of_mode(mode):
            if tls is None or address.startswith("unix:"):
                port = server.add_insecure_port(address)
            else:
                port = server.add_secure_port(address, tls)
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


# -- what is wrong with an address -------------------------------------------------------------------------------------


def problem_of_path(path: str, most_bytes: int = _MAX_PATH_BYTES) -> str | None:
    """Why no socket can be made there. The file of a killed server is none: it is taken over. A server that stops
    removes its own.
    """
    folder = Path(path).parent
    if len(os.fsencode(path)) > most_bytes:
        return f"the path has more than {most_bytes} bytes; choose a shorter one"
    if _NOT_FOR_GRPC.search(path):
        return "no client would find '#', '?', an escape such as %2F, or bytes that are not UTF-8; choose another path"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        found = probe.connect_ex(path)
        if found in (0, errno.EAGAIN):
            return f"another server{_process_of(probe)} listens there; stop it, or choose another path with --listen"
    if found == errno.EACCES:
        return (
            "no permission to connect to what is there: another user's socket, or a closed folder; choose another path"
        )
    if found == errno.ENOENT and not folder.is_dir():
        return f"the folder {folder} does not exist; make it (mkdir -p {folder}), or choose another path"
    if found == errno.ENOTDIR:
        return f"{folder} is not a folder; choose another path"
    if os.path.lexists(path) and not Path(path).is_socket():
        return "there is a file that is not a socket; remove it, or choose another path"
    if not os.access(folder, os.W_OK | os.X_OK):
        return f"no permission to make a file in the folder {folder}; choose another path"
    return None


def _process_of(connected: socket.socket) -> str:
    """The process that listens, in words; "" if it is not known, as across containers."""
    try:
        process = peer_of(connected).pid
    except OSError:
        return ""
    return f" (process {process})" if process > 0 else ""


def check_port(setting: str, address: str) -> Sequence[tuple[socket.AddressFamily, tuple[Any, ...]]]:
    """The families and addresses where a server can listen on `host:port`; of a name, those that this host has, as
    localhost may be ::1 in a container without IPv6; those of IPv4 first. Raises OSError if there is none. setting: the
    one that chooses the address.
    """
    host, port = host_and_port(setting, address)
    try:
        found = [(family, where) for family, *_, where in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    except (socket.gaierror, UnicodeError) as error:
        why = getattr(error, "strerror", "it is no name of a host")
        raise OSError(f"cannot listen on {address}: the host is unknown ({why})") from None
    failed = {place: failure for place in found if (failure := _try(*place)) is not None}
    for failure in failed.values():
        if failure.errno == errno.EADDRINUSE:
            raise OSError(
                f"cannot listen on {address}: another process listens there, perhaps another server (`ss -ltnp` names "
                f"it); stop it, or choose another port with --{setting}, as in --{setting} {host}:0 for any free one"
            ) from failure
    places = sorted((place for place in found if place not in failed), key=lambda place: place[0] != socket.AF_INET)
    if not places:
        first = failed[found[0]]
        raise OSError(f"cannot listen on {address}: {_words_of(first)}") from first
    return places


def _words_of(failure: OSError) -> str:
    if failure.errno == errno.EADDRNOTAVAIL:
        return "this host does not have that address"
    if failure.errno == errno.EACCES:
        return "no permission; ports below 1024 need a privilege"
    return failure.strerror or str(failure)


def _try(family: int, where: tuple[object, ...]) -> OSError | None:
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do, to follow one that just ended
            probe.bind(where)
    except OSError as error:
        return error
    return None
