"""Which user of this host is at the other end of a TCP connection over loopback: the kernel is asked (sock_diag(7)).

A loopback port can be reached by every user and container of its network namespace, and a server there would answer
them all, so the user of the peer's socket decides.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import struct
from urllib.parse import unquote

_SOCK_DIAG_BY_FAMILY = 20
_NETLINK_SOCK_DIAG = 4
_NLMSG_ERROR = 2
_NLM_F_REQUEST = 1
_NO_COOKIE = 0xFFFFFFFF
_TIMEOUT = struct.pack("ll", 0, 200_000)  # seconds, microseconds
_HEAD = struct.Struct("=IHHII")
_REQUEST = struct.Struct("=BBBxI2s2s16s16sIII")
_ANSWER = struct.Struct("=BBBB2s2s16s16sIIIIIIII")


def user_at(peer: str, local_port: int) -> int | None:
    """The user of a gRPC peer such as `ipv4:127.0.0.1:50712` that is connected to a port of this process. None if the
    peer is not on loopback, or the kernel does not know the connection. Raises OSError if it cannot be asked.
    """
    kind, _, place = peer.partition(":")
    host, _, port = unquote(place).rpartition(":")
    address = _loopback(host.strip("[]"))
    if kind not in ("ipv4", "ipv6") or address is None:
        return None
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        return _owner(family, address.packed, int(port), local_port)
    except OSError as error:
        if error.errno == errno.ENOENT:
            return None
        raise


def _loopback(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return address if address.is_loopback else None


def _owner(family: int, address: bytes, port: int, local_port: int) -> int:
    """The user of the socket that is bound to `port` and connected to `local_port`, both at the same address."""
    ends = (port.to_bytes(2, "big"), local_port.to_bytes(2, "big"), address, address)
    request = _REQUEST.pack(family, socket.IPPROTO_TCP, 0, 0xFFFFFFFF, *ends, 0, _NO_COOKIE, _NO_COOKIE)
    message = _HEAD.pack(_HEAD.size + len(request), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 1, 0) + request
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG) as kernel:
        kernel.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _TIMEOUT)
        kernel.send(message)
        answer = kernel.recv(4096)
    if _HEAD.unpack_from(answer)[1] == _NLMSG_ERROR:
        number = -struct.unpack_from("=i", answer, _HEAD.size)[0]
        raise OSError(number, os.strerror(number))
    return int(_ANSWER.unpack_from(answer, _HEAD.size)[14])
