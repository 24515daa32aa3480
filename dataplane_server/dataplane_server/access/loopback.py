"""Which user of this host is at the other end of a TCP connection over loopback: the kernel is asked (sock_diag(7)).

A loopback port can be reached by every user and container of its network namespace, and a server there would answer
them all, so the user of the peer's socket decides. It counts only while that socket is connected and a process has it:
once its process has closed it, the kernel reports user 0.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import struct
from typing import NamedTuple
from urllib.parse import unquote

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_SOCK_DIAG_BY_FAMILY = 20
_NETLINK_SOCK_DIAG = 4
_NLMSG_ERROR = 2
_NLM_F_REQUEST = 1
_NO_COOKIE = 0xFFFFFFFF
_ESTABLISHED = 1
_HEAD = struct.Struct("=IHHII")
_REQUEST = struct.Struct("=BBBxI2s2s16s16sIII")
_ANSWER = struct.Struct("=BBBB2s2s16s16sIIIIIIII")


class End(NamedTuple):
    """One end of a TCP connection."""

    address: Address
    port: int

    @classmethod
    def of(cls, host: str, port: int) -> End:
        """ValueError if the host is no address."""
        address = ipaddress.ip_address(host)
        mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
        return cls(mapped or address, port)

    @classmethod
    def of_grpc(cls, peer: str) -> End:
        """Of a peer as gRPC names it, such as `ipv4:127.0.0.1:50712`. ValueError if it is not on TCP."""
        host, _, port = unquote(peer.partition(":")[2]).rpartition(":")
        return cls.of(host.strip("[]"), int(port))


def name_of_peer(host: str, port: int, *_: object) -> str:
    """As gRPC names a peer with this address on TCP."""
    return f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"


class Owner(NamedTuple):
    """Who has a socket. is_connected: whether a process has it, and neither end has closed the connection."""

    user: int
    is_connected: bool


def user_of(connection: socket.socket) -> int | None:
    """The user at the other end of an accepted connection; None if it is not on loopback, or has begun to close. Raises
    OSError if the kernel cannot be asked. Does not block.
    """
    peer, local = (End.of(*name[:2]) for name in (connection.getpeername(), connection.getsockname()))
    owner = owner_of(peer, local)
    connection.getpeername()  # as long as it has a peer, no other connection has these ends; OSError
    return owner.user if owner is not None and owner.is_connected else None


def owner_of(peer: End, local: End) -> Owner | None:
    """The owner of the socket at one end of a connection whose other end is local. None if the peer is not on loopback,
    or the kernel does not know the connection. Raises OSError if it cannot be asked. Does not block.
    """
    if not peer.address.is_loopback or peer.address.version != local.address.version:
        return None
    try:
        return _asked(peer, local)
    except OSError as error:
        if error.errno == errno.ENOENT:
            return None
        raise


def _asked(peer: End, local: End) -> Owner:
    family = socket.AF_INET if peer.address.version == 4 else socket.AF_INET6
    ports = (end.port.to_bytes(2, "big") for end in (peer, local))
    ends = (*ports, peer.address.packed, local.address.packed)
    request = _REQUEST.pack(family, socket.IPPROTO_TCP, 0, 0xFFFFFFFF, *ends, 0, _NO_COOKIE, _NO_COOKIE)
    message = _HEAD.pack(_HEAD.size + len(request), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 1, 0) + request
    kind = socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
    with socket.socket(socket.AF_NETLINK, kind, _NETLINK_SOCK_DIAG) as kernel:
        kernel.send(message)
        answer = kernel.recv(4096)  # it is there: the kernel answers within the send
    if _HEAD.unpack_from(answer)[1] == _NLMSG_ERROR:
        number = -struct.unpack_from("=i", answer, _HEAD.size)[0]
        raise OSError(number, os.strerror(number))
    fields = _ANSWER.unpack_from(answer, _HEAD.size)
    state, user, inode = fields[1], fields[14], fields[15]
    return Owner(int(user), state == _ESTABLISHED and inode != 0)
